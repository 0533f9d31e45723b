"""Test that a production trace is placed better than by the published policy."""

from pathlib import Path

import pytest
from reference import check_placements

from sharepod.scheduler.simulation.replay import Placed, replay
from sharepod.scheduler.state.trace import read_nodes, read_pods


def test_a_production_trace_is_replayed_better_than_by_what_is_published(shared_data: Path) -> None:
    nodes = read_nodes(shared_data / "openb" / "openb_node_list_gpu_node.csv.gz")
    pods = read_pods(shared_data / "openb" / "openb_pod_list_gpushare100.csv.gz")
    placed: list[Placed] = []
    ours = replay(nodes, pods, "worth", arrive=1.0, seed=0, tell=placed.append).points[-1]
    theirs = replay(nodes, pods, "fgd", arrive=1.0, seed=0).points[-1]
    assert 100 * theirs.allocated == pytest.approx(86.64, abs=1.0)  # the published mean of ten seeds
    assert ours.allocated > theirs.allocated + 0.005
    check_placements(nodes, pods, placed)
