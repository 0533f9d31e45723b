"""Test tasks that run in parallel, each in a process of its own."""

import time

import pytest

from sharepod.cli.errors import CliError
from sharepod.cli.workers import side_by_side


def halved(number: int) -> int:
    """Return half of the number; a larger number takes longer."""
    if number % 2:
        raise CliError(f"{number} has no half")
    time.sleep(number / 100)
    return number // 2


@pytest.mark.parametrize("jobs", [1, 2, 9])
def test_results_come_in_the_order_of_the_tasks(jobs: int) -> None:
    assert [*side_by_side(halved, [8, 2, 6, 4], jobs)] == [4, 1, 3, 2]
    assert [*side_by_side(halved, [], jobs)] == []


def test_what_a_task_raises_is_raised_here_and_what_came_before_it_was_told() -> None:
    results = side_by_side(halved, [2, 7, 4], 1)
    assert next(results) == 1
    with pytest.raises(CliError, match="7 has no half"):
        next(results)
