"""The metrics of who waits, who yields and who decides: adding one is one row here. Pure.

What is counted is in `GateTally`; the rest is read when it is asked for. Queues are namespaces, which tenants name:
only so many are told by name (`QueueNames`), the others are told together.
"""

from __future__ import annotations

import bisect
from collections import Counter
from dataclasses import dataclass, field
from itertools import accumulate
from typing import TYPE_CHECKING, Final

from sharepod.agent import exposition

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

CLASSES: Final = ("latency", "standard", "batch")
BANDS: Final = ("negative", "zero", "positive", "system")
SYSTEM_PRIORITY: Final = 2_000_000_000
"""From here on priorities are Kubernetes' own."""
ORDERS: Final = ("release", "yield", "evict")
RESULTS: Final = ("written", "gone", "conflict", "budget", "forbidden", "invalid", "busy", "away")
YIELDS: Final = ("limited", "paused", "evicted", "resumed")
EVICTIONS: Final = ("yield", "overrun", "timeout", "restart")
GANGS: Final = ("released", "grown", "shrunk", "timed_out", "restarted")
PHASES: Final = ("release", "start")
ROUNDS: Final = ("decided", "failed")
WAITS_S: Final = (0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0, 3600.0, 7200.0, 14400.0, 43200.0,
                  86400.0)  # fmt: skip
ROUNDS_S: Final = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)
QUEUES_MAX: Final = 100
"""Queues that are told by name, and as many again that have rules of their own."""
OTHER: Final = "other"


class Histogram:
    """Counts of seconds by bounds."""

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum_s = 0.0

    def observe(self, seconds: float) -> None:
        """Count one."""
        self._counts[bisect.bisect_left(self.bounds, seconds)] += 1
        self._sum_s += seconds

    def values(self) -> list[float]:
        """Return the values in the order of exposition.histogram."""
        below = list(accumulate(self._counts))
        return [*below, below[-1], self._sum_s]


def band_of(priority: int) -> str:
    """Return the band of a priority: what tenants call their PriorityClasses has no bound."""
    if priority >= SYSTEM_PRIORITY:
        return BANDS[3]
    return BANDS[2] if priority > 0 else BANDS[1] if priority == 0 else BANDS[0]


@dataclass(slots=True)
class GateTally:
    """What was decided so far by this replica. Written and read on one loop."""

    orders: Counter[tuple[str, ...]] = field(default_factory=Counter)
    """By order and result."""
    yields: Counter[str] = field(default_factory=Counter)
    evictions: Counter[str] = field(default_factory=Counter)
    gangs: Counter[str] = field(default_factory=Counter)
    waits: dict[tuple[str, ...], Histogram] = field(
        default_factory=lambda: {(one, band): Histogram(WAITS_S) for one in CLASSES for band in BANDS}
    )
    """From creation to release, by class and band."""
    gang_times: dict[str, Histogram] = field(default_factory=lambda: {phase: Histogram(WAITS_S) for phase in PHASES})
    rounds: dict[str, Histogram] = field(default_factory=lambda: {result: Histogram(ROUNDS_S) for result in ROUNDS})

    def released(self, share_class: str, priority: int, waited_s: float) -> None:
        """Count a pod whose gate has gone."""
        self.waits[share_class, band_of(priority)].observe(waited_s)


@dataclass(frozen=True, slots=True)
class QueueLook:
    """How one queue stands."""

    pods: int = 0
    """That wait."""
    shares: int = 0
    devices: float = 0.0
    """That those ask for."""
    paused: int = 0
    """Pods that are paused for others."""
    held: float = 0.0
    """Devices that its pods are promised."""

    def plus(self, other: QueueLook) -> QueueLook:
        """Return both together."""
        return QueueLook(
            self.pods + other.pods, self.shares + other.shares, self.devices + other.devices,
            self.paused + other.paused, self.held + other.held,
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class GateLook:
    """How the controller stands."""

    leading: bool
    turns: int
    """How often it has come to lead."""
    queues: Mapping[str, QueueLook]
    """By name, all of them; none where it does not lead."""
    ruled: Iterable[str]
    """Queues that have rules of their own."""
    longest_wait_s: float
    fairness: float
    rules_refused: bool


class QueueNames:
    """Which queues are told by name: once told, always told, so that series do not come and go."""

    def __init__(self) -> None:
        self._ruled: set[str] = set()
        self._others: set[str] = set()

    def told(self, look: GateLook) -> dict[str, QueueLook]:
        """Return the queues by the names under which they are told."""
        for name in sorted(look.ruled):
            if len(self._ruled) < QUEUES_MAX:
                self._ruled.add(name)
        for name in sorted(look.queues):
            if name not in self._ruled and len(self._others) < QUEUES_MAX:
                self._others.add(name)
        names = self._ruled | self._others
        found = dict.fromkeys([*sorted(names - {OTHER}), OTHER], QueueLook())
        for name, queue in look.queues.items():
            name = name if name in names else OTHER
            found[name] = found[name].plus(queue)
        return found


_OF_QUEUES: Final[tuple[tuple[str, str, Callable[[QueueLook], float]], ...]] = (
    ("sharepod_gates_waiting_pods", "Pods that wait for their gates to go.", lambda q: q.pods),
    ("sharepod_gates_waiting_shares", "Shares that those hold once they run.", lambda q: q.shares),
    ("sharepod_gates_waiting_devices", "What those ask for, in devices.", lambda q: q.devices),
    ("sharepod_gates_paused_pods", "Pods that are paused to make room for others.", lambda q: q.paused),
    ("sharepod_gates_held_devices", "What the queue's pods are promised, in devices.", lambda q: q.held),
)
_ROWS: Final[tuple[tuple[str, str, Callable[[GateLook], float]], ...]] = (
    ("sharepod_gates_leading", "1 on the replica that decides.", lambda k: float(k.leading)),
    ("sharepod_gates_leads_total", "How often this replica has come to decide.", lambda k: k.turns),
    ("sharepod_gates_longest_wait_seconds", "How long the job waits that waits longest.", lambda k: k.longest_wait_s),
    (
        "sharepod_gates_fairness",
        (
            "Jain's index of the dominant shares, divided by their weights, of the queues that hold or wait for "
            "something: 1 where all have the same, 1/n where one of n has everything. 1 where this replica does not "
            "decide."
        ),
        lambda k: k.fairness,
    ),
    (
        "sharepod_gates_rules_refused",
        "1 while the rules of queues are not those that were last given.",
        lambda k: float(k.rules_refused),
    ),
)
_COUNTERS: Final[
    tuple[
        tuple[
            str, str, tuple[str, ...], tuple[tuple[str, ...], ...],
            Callable[[GateTally], Mapping[tuple[str, ...], int]],
        ],
        ...,
    ]
] = (
    (
        "sharepod_gates_orders_total",
        (
            "What rounds have ordered, as the API server took it: written; the pod was gone; conflict, another was "
            "there or it had changed; a disruption budget kept it; forbidden to us; invalid; busy, or away for too "
            "long."
        ),
        ("order", "result"),
        tuple((order, result) for order in ORDERS for result in RESULTS),
        lambda t: t.orders,
    ),
    (
        "sharepod_gates_yields_total",
        "Pods that made room for others, by kind, and those that were let go on.",
        ("kind",),
        tuple((kind,) for kind in YIELDS),
        lambda t: {(key,): count for key, count in t.yields.items()},
    ),
    (
        "sharepod_gates_evictions_total",
        (
            "Pods that were evicted, by cause: others needed the room, they ran for too long, their gang did not come "
            "to run in time, or it starts anew as a member failed."
        ),
        ("cause",),
        tuple((cause,) for cause in EVICTIONS),
        lambda t: {(key,): count for key, count in t.evictions.items()},
    ),
    (
        "sharepod_gates_gangs_total",
        (
            "Gangs that were released, got members beyond their least, lost such to others, did not come to run in "
            "time, or were ended to start anew as a member failed."
        ),
        ("event",),
        tuple((event,) for event in GANGS),
        lambda t: {(key,): count for key, count in t.gangs.items()},
    ),
)  # fmt: skip
_HISTOGRAMS: Final[
    tuple[tuple[str, str, tuple[str, ...], Callable[[GateTally], Mapping[tuple[str, ...], Histogram]]], ...]
] = (
    (
        "sharepod_gates_wait_seconds",
        (
            "How long pods waited from their creation to their release, by the most urgent class of their shares and "
            "by the band of their priority: system is from 2000000000 on."
        ),
        ("class", "priority"),
        lambda t: t.waits,
    ),
    (
        "sharepod_gates_gang_seconds",
        "Of gangs: from the first member there to the release of all; from that until all that it needs run.",
        ("phase",),
        lambda t: {(key,): found for key, found in t.gang_times.items()},
    ),
    (
        "sharepod_gates_round_seconds",
        "How long rounds took; a round that failed has decided nothing, the log says why.",
        ("result",),
        lambda t: {(key,): found for key, found in t.rounds.items()},
    ),
)


def text(look: GateLook, tally: GateTally, names: QueueNames) -> str:
    """Return all series."""
    parts: list[str] = []
    values: list[float] = []
    for name, doc, value in _ROWS:
        parts += [exposition.header(name, _kind(name), doc), f"{name} \0\n"]
        values.append(value(look))
    queues = names.told(look)
    for name, doc, of in _OF_QUEUES:
        parts.append(exposition.header(name, "gauge", doc))
        parts += [exposition.sample(name, exposition.labelled(("queue",), (queue,))) for queue in queues]
        values += [of(queue) for queue in queues.values()]
    for name, doc, labels, known, counts in _COUNTERS:
        found = counts(tally)
        parts.append(exposition.header(name, "counter", doc))
        parts += [exposition.sample(name, exposition.labelled(labels, key)) for key in known]
        values += [found.get(key, 0) for key in known]
    for name, doc, labels, histograms in _HISTOGRAMS:
        parts.append(exposition.header(name, "histogram", doc))
        for key, histogram in histograms(tally).items():
            parts.append(exposition.histogram(name, exposition.labelled(labels, key), histogram.bounds))
            values += histogram.values()
    return exposition.Template("".join(parts)).filled(values)


def rows() -> list[tuple[str, str, str, str]]:
    """Return name, kind, labels and meaning of each, for the manual."""
    found = [(name, _kind(name), "", doc) for name, doc, _ in _ROWS]
    found += [(name, "gauge", "`queue`", doc) for name, doc, _ in _OF_QUEUES]
    found += [(name, "counter", _labels(labels, known), doc) for name, doc, labels, known, _ in _COUNTERS]
    empty = GateTally()
    found += [(name, "histogram", _labels(labels, list(of(empty))), doc) for name, doc, labels, of in _HISTOGRAMS]
    return found


def _labels(labels: Sequence[str], known: Sequence[tuple[str, ...]]) -> str:
    return "; ".join(
        f"`{label}`: {', '.join(dict.fromkeys(key[place] for key in known))}" for place, label in enumerate(labels)
    )


def _kind(name: str) -> str:
    return "counter" if name.endswith("_total") else "gauge"
