"""A pod is explained over HTTP, as the command asks for it."""

from __future__ import annotations

import asyncio
import re
import time
from typing import TYPE_CHECKING

import pytest
from cluster_world import node_body, pod_body
from status_front import Front, with_front
from yarl import URL

from rig.until import eventually
from sharepod.cli import pods
from sharepod.cli.errors import CliError

if TYPE_CHECKING:
    from pathlib import Path


def test_a_pod_is_explained_as_the_command_shows_it(tmp_path: Path) -> None:
    async def test(front: Front) -> None:
        front.server.put_node(node_body("n3", 2))  # its agent never reports
        for number in range(3):
            assert front.schedule(pod_body(f"p{number}", 60))
        front.server.put(pod_body("waits", 70))
        front.server.put(pod_body("wide", 200))
        front.server.put(pod_body("wrong", 30, {"sharepod.io/limit": "10"}))
        await eventually(
            lambda: all(front.cluster.pod(f"uid-{name}") for name in ("waits", "wide", "wrong")), "not seen"
        )
        await eventually(lambda: "n3" in front.cluster.names(), "the node is not seen")
        await eventually(
            lambda: all(front.cluster.assumed(f"uid-p{number}") is None for number in range(3)), "not bound"
        )

        url = f"http://127.0.0.1:{front.port}"

        async def said(name: str, namespace: str = "default") -> str:
            found = await asyncio.to_thread(pods.ask, url, namespace, name)
            return "\n".join(pods.lines(found, url, 200))

        bound = await said("p0")
        assert f"default/p0: it is bound to {front.server.pods['default', 'p0']['spec']['nodeName']}" in bound
        assert re.search(rf"container main: device \d \({front.device('p0')}\)\n", bound), bound
        assert "its annotation names its devices, its agent does not report its shares yet" in bound
        waits = await said("waits")
        assert (
            "kube-scheduler places it by what nodes have left in all; by devices its shares fit on 1 of 3 nodes"
            in waits
        )
        assert re.search(r"1  n[12]: device \d, the best\n +left: .*100 % and 80 GiB", waits), waits
        assert re.search(r"1 node: no device with 70 percent left\n +n[12]: 0 40 % and 32 GiB, 1 40 %", waits), waits
        assert "1 node: no SharePod agent reports from it\n      n3: nothing is known of it" in waits
        assert "2 nodes: fewer than 2 devices free" in await said("wide")
        assert "limit 10 % is below the request 30 %" in await said("wrong")
        for where, name, text in (
            ("default", "wait", "did you mean waits?"),
            ("default", "other", "name a pod of that namespace"),
            ("team", "waits", "one of that name is in namespace default: add -n default"),
            ("default", "x" * 253, "name a pod of that namespace"),
        ):
            with pytest.raises(CliError, match=re.escape(f"pod {where}/{name} is not known: {text}")):
                await said(name, where)
        for path in ("default/a%0Ab%1B%5B31m", "default/" + "x" * 5000):
            async with front.client.get(URL(f"/explain/{path}", encoded=True)) as response:
                text = await response.text()
                assert (response.status, text.count("\n"), text.isascii()) == (404, 1, True)
                assert "\x1b" not in text
                assert len(text) < 700

    with_front(tmp_path, test)


def test_before_everything_is_known_an_explanation_says_so(tmp_path: Path) -> None:
    async def test(front: Front) -> None:
        front.server.put(pod_body("waits", 70))
        front.server.put_node(node_body("n1", 2))
        await eventually(lambda: front.cluster.pod("uid-waits") is not None, "not seen")
        await eventually(lambda: "without: 1" in front.observer.not_ready(time.monotonic()), "the node is not seen")
        async with front.client.get("/explain/default/waits") as response:
            assert (response.status, "without: 1" in (await response.json())["incomplete"]) == (200, True)
        async with front.client.get("/explain/default/other") as response:
            assert (response.status, "without: 1" in await response.text()) == (503, True), "it may be there"

    with_front(tmp_path, test, listed=False)
