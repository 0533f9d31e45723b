"""What runs on a node: a share's terms, and what the programs in it do."""

from collections.abc import Mapping
from dataclasses import dataclass, field

MS = 1_000_000
SECOND = 1_000_000_000
UNITS = {"ns": 1, "us": 1000, "ms": MS, "s": SECOND}


def nanoseconds(text: str) -> int:
    """Read a time as the programs do: `500us`. Raises ValueError."""
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
    """A program: its share and what it does."""

    terms: Terms
    mode: str
    options: Mapping[str, object] = field(default_factory=dict)

    @property
    def unit_ns(self) -> int:
        """The duration that its kernels are named for."""
        return nanoseconds(str(self.options.get("unit", "500us")))


def saturating(request: float, unit: str = "500us", **options: object) -> Load:
    """Return a load that always has work in flight.

    `depth` groups of `group` launches, at least 4 ms and fewer than the 1,024 launches that a driver queues: what is
    queued bridges the pauses of the host, or the host would be the bottleneck.
    """
    return Load(Terms(request), "saturate", {"unit": unit, **options})


@dataclass(frozen=True, slots=True)
class Case:
    """Saturated shares side by side."""

    what: str
    loads: Mapping[str, Load]
    longest_unit_ns: int

    @property
    def targets(self) -> dict[str, float]:
        """The part of the device that each share is due: its request, surplus in proportion to request."""
        total = sum(load.terms.request for load in self.loads.values())
        return {owner: load.terms.request / total for owner, load in self.loads.items()}
