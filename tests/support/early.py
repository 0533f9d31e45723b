"""A pytest plugin that starts long tests early, because at the end of a run everything would wait for them.

A long test has the marker `early`. Half of the workers begin with such tests; the other half keeps the cores busy.
"""

import os
from typing import TypeVar

import pytest

T = TypeVar("T")


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker."""
    config.addinivalue_line("markers", "early: takes ten seconds or longer, so it begins early")


@pytest.hookimpl(trylast=True)  # it must run after the plugin that draws the order of the tests
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Move long tests to the front; with several workers, to the front of the part of every second worker."""
    early = [item for item in items if item.get_closest_marker("early")]
    others = [item for item in items if not item.get_closest_marker("early")]
    items[:] = spread(early, others, int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1")))


def spread(early: list[T], others: list[T], workers: int) -> list[T]:
    """Return all tests in the order in which `--dist=worksteal` cuts them: one piece of equal length per worker."""
    order: list[T] = []
    total, begin_with = len(early) + len(others), (workers + 1) // 2
    for worker in range(workers):
        end = len(order) + (total - len(order)) // (workers - worker)
        if worker % 2 == 0:
            order += early[worker // 2 :: begin_with]
        rest = max(0, end - len(order))
        order += others[:rest]
        others = others[rest:]
    return order
