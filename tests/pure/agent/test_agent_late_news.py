"""What is still on its way when the agent ends: a look of NVML's thread, a scrape."""

from __future__ import annotations

import asyncio
from pathlib import Path

from agent_doubles import H200

from sharepod.agent.device import DeviceLook
from sharepod.agent.native import NativeArbiter
from sharepod.agent.node import Identity, Node
from sharepod.agent.registry import Registry


def node_in(directory: Path) -> Node:
    identity = Identity(
        node_name="n", version="0", region_abi_version=1, pid=1, driver_version="", runtime_directory=str(directory),
        policy="open", metrics_address="", hook_path="", features=(), settings={}, environment={},
    )  # fmt: skip
    arbiter = NativeArbiter()
    return Node(identity, Registry(arbiter, directory, [H200]), arbiter, directory, ())


def test_a_look_and_a_scrape_that_come_too_late_find_no_arbiter_and_do_no_harm(tmp_path: Path) -> None:
    node = node_in(tmp_path)

    async def end() -> object:
        node.serve_threads(asyncio.get_running_loop())
        node.close()
        node.looked([DeviceLook(H200.uuid)])
        return await asyncio.to_thread(node.status_from_thread)

    assert asyncio.run(end()) is node.published
