"""Defines the gate controller's metrics, one row each: waiting jobs, yielding pods, decisions. Pure.

`GateCounters` holds the counters; the other values are read at each scrape. Queues are namespaces, which tenants name:
only QUEUES_MAX of them are reported by name (`QueueNames`), the others together.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from sharepod.process.metrics import Histogram, HistogramRow, Row, Table

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from sharepod.process.metrics import AnyTable

CLASSES: Final = ("latency", "standard", "batch")
BANDS: Final = ("negative", "zero", "positive", "system")
SYSTEM_PRIORITY: Final = 2_000_000_000
"""The lowest of the priorities that Kubernetes reserves for itself: the band `system`."""
ORDERS: Final = ("release", "yield", "evict")
"""The kinds of actions that are written to the API server. RESULTS: what can become of each."""
RESULTS: Final = ("written", "gone", "conflict", "budget", "forbidden", "invalid", "busy", "away")
YIELDS: Final = ("limited", "paused", "evicted", "resumed")
EVICTIONS: Final = ("yield", "overrun", "timeout", "restart", "unbound")
GANGS: Final = ("released", "grown", "shrunk", "timed_out", "restarted")
PHASES: Final = ("release", "start")
ROUNDS: Final = ("decided", "failed")
WAITS_S: Final = (0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0, 3600.0, 7200.0, 14400.0, 43200.0,
                  86400.0)  # fmt: skip
ROUNDS_S: Final = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)
QUEUES_MAX: Final = 100
"""Queues that are reported by name, and as many again that have rules of their own."""
OTHER: Final = "other"


def band_of(priority: int) -> str:
    """Return the band of a pod's priority, one of BANDS, for a label: bands are few, priorities may be any number."""
    if priority >= SYSTEM_PRIORITY:
        return BANDS[3]
    return BANDS[2] if priority > 0 else BANDS[1] if priority == 0 else BANDS[0]


@dataclass(slots=True)
class GateCounters:
    """The counters of what this replica has decided so far. Written and read on one event loop."""

    actions: Counter[tuple[str, ...]] = field(default_factory=Counter)
    """By order and result."""
    yields: Counter[str] = field(default_factory=Counter)
    evictions: Counter[str] = field(default_factory=Counter)
    gangs: Counter[str] = field(default_factory=Counter)
    waits: dict[tuple[str, ...], Histogram] = field(
        default_factory=lambda: {(one, band): Histogram(WAITS_S) for one in CLASSES for band in BANDS}
    )
    """The time from creation to release, by class and band."""
    gang_times: dict[str, Histogram] = field(default_factory=lambda: {phase: Histogram(WAITS_S) for phase in PHASES})
    rounds: dict[str, Histogram] = field(default_factory=lambda: {result: Histogram(ROUNDS_S) for result in ROUNDS})

    def released(self, share_class: str, priority: int, waited_s: float) -> None:
        """Count a pod after its gate was removed.

        `share_class`: the most urgent class of its shares. `waited_s`: the time since its creation.
        """
        self.waits[share_class, band_of(priority)].observe(waited_s)


@dataclass(frozen=True, slots=True)
class QueueLook:
    """The numbers of one queue."""

    pods: int = 0
    """Waiting pods."""
    shares: int = 0
    """Shares that the waiting pods ask for."""
    devices: float = 0.0
    """Devices that the waiting pods ask for."""
    paused: int = 0
    """Pods that are paused for others."""
    held: float = 0.0
    """Devices that its pods are promised."""

    def plus(self, other: QueueLook) -> QueueLook:
        """Return the sums of both."""
        return QueueLook(
            self.pods + other.pods, self.shares + other.shares, self.devices + other.devices,
            self.paused + other.paused, self.held + other.held,
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class GateLook:
    """The controller's numbers at one moment."""

    leading: bool
    turns: int
    """How often this replica has become the leader."""
    queues: Mapping[str, QueueLook]
    """All queues, by name; none where this replica does not lead."""
    ruled: Iterable[str]
    """Queues that have rules of their own."""
    longest_wait_s: float
    fairness: float
    rules_refused: bool


class QueueNames:
    """The queues that are reported by name. A queue that was once named stays named, so that no series vanishes."""

    def __init__(self) -> None:
        self._ruled: set[str] = set()
        """Named queues that have had rules of their own, at most QUEUES_MAX."""
        self._others: set[str] = set()
        """The other named queues, at most QUEUES_MAX."""

    def told(self, look: GateLook) -> dict[str, QueueLook]:
        """Return the numbers of the queues by the names under which they are reported.

        New queues get a name while there are few. The others are added up under OTHER. A queue that has gone keeps its
        name, with zeros.
        """
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


@dataclass(frozen=True, slots=True)
class GateSnapshot:
    """The values that a scrape shows of the gate controller."""

    look: GateLook
    counters: GateCounters
    queues: Mapping[str, QueueLook]
    """By the names under which they are reported."""


_OF_QUEUES: Final[tuple[Row[QueueLook], ...]] = (
    Row("sharepod_gates_waiting_pods", "Pods that wait for their gates to go.", lambda q: q.pods),
    Row("sharepod_gates_waiting_shares", "Shares that those hold once they run.", lambda q: q.shares),
    Row("sharepod_gates_waiting_devices", "What those ask for, in devices.", lambda q: q.devices),
    Row("sharepod_gates_paused_pods", "Pods that are paused to make room for others.", lambda q: q.paused),
    Row("sharepod_gates_held_devices", "What the queue's pods are promised, in devices.", lambda q: q.held),
)
_ROWS: Final[tuple[Row[GateLook], ...]] = (
    Row("sharepod_gates_leading", "1 on the replica that decides.", lambda k: float(k.leading)),
    Row("sharepod_gates_leads_total", "How often this replica has come to decide.", lambda k: k.turns),
    Row(
        "sharepod_gates_longest_wait_seconds", "How long the job waits that waits longest.", lambda k: k.longest_wait_s
    ),
    Row(
        "sharepod_gates_fairness",
        "Jain's index of the dominant shares, divided by their weights, of the queues that hold or wait for something: "
        "1 where all have the same, 1/n where one of n has everything. 1 where this replica does not decide.",
        lambda k: k.fairness,
    ),
    Row(
        "sharepod_gates_rules_refused",
        "1 while the rules of queues are not those that were last given.",
        lambda k: float(k.rules_refused),
    ),
)
_ORDERS: Final[Row[int]] = Row(
    "sharepod_gates_orders_total",
    "What scheduling cycles have ordered, as the API server took it: written; the pod was gone; conflict, another was "
    "there or it had changed; a disruption budget kept it; forbidden to us; invalid; busy, or away for too long.",
    float,
)
_YIELDS: Final[Row[int]] = Row(
    "sharepod_gates_yields_total",
    "Pods that made room for others, by kind, and those that were let go on.",
    float,
)
_EVICTIONS: Final[Row[int]] = Row(
    "sharepod_gates_evictions_total",
    "Pods that were evicted, by cause: others needed the room, they ran for too long, their gang did not come to run "
    "in time, it starts anew as a member failed, or kube-scheduler did not bind them.",
    float,
)
_GANGS: Final[Row[int]] = Row(
    "sharepod_gates_gangs_total",
    "Gangs that were released, got members beyond their least, lost such to others, did not come to run in time, or "
    "were ended to start anew as a member failed.",
    float,
)
_WAITS: Final[HistogramRow[Histogram]] = HistogramRow(
    "sharepod_gates_wait_seconds",
    "How long pods waited from their creation to their release, by the most urgent class of their shares and by the "
    "band of their priority: system is from 2000000000 on.",
    WAITS_S,
    lambda h: h.seconds,
)
_GANG_TIMES: Final[HistogramRow[Histogram]] = HistogramRow(
    "sharepod_gates_gang_seconds",
    "Of gangs: from the first member there to the release of all; from that until all that it needs run.",
    WAITS_S,
    lambda h: h.seconds,
)
_ROUNDS: Final[HistogramRow[Histogram]] = HistogramRow(
    "sharepod_gates_round_seconds",
    "How long scheduling cycles took; one that failed has decided nothing, the log says why.",
    ROUNDS_S,
    lambda h: h.seconds,
)


def _counted(
    known: Sequence[str], of: Callable[[GateCounters], Mapping[str, int]]
) -> Callable[[GateSnapshot], list[tuple[tuple[str], int]]]:
    """Return a function from a snapshot to the rows of a Table: each key of `known` with its count.

    `of` picks the counts in the counters. A key that was not counted yet has 0.
    """
    return lambda snapshot: [((key,), of(snapshot.counters).get(key, 0)) for key in known]


TABLES: Final[tuple[AnyTable[GateSnapshot], ...]] = (
    Table("Gates", {}, _ROWS, lambda s: [((), s.look)]),
    Table("Gates, by queue", {"queue": ()}, _OF_QUEUES, lambda s: [((name,), one) for name, one in s.queues.items()]),
    Table(
        "Orders", {"order": ORDERS, "result": RESULTS}, (_ORDERS,),
        lambda s: [((action, result), s.counters.actions[action, result]) for action in ORDERS for result in RESULTS],
    ),
    Table("Pods that yield", {"kind": YIELDS}, (_YIELDS,), _counted(YIELDS, lambda t: t.yields)),
    Table("Evictions", {"cause": EVICTIONS}, (_EVICTIONS,), _counted(EVICTIONS, lambda t: t.evictions)),
    Table("Gangs", {"event": GANGS}, (_GANGS,), _counted(GANGS, lambda t: t.gangs)),
    Table("Waits", {"class": CLASSES, "priority": BANDS}, (_WAITS,), lambda s: s.counters.waits.items()),
    Table(
        "Times of gangs", {"phase": PHASES}, (_GANG_TIMES,),
        lambda s: [((phase,), found) for phase, found in s.counters.gang_times.items()],
    ),
    Table(
        "Rounds", {"result": ROUNDS}, (_ROUNDS,),
        lambda s: [((result,), found) for result, found in s.counters.rounds.items()],
    ),
)  # fmt: skip
