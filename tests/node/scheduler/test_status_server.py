"""The status server over HTTP, and what its replica knows: with an API server's double and agents that a test tells."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest
from cluster_world import node_body, pod_body, read
from status_front import Front, with_front

from rig.until import eventually
from sharepod.scheduler.observer import PATIENCE_S

if TYPE_CHECKING:
    from pathlib import Path


def test_until_everything_is_known_it_is_alive_and_not_ready(tmp_path: Path) -> None:
    async def answers(front: Front, path: str) -> tuple[int, str]:
        async with front.client.get(path) as response:
            return response.status, await response.text()

    async def test(front: Front) -> None:
        front.server.put_node(node_body("n1", 2))
        await eventually(lambda: front.observer.listed, "not listed")
        front.server.put_node(node_body("n2", 2))
        await eventually(lambda: "without: 2" in front.observer.not_ready(time.monotonic()), "the nodes are not known")
        why = "SharePod's scheduler is starting: it waits for agents to report, nodes without: 2\n"
        assert await answers(front, "/readyz") == (503, why)
        assert await answers(front, "/healthz") == (200, "ok\n")
        front.node("n1")
        await eventually(lambda: "without: 1" in front.observer.not_ready(time.monotonic()), "the agent is not heard")
        assert not front.observer.not_ready(time.monotonic() + PATIENCE_S), "one that never reports is not waited for"
        assert await answers(front, "/readyz") == (200, "ok\n")
        assert front.schedule(pod_body("p", 200)) == "n1"
        assert front.schedule(pod_body("p", 200)) == "", "no SharePod agent reports from n2"

    with_front(tmp_path, test, listed=False)


@pytest.mark.parametrize(("verb", "status"), [("filter", 404), ("prioritize", 404), ("preempt", 404), ("queue", 405)])
def test_nothing_is_asked_of_it_by_post(tmp_path: Path, verb: str, status: int) -> None:
    async def test(front: Front) -> None:
        async with front.client.post(f"/{verb}", json={"Pod": pod_body("p", 10), "NodeNames": ["n1"]}) as response:
            assert response.status == status

    with_front(tmp_path, test)


def test_a_node_that_falls_silent_is_avoided_and_taken_again_when_it_reports(tmp_path: Path) -> None:
    async def test(front: Front) -> None:
        now_s = time.monotonic()
        await front.observer.take_usage(now_s + 31)
        assert front.schedule(pod_body("p", 10)) == ""
        front.report("n2")
        await front.observer.take_usage(time.monotonic())
        assert front.schedule(pod_body("p", 10)) == "n2"

    with_front(tmp_path, test)


def test_the_room_of_a_pod_that_is_gone_is_given_before_its_agent_has_released_the_share(tmp_path: Path) -> None:
    async def test(front: Front) -> None:
        front.server.delete_node("n2")
        await eventually(lambda: front.cluster.node("n2") is None, "the node is there")
        for name in ("p0", "p1"):
            assert front.schedule(pod_body(name, 100)) == "n1"
            pod = read(front.server.pods["default", name])
            front.agents["n1"].shares[pod.uid] = pod, pod.chosen[0]
        front.report("n1")
        await front.observer.take_usage(time.monotonic())
        assert front.schedule(pod_body("p2", 100)) == ""
        await eventually(lambda: all(front.cluster.pod(f"uid-p{number}") for number in range(2)), "not seen")
        front.server.delete("p0")
        await eventually(lambda: front.cluster.pod("uid-p0") is None, "the pod is there")
        front.report("n1")  # the agent still has both
        await front.observer.take_usage(time.monotonic())
        assert front.schedule(pod_body("p2", 100)) == "n1"
        assert front.schedule(pod_body("p3", 100)) == "", "one room is one pod's"

    with_front(tmp_path, test)
