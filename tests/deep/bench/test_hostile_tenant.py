"""Test that a hostile tenant costs the share beside it less than twice what a tenant costs that is only as busy."""

from bench.bars import hostile
from bench.bars.simulated import SimulatedRig
from bench.scale import QUICK


def test_rings_locks_lies_and_files_of_one_tenant_do_not_double_the_wait_of_another() -> None:
    [line] = hostile.measure(SimulatedRig(QUICK))
    assert line.met, (line.result, line.detail)
