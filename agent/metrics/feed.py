"""The metrics of the usage feed: the third part of the table in `metrics.py`. What is counted is in `Tally`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from sharepod.process.metrics import Row, Table

if TYPE_CHECKING:
    from sharepod.process.metrics import AnyTable


@dataclass(slots=True)
class Tally:
    """What the feed has done so far, and how it stands. Written on the agent's loop, read on any thread."""

    schedulers: int = 0
    """Addresses to tell."""
    answered_ns: dict[str, int] = field(default_factory=dict)
    """When each of them that is connected has answered last (CLOCK_MONOTONIC). Replaced whole."""
    messages: int = 0
    failures: int = 0


@dataclass(frozen=True, slots=True)
class Look:
    """The feed at one moment."""

    tally: Tally
    now_ns: int
    """CLOCK_MONOTONIC."""

    @property
    def lag_s(self) -> float:
        """Return how long ago the slowest scheduler that is connected has answered."""
        return max([0.0, *((self.now_ns - answered) / 1e9 for answered in self.tally.answered_ns.values())])


ROWS: Final[tuple[Row[Look], ...]] = (
    Row(
        "sharepod_feed_schedulers",
        "Schedulers to tell what the node uses: addresses found.",
        lambda k: k.tally.schedulers,
    ),
    Row("sharepod_feed_connected", "Those of them that take what they are told.", lambda k: len(k.tally.answered_ns)),
    Row("sharepod_feed_messages_total", "Messages sent.", lambda k: k.tally.messages),
    Row("sharepod_feed_failures_total", "Streams that failed, or could not be opened.", lambda k: k.tally.failures),
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
