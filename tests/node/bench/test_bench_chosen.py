"""Test the choice that the bench measures: requests choose the busy device, measured use the idle one."""

import pytest

from bench.cluster.chosen import _without_numbers, choose
from sharepod.agent.shares.share import ShareClass
from sharepod.scheduler.state.usage import (
    DeviceFacts,
    DeviceNumbers,
    DeviceUse,
    NodeFacts,
    NodeUse,
    ShareTerms,
    ShareUse,
)


def device(index: int, request_percent: int, used_percent: int) -> DeviceUse:
    facts = DeviceFacts(index, f"GPU-{index}", "H200", 141 * 2**30, True, "", False, -1, ())
    terms = ShareTerms(f"share{index}", "", "", "", "", ShareClass.STANDARD, request_percent * 1000, 100_000, 0, False)
    used = used_percent * 1000
    numbers = DeviceNumbers(used_1s_millipercent=used, used_1m_millipercent=used)
    return DeviceUse(facts, numbers, (ShareUse(terms),))


@pytest.mark.parametrize("busy", [0, 1])
def test_a_latency_share_goes_where_it_is_idle_when_that_is_known(busy: int) -> None:
    promised = {busy: (60, 100), 1 - busy: (40, 1)}
    use = NodeUse(NodeFacts("bench", "0"), tuple(device(index, *promised[index]) for index in range(2)))
    assert choose(_without_numbers(use)) == busy, "by requests the fullest that fits"
    assert choose(use) == 1 - busy
