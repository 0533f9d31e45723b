"""What runs on a node: the terms of a share, and the work of the programs in it."""

from collections.abc import Mapping
from dataclasses import dataclass, field

MS = 1_000_000
SECOND = 1_000_000_000
UNITS = {"ns": 1, "us": 1000, "ms": MS, "s": SECOND}


def nanoseconds(text: str) -> int:
    """Read a time as the programs do, for example `500us`. Raises ValueError."""
    number = text.rstrip("nums")
    suffix = text[len(number) :]
    if suffix not in UNITS:
        raise ValueError(f"{text!r} is not a time: give ns, us, ms or s")
    return round(float(number) * UNITS[suffix])


@dataclass(frozen=True, slots=True)
class Terms:
    """What a share asks for, in percent of the device."""

    request: float
    limit: float = 100.0
    share_class: str = "standard"
    memory_bytes: int = 0
    devices: tuple[str, ...] = ("0",)
    gang: str = ""


@dataclass(frozen=True, slots=True)
class Load:
    """A program: the terms of its share, and its work."""

    terms: Terms
    mode: str
    options: Mapping[str, object] = field(default_factory=dict)

    @property
    def unit_ns(self) -> int:
        """The duration in its kernels' names."""
        return nanoseconds(str(self.options.get("unit", "500us")))


def saturating(request: float, unit: str = "500us", **options: object) -> Load:
    """Return a load that always has work in flight.

    It keeps `depth` groups of `group` launches in flight: at least 4 ms of work, and fewer than the 1,024 launches that
    a driver queues. The queued work bridges pauses of the host, which would else be the bottleneck.
    """
    return Load(Terms(request), "saturate", {"unit": unit, **options})


@dataclass(frozen=True, slots=True)
class Case:
    """Saturated shares that run together."""

    what: str
    loads: Mapping[str, Load]
    longest_unit_ns: int

    @property
    def targets(self) -> dict[str, float]:
        """The part of the device that each share is due: its request, and surplus in proportion to the requests."""
        total = sum(load.terms.request for load in self.loads.values())
        return {owner: load.terms.request / total for owner, load in self.loads.items()}
