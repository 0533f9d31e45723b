"""Test that a replay follows its protocol, that its placements pass an independent check, and that policies differ."""

from collections import Counter

import pytest

from sharepod.scheduler.errors import PlacementError
from sharepod.scheduler.placement.request import NodeSpec, PodRequest, ShareRequest
from sharepod.scheduler.simulation.replay import Outcome, Placed, arrivals, check_lists, replay
from sharepod.scheduler.state.trace import NamedPod

NODES = [
    *(NodeSpec(f"big-{n}", 32_000, 65_536, 8, "A") for n in range(3)),
    *(NodeSpec(f"small-{n}", 24_000, 65_536, 2, "B") for n in range(6)),
    NodeSpec("none", 64_000, 65_536, 0),
]


def pod(name: str, milli: int, devices: int = 1, cpu_milli: int = 1000, models: str = "") -> NamedPod:
    return NamedPod(name, PodRequest(cpu_milli, 512, (ShareRequest(milli, devices, 0),), frozenset(models.split())))


PODS = [
    *(pod(f"whole-{n}", 1000, cpu_milli=4000) for n in range(8)),
    *(pod(f"most-{n}", 810) for n in range(6)),
    *(pod(f"half-{n}", 470, models="B") for n in range(6)),
    *(pod(f"bit-{n}", 160) for n in range(4)),
    pod("wide", 1000, 4),
    *(NamedPod(f"plain-{n}", PodRequest(2000, 1024)) for n in range(4)),
]


def run(seed: int) -> tuple[list[Placed], Outcome]:
    placed: list[Placed] = []
    outcome = replay(NODES, PODS, "worth", arrive=1.3, seed=seed, tell=placed.append)
    return placed, outcome


def test_the_same_seed_is_the_same_run_and_another_is_another() -> None:
    assert run(1) == run(1)
    assert run(1)[0] != run(2)[0]


def test_all_of_the_list_comes_once_before_any_comes_again() -> None:
    wanted = 3 * sum(pod.request.milli for pod in PODS)
    came = list(arrivals(PODS, wanted, 7))
    assert sorted(pod.name for pod in came[: len(PODS)]) == sorted(pod.name for pod in PODS)
    assert [pod.name for pod in came[: len(PODS)]] != [pod.name for pod in PODS]
    assert sum(pod.request.milli for pod in came[:-1]) < wanted <= sum(pod.request.milli for pod in came)
    assert len(Counter(pod.name for pod in came)) == len(PODS)


def test_lists_on_which_nothing_can_be_placed_or_that_would_never_end_are_refused() -> None:
    with pytest.raises(PlacementError, match="no node of the list has a device"):
        check_lists(NODES[-1:], PODS, 1.0)
    with pytest.raises(PlacementError, match="no pod of the list asks for a device"):
        check_lists(NODES, PODS[-2:], 1.0)
    with pytest.raises(PlacementError, match="5000000 are the limit: lower --arrive"):
        check_lists(NODES, [pod("tiny", 1), *PODS[-1:] * 1000], 1.0)


def test_a_run_that_ends_early_has_a_point() -> None:
    outcome = replay(NODES, [pod("one", 10)], "worth", arrive=0.0001, seed=0)
    [point] = outcome.points
    assert point.failed == (("share", 0, 1),)
