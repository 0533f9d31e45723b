"""What is still on its way when the agent ends: a look of NVML's thread, a scrape."""

from __future__ import annotations

import asyncio
from pathlib import Path

from agent_doubles import H200, identity

from sharepod.agent.device import DeviceLook
from sharepod.agent.native import NativeArbiter
from sharepod.agent.node import Node
from sharepod.agent.registry import Registry


async def test_a_look_and_a_scrape_that_come_too_late_find_no_arbiter_and_do_no_harm(tmp_path: Path) -> None:
    arbiter = NativeArbiter()
    node = Node(identity(tmp_path), Registry(arbiter, tmp_path, [H200]), arbiter, tmp_path, ())
    node.serve_threads(asyncio.get_running_loop())
    node.close()
    node.looked([DeviceLook(H200.uuid)])
    assert await asyncio.to_thread(node.status_from_thread) is node.published
