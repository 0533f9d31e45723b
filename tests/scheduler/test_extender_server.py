"""The extender as kube-scheduler meets it: over HTTP, with an API server that is told what was chosen."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import time
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from cluster_world import node_body, pod_body, read
from extender_front import Front, until, with_front

from sharepod.scheduler.informer import PATIENCE_S


def test_what_is_bound_is_told_its_device_and_the_next_pod_does_not_get_the_same(tmp_path: Path) -> None:
    async def test(front: Front) -> None:
        found = {}
        for number in range(6):
            name = f"p{number}"
            node = await front.schedule(pod_body(name, 60), ["n1", "n2"])
            if number < 4:
                await until(lambda name=name: front.device(name) is not None, "no device was written")  # type: ignore[misc]
                found[name] = node, front.device(name)
            else:
                assert node == "", "four devices have no room for a fifth 60 %"
        assert len(set(found.values())) == 4
        assert all(device is not None and node in device for node, device in found.values())
        refused = await front.filter(pod_body("p9", 60), ["n1", "n2"])
        text = "no device with 60 percent left"
        assert (refused["NodeNames"], refused["FailedNodes"]) == ([], {"n1": text, "n2": text})

    with_front(tmp_path, test)


def test_fifty_pods_at_once_each_get_a_device_of_their_own_before_any_is_seen_bound(tmp_path: Path) -> None:
    async def test(front: Front) -> None:
        for number in range(3, 26):
            front.node(f"n{number}")
        names = [f"n{number}" for number in range(1, 26)]
        await until(lambda: all(front.cluster.use(name) is not None for name in names), "not all nodes reported")
        front.cluster.settle(time.monotonic())
        front.server.faults.lag_s = 0.3  # what is bound and written is seen late
        nodes = [await front.schedule(pod_body(f"p{number}", 80), names) for number in range(50)]
        assert all(nodes)
        front.server.faults.lag_s = 0.0
        await until(lambda: all(front.device(f"p{number}") for number in range(50)), "devices were not written")
        assert len({front.device(f"p{number}") for number in range(50)}) == 50

    with_front(tmp_path, test)


def test_until_everything_is_known_kube_scheduler_is_asked_to_come_again(tmp_path: Path) -> None:
    async def test(front: Front) -> None:
        front.server.put_node(node_body("n1", 2))
        await until(lambda: front.informer.listed, "not listed")
        front.server.put_node(node_body("n2", 2))
        await until(lambda: len(front.server.nodes) == 2, "no node")
        await until(lambda: "without: 2" in front.informer.not_ready(time.monotonic()), "the nodes are not known")
        answer = await front.filter(pod_body("p", 10), ["n1"])
        assert answer["NodeNames"] == []
        assert answer["Error"] == "SharePod's scheduler is starting: it waits for agents to report, nodes without: 2"
        async with front.client.get("/readyz") as response:
            assert response.status == 503
        async with front.client.get("/healthz") as response:
            assert response.status == 200
        front.node("n1")
        await until(lambda: "without: 1" in front.informer.not_ready(time.monotonic()), "the agent is not heard")
        assert not front.informer.not_ready(time.monotonic() + PATIENCE_S), "one that never reports is not waited for"
        answer = await front.filter(pod_body("p", 10), ["n1", "n2"])
        assert answer["NodeNames"] == ["n1"]
        assert answer["FailedAndUnresolvableNodes"] == {"n2": "no SharePod agent reports from it"}

    with_front(tmp_path, test, listed=False)


def test_a_node_that_falls_silent_is_avoided_and_taken_again_when_it_reports(tmp_path: Path) -> None:
    async def test(front: Front) -> None:
        now_s = time.monotonic()
        await front.informer.take_usage(now_s + 31)
        answer = await front.filter(pod_body("p", 10), ["n1", "n2"])
        assert answer["NodeNames"] == []
        front.report("n2")
        await front.informer.take_usage(time.monotonic())
        answer = await front.filter(pod_body("p", 10), ["n1", "n2"])
        assert answer["NodeNames"] == ["n2"]

    with_front(tmp_path, test)


def test_an_api_server_that_is_away_delays_no_answer_and_what_was_not_written_is_told_later(tmp_path: Path) -> None:
    async def test(front: Front) -> None:
        body = pod_body("p", 10)
        front.server.put(body)
        await front.server.stop()
        began = time.monotonic()
        answer = await front.filter(body, ["n1"])
        assert (answer["NodeNames"], answer["Error"]) == (["n1"], "")
        assert time.monotonic() - began < 1
        await until(lambda: front.annotator.failed > 0, "the write did not fail")
        await front.server.start()
        bound = pod_body("p", 10)
        bound["spec"]["nodeName"] = "n1"
        front.server.put(bound)
        await until(lambda: bool(front.cluster.untold()) or not front.cluster.settle(time.monotonic()), "not seen")
        await until(lambda: [pod.name for pod, _ in front.cluster.untold()] == ["p"], "the pod is not untold")
        [(pod, devices)] = front.cluster.untold()
        front.annotator.write(pod, devices)
        await until(lambda: front.device("p") is not None, "the device was not written")
        await until(lambda: front.cluster.untold() == [], "it is told now")

    with_front(tmp_path, test)


def test_a_pod_that_has_gone_and_come_again_under_its_name_is_not_told_the_devices_of_the_first(tmp_path: Path) -> None:
    async def test(front: Front) -> None:
        first, second = pod_body("p", 10), pod_body("p", 20)
        second["metadata"]["uid"] = "another"
        front.server.put(second)
        await front.filter(first, ["n1"])
        await until(lambda: front.server.requests["patch pods"] > 0, "nothing was written")
        await asyncio.sleep(0.1)
        assert front.device("p") is None

    with_front(tmp_path, test)


@pytest.mark.parametrize(
    ("body", "status", "says"),
    [
        (b"{", 400, "the body is no JSON"),
        (json.dumps({"Pod": pod_body("p", 10), "Nodes": {"items": []}}).encode(), 400, "set nodeCacheCapable: true"),
        (b"[" + b" " * 33 * 2**20 + b"]", 413, "the body is longer than"),
    ],
)
def test_what_is_not_understood_gets_a_status_and_a_line_and_changes_nothing(
    tmp_path: Path, body: bytes, status: int, says: str
) -> None:
    async def test(front: Front) -> None:
        for verb in ("filter", "prioritize"):
            with contextlib.suppress(aiohttp.ClientOSError):  # the rest of a body that is too long is not read
                async with front.client.post(f"/{verb}", data=io.BytesIO(body)) as response:
                    text = await response.text()
                    assert (response.status, says in text, text.count("\n")) == (status, True, 1)
        assert await front.schedule(pod_body("p", 10), ["n1"]) == "n1"

    with_front(tmp_path, test)


def test_the_room_of_a_pod_that_is_gone_is_given_before_its_agent_has_released_the_share(tmp_path: Path) -> None:
    async def test(front: Front) -> None:
        front.server.delete_node("n2")
        names = ["n1"]
        for number in range(2):
            name = f"p{number}"
            assert await front.schedule(pod_body(name, 100), names) == "n1"
            await until(lambda name=name: front.device(name) is not None, "no device was written")  # type: ignore[misc]
            pod = read(front.server.pods["default", name])
            front.agents["n1"].shares[pod.uid] = pod, pod.chosen[0]
        front.report("n1")
        await front.informer.take_usage(time.monotonic())
        assert (await front.filter(pod_body("p2", 100), names))["NodeNames"] == []
        front.server.delete("p0")
        await until(lambda: front.cluster.pod("uid-p0") is None, "the pod is there")
        assert (await front.filter(pod_body("p2", 100), names))["NodeNames"] == ["n1"]
        front.cluster.forget("uid-p2")
        front.report("n1")  # the agent still has both
        await front.informer.take_usage(time.monotonic())
        assert (await front.filter(pod_body("p2", 100), names))["NodeNames"] == ["n1"]
        assert (await front.filter(pod_body("p3", 100), names))["NodeNames"] == [], "one room is one pod's"

    with_front(tmp_path, test)


def test_victims_are_those_whose_devices_make_room(tmp_path: Path) -> None:
    async def test(front: Front) -> None:
        names = ["n1"]
        for number, (units, priority) in enumerate(((60, 1), (50, 2), (40, 3))):
            body = pod_body(f"p{number}", units)
            body["spec"]["priority"] = priority
            assert await front.schedule(body, names) == "n1"
            await until(lambda name=f"p{number}": front.device(name) is not None, "no device")  # type: ignore[misc]
        by_device: dict[str | None, list[str]] = {}
        for number in range(3):
            by_device.setdefault(front.device(f"p{number}"), []).append(f"uid-p{number}")
        assert sorted(by_device.values()) == [["uid-p0", "uid-p2"], ["uid-p1"]]
        urgent = pod_body("urgent", 100)
        urgent["spec"]["priority"] = 10

        async def preempt(*uids: str, body: dict[str, Any] = urgent) -> Any:
            victims = {"n1": {"Pods": [{"UID": uid} for uid in uids], "NumPDBViolations": 0}}
            answer = await front.call("preempt", {"Pod": body, "NodeNameToMetaVictims": victims})
            return {
                name: [pod["UID"] for pod in found["Pods"]] for name, found in answer["NodeNameToMetaVictims"].items()
            }

        assert await preempt("uid-p0") == {"n1": ["uid-p1"]}, "60 of one device and 50 of the other are no whole one"
        assert await preempt("uid-p0", "uid-p2") == {"n1": ["uid-p0", "uid-p2"]}, "these do make room"
        assert await preempt() == {"n1": ["uid-p1"]}
        assert await preempt("uid-p0", "other") == {"n1": ["other", "uid-p1"]}, "what is not ours stays"
        humble = pod_body("humble", 100)
        assert await preempt("uid-p0", body=humble) == {}, "nobody is of lower priority"
        small = pod_body("small", 10)
        small["spec"]["priority"] = 10
        assert await preempt("uid-p1", body=small) == {"n1": ["uid-p1"]}, "it fits: they go for something else"
        assert await preempt(body=small) == {}
        async with front.client.post("/preempt", json={"Pod": urgent, "NodeNameToVictims": {}}) as response:
            assert (response.status, "nodeCacheCapable" in await response.text()) == (400, True)

    with_front(tmp_path, test)


def test_nobody_else_goes_while_one_that_was_named_is_on_its_way_out(tmp_path: Path) -> None:
    async def test(front: Front) -> None:
        for number, name in enumerate(("n1", "n2")):
            for device in range(2):
                assert await front.schedule(pod_body(f"p{number}{device}", 60), [name]) == name
        urgent = pod_body("urgent", 60)
        urgent["spec"]["priority"] = 10
        asked = {"Pod": urgent, "NodeNameToMetaVictims": {name: {"Pods": []} for name in ("n1", "n2")}}

        async def victims() -> dict[str, Any]:
            found: dict[str, Any] = (await front.call("preempt", asked))["NodeNameToMetaVictims"]
            return found

        def is_leaving(uid: str) -> bool:
            pod = front.cluster.pod(uid)
            return pod is not None and pod.deleting

        await until(lambda: len(list(front.cluster.pods())) == 4, "not heard")
        named = await victims()
        assert set(named) == {"n1", "n2"}
        [uid] = (pod["UID"] for pod in named["n2"]["Pods"])
        name = uid.removeprefix("uid-")
        body = json.loads(json.dumps(front.server.pods["default", name]))
        body["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
        front.server.put(body)
        await until(lambda: is_leaving(uid), "not heard")
        assert await victims() == {}
        assert (await front.filter(urgent, ["n1", "n2"]))["NodeNames"] == [], "it is there still"
        front.server.faults.lag_s = 0.2  # kube-scheduler knows first, and asks at once
        front.server.delete(name)
        assert (await front.filter(urgent, ["n1", "n2"]))["NodeNames"] == ["n2"]
        assert set(await victims()) == {"n1"}, "whoever has gone is not waited for"

    with_front(tmp_path, test)
