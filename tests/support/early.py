"""A pytest plugin: what takes long begins early, because at the end of a run everything would wait for it.

Such a test has the marker `early`. Half of the workers begin with them, while the other half keeps the cores busy.
"""

import os
from typing import TypeVar

import pytest

T = TypeVar("T")


def pytest_configure(config: pytest.Config) -> None:
    """Make the marker."""
    config.addinivalue_line("markers", "early: takes ten seconds or longer, so it begins early")


@pytest.hookimpl(trylast=True)  # after the order of the tests was drawn
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Bring what takes long to the front, or where several workers run to the front of every second one's part."""
    early = [item for item in items if item.get_closest_marker("early")]
    others = [item for item in items if not item.get_closest_marker("early")]
    items[:] = spread(early, others, int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1")))


def spread(early: list[T], others: list[T], workers: int) -> list[T]:
    """Return all in an order of which `--dist=worksteal` gives each worker one piece, all pieces of equal length."""
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
