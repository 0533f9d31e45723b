"""The metrics of the usage feed, one of the tables of `collector.py`. The feed keeps their counters in a `Counters`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from sharepod.process.metrics import Row, Table

if TYPE_CHECKING:
    from sharepod.process.metrics import AnyTable


@dataclass(slots=True)
class Counters:
    """The counters and the present state of the feed. Written on the agent's event loop, read on any thread."""

    schedulers: int = 0
    """How many addresses of schedulers the feed sends to."""
    answered_ns: dict[str, int] = field(default_factory=dict)
    """When each connected scheduler last answered (CLOCK_MONOTONIC). Replaced whole, because other threads read it."""
    messages: int = 0
    failures: int = 0


@dataclass(frozen=True, slots=True)
class Look:
    """The feed at one moment."""

    counters: Counters
    now_ns: int
    """CLOCK_MONOTONIC."""

    @property
    def lag_s(self) -> float:
        """Return how long ago the slowest connected scheduler has last answered; 0 if none is connected."""
        return max([0.0, *((self.now_ns - answered) / 1e9 for answered in self.counters.answered_ns.values())])


ROWS: Final[tuple[Row[Look], ...]] = (
    Row(
        "sharepod_feed_schedulers",
        "Schedulers to tell what the node uses: addresses found.",
        lambda k: k.counters.schedulers,
    ),
    Row(
        "sharepod_feed_connected", "Those of them that take what they are told.", lambda k: len(k.counters.answered_ns)
    ),
    Row("sharepod_feed_messages_total", "Messages sent.", lambda k: k.counters.messages),
    Row("sharepod_feed_failures_total", "Streams that failed, or could not be opened.", lambda k: k.counters.failures),
    Row(
        "sharepod_feed_lag_seconds",
        "How long ago the slowest of the connected schedulers has answered: up to 11 s when all is well.",
        lambda k: k.lag_s,
    ),
)


TABLES: Final[tuple[AnyTable[tuple[str, Look]], ...]] = (
    Table("Usage feed", {"node": ()}, ROWS, lambda told: [((told[0],), told[1])]),
)
"""Of the node's name and its feed."""
