"""The metrics of the usage feed: the third part of the table in `metrics.py`. What is counted is in `Tally`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from sharepod.agent import exposition

if TYPE_CHECKING:
    from collections.abc import Callable


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
class Row:
    """One metric; `value` takes the time, too."""

    name: str
    doc: str
    value: Callable[[Tally, int], float]

    @property
    def kind(self) -> str:
        """Its Prometheus type."""
        return "counter" if self.name.endswith("_total") else "gauge"


def _lag_s(tally: Tally, now_ns: int) -> float:
    return max([0.0, *((now_ns - answered) / 1e9 for answered in tally.answered_ns.values())])


ROWS: Final = (
    Row(
        "sharepod_feed_schedulers", "Schedulers to tell what the node uses: addresses found.", lambda t, _: t.schedulers
    ),
    Row("sharepod_feed_connected", "Those of them that take what they are told.", lambda t, _: len(t.answered_ns)),
    Row("sharepod_feed_messages_total", "Messages sent.", lambda t, _: t.messages),
    Row("sharepod_feed_failures_total", "Streams that failed, or could not be opened.", lambda t, _: t.failures),
    Row(
        "sharepod_feed_lag_seconds",
        "How long ago the slowest of the connected schedulers has answered: up to 11 s when all is well.",
        _lag_s,
    ),
)


def text(node: str, tally: Tally, now_ns: int) -> str:
    """Return the series of the feed."""
    labels = exposition.labelled(("node",), (node,))
    parts = "".join(
        exposition.header(row.name, row.kind, row.doc) + exposition.sample(row.name, labels) for row in ROWS
    )
    return exposition.Template(parts).filled([row.value(tally, now_ns) for row in ROWS])


def tables() -> tuple[tuple[str, tuple[str, ...], list[tuple[str, str, str]]], ...]:
    """Return title, labels and (name, type, meaning) of each table for docs/metrics.md."""
    return (("Usage feed", ("node",), [(r.name, r.kind, r.doc) for r in ROWS]),)
