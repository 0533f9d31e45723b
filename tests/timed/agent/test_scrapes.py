"""Test how much processor time a scrape costs the agent."""

import tempfile
import time
from contextlib import closing
from dataclasses import replace
from pathlib import Path

from agent_doubles import H200, ask, identity

from sharepod.agent.devices.device import DeviceStatus, NodeStatus
from sharepod.agent.metrics.collector import SHARE_ROWS, NodeMetrics
from sharepod.agent.native import NativeArbiter
from sharepod.agent.shares.registry import Registry
from sharepod.process.metrics_server import Pages

OPENMETRICS = "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5"
SCRAPE_S = 0.03


class Still:
    """A node that takes its status from a registry; it has no event loop to ask."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self.identity = identity(Path())

    def status_from_thread(self) -> NodeStatus:
        return NodeStatus(0, self._registry.statuses((), 0), (DeviceStatus(H200),))


def test_a_scrape_of_a_hundred_shares_takes_less_than_thirty_milliseconds() -> None:
    # The directories of shares are on tmpfs, as those of an agent are.
    with (
        tempfile.TemporaryDirectory(prefix="sharepod-test-", dir="/dev/shm") as directory,
        closing(NativeArbiter()) as arbiter,
    ):
        registry = Registry(arbiter, Path(directory), [H200])
        for number in range(100):
            one = replace(ask(0, name=f"share-{number}"), labels={"namespace": "team-a", "pod": f"train-{number}"})
            registry.register(one, unix_ns=1, now_ns=0)
        pages = Pages(NodeMetrics(Still(registry)))  # type: ignore[arg-type]
        taken_s = []
        for _ in range(30):
            before_s = time.thread_time()
            _, text = pages.answer(OPENMETRICS)
            taken_s.append(time.thread_time() - before_s)
    assert text.count(b'pod="train-') > 100 * len(SHARE_ROWS)
    assert min(taken_s) < SCRAPE_S
