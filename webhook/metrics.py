"""The webhook's metrics: its requests, its answers, and how long they took. Pure.

`python -m sharepod.webhook.metrics` prints docs/webhook-metrics.md.
"""

from __future__ import annotations

import sys
from collections import Counter
from typing import TYPE_CHECKING, Final

from sharepod.process import metrics
from sharepod.process.metrics import Histogram, HistogramRow, Row, Table

if TYPE_CHECKING:
    from sharepod.process.metrics import AnyTable
    from sharepod.process.metrics_page import Family

HANDLERS: Final = ("compatibility", "gate")
"""Each handler answers at the path with its name."""
RESULTS: Final = ("unchanged", "changed", "refused", "malformed")
BOUNDS_S: Final = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)
"""The last bound: the API server gives up after 5 s."""


class WebhookMetrics:
    """The webhook's collector. The server counts on its loop, and a scrape reads on another thread."""

    def __init__(self) -> None:
        """Begin at zero."""
        self.requests: Counter[tuple[str, str]] = Counter()
        self.times = {handler: Histogram(BOUNDS_S) for handler in HANDLERS}

    def answered(self, handler: str, result: str, seconds: float) -> None:
        """Count a request to one of HANDLERS that was answered with one of RESULTS."""
        self.requests[handler, result] += 1
        self.times[handler].observe(seconds)

    def collect(self) -> list[Family]:
        """Return all metrics as of now."""
        return metrics.families(TABLES, self)


REQUESTS: Final[Row[int]] = Row(
    "sharepod_webhook_requests_total",
    "Requests by what became of them: a pod was admitted unchanged, changed or refused; malformed was no review of a "
    "pod, too long, or too slow to arrive.",
    float,
)
SECONDS: Final[HistogramRow[Histogram]] = HistogramRow(
    "sharepod_webhook_request_seconds",
    "How long answers took, from the headers of a request on: its body, the decision, and the waiting behind others.",
    BOUNDS_S,
    lambda h: h.seconds,
)
TABLES: Final[tuple[AnyTable[WebhookMetrics], ...]] = (
    Table(
        "Requests",
        {"handler": HANDLERS, "result": RESULTS},
        (REQUESTS,),
        lambda m: [((one, result), m.requests[one, result]) for one in HANDLERS for result in RESULTS],
    ),
    Table("Times", {"handler": HANDLERS}, (SECONDS,), lambda m: [((one,), found) for one, found in m.times.items()]),
)


def manual() -> str:
    """Return docs/webhook-metrics.md."""
    introduction = (
        "Generated from `webhook/metrics.py` by `python -m sharepod.webhook.metrics`; a test compares the two.",
        "",
        "Each replica serves its own, at `--metrics-listen`. Series are there from the start, at zero.",
    )
    return metrics.manual("Metrics of SharePod's webhook", introduction, TABLES)


if __name__ == "__main__":
    sys.stdout.write(manual())
