"""Test the way from kubelet's calls to the node's shares, with real processes of plugin and agent."""

import asyncio
import json
import os
import re
import resource
import shutil
import signal
import sys
from pathlib import Path

import pytest

from rig.agent import scrape
from rig.cluster.apiserver import unused_port
from rig.cluster.kubelet_pods import StartFailed
from rig.cluster.node import PluginNode, plugin_node
from rig.until import eventually
from sharepod.scheduler.feed.usage_server import UsageServer
from sharepod.scheduler.state.usage import NodeFacts, NodeUse, UsageBook

GIB = 1 << 30


async def test_a_pod_gets_what_it_asks_for_and_keeps_it_to_its_end() -> None:
    async with plugin_node() as node:
        terms = {"sharepod.io/limit": "80", "sharepod.io/memory": "10Gi", "sharepod.io/class": "latency"}
        train = await node.admit("train", {"main": 70}, annotations=terms)
        serve = await node.admit("serve", {"main": 30})
        for pod in (train, serve):
            await node.kubelet.start(pod, "main")
        shares = await node.shares()
        big, small = shares["train/main"], shares["serve/main"]
        assert big.labels["pod_uid"] == train.uid
        (held,) = big.devices
        assert (held.request_millipercent, held.limit_millipercent) == (70_000, 80_000)
        assert held.memory_limit_bytes == 10 * GIB
        assert small.devices[0].device_uuid == held.device_uuid  # a request of 30 fits best beside 70
        assert small.devices[0].memory_limit_bytes % (1 << 20) == 0
        assert 40 * GIB < small.devices[0].memory_limit_bytes < 45 * GIB  # 30 % of an H200
        edits = node.cdi_edits(big.id)
        assert train.containers["main"].response is not None
        assert [item.name for item in train.containers["main"].response.cdi_devices] == [f"sharepod.io/share={big.id}"]
        assert f"CUDA_VISIBLE_DEVICES={held.device_uuid}" in edits["env"]
        assert all(mount["hostPath"].startswith(f"{node.runtime}/") for mount in edits["mounts"][:3])
        await eventually(lambda: "ShareReady: container main: share " in "".join(node.events("train")), node.log)
        node.show(serve, {"sharepod.io/limit": "fifty"})
        await eventually(lambda: any("TermsNotApplied" in text for text in node.events("serve")), node.log)

        await node.end(node.plugin, signal.SIGKILL)
        await node.start_plugin()
        await node.end(node.agent, signal.SIGKILL)
        await node.start_agent()
        await node.kubelet.restart(train, "main", patience_s=30)
        again = (await node.shares())["train/main"]
        assert (again.id, again.devices[0].device_uuid) == (big.id, held.device_uuid)

        shutil.rmtree(node.cdi)  # as after a reboot: /run is empty, and kubelet starts the same containers
        await node.end(node.agent, signal.SIGKILL)
        shutil.rmtree(node.runtime)
        await node.start_agent()
        await node.kubelet.restart(train, "main", patience_s=30)
        assert (await node.shares())["train/main"].id == big.id
        assert node.cdi_edits(big.id)["mounts"] == edits["mounts"]

        node.kubelet.finish(train)
        assert (await node.shares())["train/main"].id == big.id  # the API server still shows the pod running
        node.show(train, {}, phase="Succeeded")
        await eventually(lambda: not list(node.cdi.iterdir()), node.log)
        assert await node.shares() == {}


@pytest.mark.early
async def test_no_room_and_wrong_terms_are_told_and_tried_again() -> None:
    async with plugin_node() as node:
        wrong = await node.admit("wrong", {"main": 30}, annotations={"sharepod.io/limits": "50"})
        with pytest.raises(StartFailed, match=r"sharepod.io/limits"):
            await node.kubelet.start(wrong, "main")
        assert await node.shares() == {}
        node.show(wrong, {"sharepod.io/limit": "50"})
        await node.kubelet.start(wrong, "main")
        first = await node.admit("first", {"main": 60})
        second = await node.admit("second", {"main": 60})
        await node.kubelet.start(first, "main")
        await node.kubelet.start(second, "main")
        third = await node.admit("third", {"main": 50})  # for kubelet the node has 50 units, but on two devices
        with pytest.raises(
            StartFailed, match=r"request 50 % .* fits on none of the 2 devices: the roomiest, 1, has 40 %"
        ):
            await node.kubelet.start(third, "main")
        refused = "ShareNotReady: container main: request 50 %"
        await eventually(lambda: any(refused in text for text in node.events("third")), node.log)
        node.kubelet.finish(second)
        node.show(second, {}, phase="Succeeded")
        await node.kubelet.start(third, "main", patience_s=60)


async def test_containers_of_a_pod_may_be_on_one_device_and_an_init_container_makes_room() -> None:
    async with plugin_node() as node:
        await node.kubelet.start(await node.admit("other", {"main": 40}), "main")
        together = {"sharepod.io/same-device": "true"}
        pod = await node.admit("pod", {"a": 20, "b": 70}, init={"prepare": 70}, annotations=together)
        await node.kubelet.start(pod, "prepare")
        node.kubelet.end(pod, "prepare")
        await node.kubelet.start(pod, "a")
        await node.kubelet.start(pod, "b")
        shares = await node.shares()
        assert {name for name in shares if name.startswith("pod/")} == {"pod/a", "pod/b"}
        assert shares["pod/a"].devices[0].device_uuid == shares["pod/b"].devices[0].device_uuid


async def test_a_container_that_did_not_ask_for_one_device_does_not_draw_the_others_to_its_own() -> None:
    async with plugin_node() as node:
        together = {f"sharepod.io/{name}.same-device": "true" for name in ("a", "b")}
        pod = await node.admit("pod", {"alone": 80, "a": 30, "b": 20}, annotations=together)
        for name in ("alone", "a", "b"):
            await node.kubelet.start(pod, name)
        shares = await node.shares()
        on = {name: shares[f"pod/{name}"].devices[0].device_uuid for name in ("alone", "a", "b")}
        assert on["a"] == on["b"] != on["alone"]


async def refusal(node: PluginNode, *command: str) -> str:
    """Start a plugin, behind the words of `command`; it must end at once; return why."""
    plugin = [*command, sys.executable, "-m", "sharepod.deviceplugin.main", *node.plugin_arguments()]
    process = await asyncio.create_subprocess_exec(*plugin, stderr=asyncio.subprocess.PIPE)
    _, text = await asyncio.wait_for(process.communicate(), 60)
    assert process.returncode == 1
    (line,) = text.decode().splitlines()
    assert line.startswith("sharepod-deviceplugin: ")
    return line.removeprefix("sharepod-deviceplugin: ")


@pytest.mark.early
async def test_a_node_of_hidden_processes_or_where_shares_reach_no_container_is_refused_with_the_remedy() -> None:
    async with plugin_node() as node:
        await node.end(node.plugin)
        user = [] if os.getuid() == 0 else ["--user", "--map-root-user"]
        cause = await refusal(node, "unshare", *user, "--pid", "--fork", "--mount-proc", "--kill-child")
        assert cause.startswith("kubelet's process is not to be seen")
        assert "set hostPID: true" in cause
        for kubelet, runtime, remedy in (
            ("v1.30.14", "containerd://2.1.9", "1.31 or later is needed"),
            ("v1.36.2", "containerd://1.7.28", "set runtime_cdi to on"),
        ):
            node.runs(kubelet, runtime)
            cause = await refusal(node)
            assert remedy in cause
            assert f"SharePodNodeNotServed: {cause}" in node.events("n1")
        node.flags = ["--runtime-cdi", "on"]
        await node.start_plugin()
        pod = await node.admit("pod", {"main": 30})
        await node.kubelet.start(pod, "main")
        response = pod.containers["main"].response
        assert response is not None
        assert (len(response.cdi_devices), list(response.mounts)) == (1, [])
        # If the operator is wrong and the runtime has no CDI, the container sees no device.
        assert dict(response.envs) == {"NVIDIA_VISIBLE_DEVICES": "void"}
        assert list(await node.shares()) == ["pod/main"]


async def test_a_node_without_a_driver_says_so_and_offers_its_devices_when_one_is_loaded(tmp_path: Path) -> None:
    driver = tmp_path / "version"
    async with plugin_node() as node:
        await node.end(node.plugin)
        node.flags = ["--wait-for", str(driver)]
        waiting = await node.spawn_plugin()
        told = f"SharePodNodeWaits: no NVIDIA driver on this node ({driver}): it offers no shares until one is loaded"
        await eventually(lambda: any(text.startswith(told) for text in node.events("n1")), node.log)
        assert node.kubelet.allocatable == 0
        await node.end(waiting)
        assert waiting.returncode == 0
        node.plugin = await node.spawn_plugin()
        driver.touch()
        await eventually(lambda: node.kubelet.allocatable == 200, node.log)


@pytest.mark.early
async def test_a_device_that_nvidias_plugin_has_too_takes_no_share() -> None:
    async with plugin_node() as node:
        first, second = await node.devices()
        await node.kubelet.start(await node.admit("held", {"main": 30}), "main")
        assert (await node.shares())["held/main"].devices[0].device_uuid == first
        node.kubelet.others["nvidia.com/gpu"] = [f"{first}::0", "GPU-of-somebody"]
        await eventually(lambda: node.kubelet.allocatable == 100, node.log)
        assert "device in two device plugins" in node.log()
        told = "SharePodDevicesUnhealthy: 1 of 2 devices take no new shares: device 0: NVIDIA's device plugin"
        await eventually(lambda: any(told in text for text in node.events("n1")), node.log)
        (event,) = [body for body in node.api.events.values() if body["involvedObject"]["name"] == "n1"]
        assert (event["involvedObject"]["kind"], event["metadata"]["namespace"]) == ("Node", "default")
        pod = await node.admit("pod", {"main": 60})  # the agent would pick the first device, where it fits better
        await node.kubelet.start(pod, "main")
        shares = await node.shares()
        assert shares["pod/main"].devices[0].device_uuid == second
        assert shares["held/main"].devices[0].device_uuid == first  # a running share stays where it is
        chosen = await node.admit("chosen", {"main": 10}, annotations={"sharepod.io/device": first})
        with pytest.raises(StartFailed, match="which the scheduler chose, is not offered on this node"):
            await node.kubelet.start(chosen, "main")


async def test_a_full_disk_ends_no_pod_and_its_containers_start_when_there_is_room() -> None:
    async with plugin_node() as node:
        await node.kubelet.start(await node.admit("running", {"main": 20}), "main")
        assert node.plugin is not None
        before = resource.prlimit(node.plugin.pid, resource.RLIMIT_FSIZE)
        # Every write fails, as on a full disk.
        resource.prlimit(node.plugin.pid, resource.RLIMIT_FSIZE, (0, before[1]))
        pod = await node.admit("pod", {"main": 30}, init={"prepare": 40})  # must succeed: an error would fail the pod
        with pytest.raises(StartFailed, match=r"allocations.json cannot be written: .*: make room"):
            await node.kubelet.start(pod, "prepare")
        assert pod.phase == "Pending"
        assert (node.state / "allocations.json").stat().st_size > 0
        resource.prlimit(node.plugin.pid, resource.RLIMIT_FSIZE, before)
        await node.kubelet.start(pod, "prepare", patience_s=30)
        node.kubelet.end(pod, "prepare")
        await node.end(node.plugin, signal.SIGKILL)
        await node.start_plugin()
        await node.kubelet.start(pod, "main", patience_s=30)
        assert sorted(await node.shares()) == ["pod/main", "running/main"]


@pytest.mark.early
async def test_the_plugins_counters_are_among_the_agents_metrics() -> None:
    address = f"127.0.0.1:{unused_port()}"

    def metrics() -> dict[str, float]:
        try:
            lines = scrape(address).splitlines()
        except OSError:  # the agent is starting
            return {}
        found = [line.rpartition(" ") for line in lines if line.startswith("sharepod_plugin_")]
        return {re.sub(r'node="[^"]*",?', "", name).replace("{}", ""): float(value) for name, _, value in found}

    async with plugin_node(metrics=("--metrics-listen", address)) as node:
        wrong = await node.admit("wrong", {"main": 30}, annotations={"sharepod.io/limits": "50"})
        with pytest.raises(StartFailed):
            await node.kubelet.start(wrong, "main")
        await node.kubelet.start(await node.admit("good", {"main": 30}), "main")
        ready = 'sharepod_plugin_container_starts_total{result="ready"}'
        await eventually(lambda: metrics().get(ready) == 1, node.log)
        found = metrics()
        assert found['sharepod_plugin_container_starts_total{result="refused"}'] == 1
        assert (found["sharepod_plugin_reporting"], found["sharepod_plugin_serving"]) == (1, 1)
        assert (found["sharepod_plugin_allocations"], found["sharepod_plugin_unbound_allocations"]) == (2, 1)
        assert found["sharepod_plugin_registrations_total"] == 1
        assert found["sharepod_plugin_allocate_seconds_count"] == found["sharepod_plugin_pre_start_seconds_count"] == 2
        (node.kubelet.plugins / "kubelet.sock").unlink()  # kubelet has ended
        await eventually(lambda: metrics()["sharepod_plugin_serving"] == 0, node.log)
        await node.end(node.agent, signal.SIGKILL)  # the plugin keeps the counters, so a new agent shows them too
        await asyncio.sleep(2)  # the plugin looks at the devices every second
        await node.start_agent()
        await eventually(lambda: metrics().get(ready) == 1, node.log)
        await eventually(lambda: metrics().get('sharepod_plugin_errors_total{side="agent"}', 0) > 0, node.log)


async def test_only_what_the_operator_lists_is_offered_and_the_scheduler_hears_that_and_whose_the_shares_are() -> None:
    book = UsageBook()
    server = UsageServer(book, None)
    port = await server.start("127.0.0.1:0", None)

    def told() -> NodeUse:
        return book.node("n1") or NodeUse(NodeFacts("n1", ""), ())

    feed = ("--scheduler-address", f"127.0.0.1:{port}", "--node-name", "n1")
    try:
        async with plugin_node("2xH200", feed) as node:
            await eventually(lambda: [device.facts.offered for device in told().devices] == [True, True], node.log)
            pod = await node.admit("train", {"main": 70})
            await node.kubelet.start(pod, "main")
            await eventually(lambda: any(device.shares for device in told().devices), node.log)
            (share,) = [share.terms for device in told().devices for share in device.shares]
            assert (share.pod_uid, share.namespace, share.pod) == (pod.uid, "default", "train")
            assert (share.container, share.request_millipercent) == ("main", 70_000)
            await node.end(node.plugin)
            second = told().devices[1].facts.uuid
            node.offer = [second, "GPU-of-another-node"]
            node.kubelet.others["nvidia.com/gpu"] = ["0"]  # NVIDIA's plugin has given out the other device, by index
            await node.start_plugin(100)
            assert node.kubelet.capacity == 100
            await eventually(lambda: [device.facts.offered for device in told().devices] == [False, True], node.log)
            for name, size in (("a", 30), ("b", 70)):
                await node.kubelet.start(await node.admit(name, {"main": size}), "main")
            shares = await node.shares()
            assert {shares[f"{name}/main"].devices[0].device_uuid for name in "ab"} == {second}
            assert "device in two device plugins" not in node.log()
    finally:
        await server.stop()


async def test_a_plugin_that_steps_in_knows_what_the_other_one_gave_out() -> None:
    async with plugin_node() as node:
        before = await node.admit("before", {"main": 10})
        await node.kubelet.start(before, "main")
        old, node.plugin = node.plugin, None
        registered = len(node.kubelet.registrations)
        try:
            await node.start_plugin()  # an upgrade: the new plugin takes over while the old one lives
            await eventually(lambda: "this one stands by" in node.log(), node.log)
            await eventually(lambda: len(node.kubelet.registrations) > registered and node.kubelet.healthy, node.log)
            pod = await node.admit("pod", {"main": 30})
            await node.kubelet.start(pod, "main")
            waiting = await node.admit("waiting", {"main": 20})
            given = (await node.shares())["pod/main"].id
            node.kubelet.delete(before)
            node.api.delete("before")
            await eventually(lambda: given in "".join(path.name for path in node.cdi.iterdir()), node.log)
            registered = len(node.kubelet.registrations)
            await node.end(node.plugin, signal.SIGKILL)
            await eventually(lambda: "allocations of the plugin before taken over" in node.log(), node.log)
            await node.kubelet.restart(pod, "main", patience_s=60)
            await node.kubelet.start(waiting, "main", patience_s=60)
            assert (await node.shares())["pod/main"].id == given
            # The plugin registers after it has taken over.
            await eventually(lambda: len(node.kubelet.registrations) > registered and node.kubelet.healthy, node.log)
            more = await node.admit("more", {"main": 40})
            await node.kubelet.start(more, "main", patience_s=60)
            kept = json.loads((node.state / "allocations.json").read_text())["allocations"]
            assert {item["binding"]["pod"] for item in kept} >= {"pod", "waiting", "more"}
        finally:
            await node.end(old)


@pytest.mark.parametrize("api", ["current", "behind"])
async def test_a_share_is_told_under_the_container_that_has_it_now(api: str) -> None:
    async with plugin_node() as node:
        pod = await node.admit("pod", {"main": 30}, init={"prepare": 30})
        await node.kubelet.start(pod, "prepare")
        (prepared,) = (await node.shares()).values()
        assert prepared.labels["container"] == "prepare"
        node.kubelet.end(pod, "prepare")
        if api == "current":
            node.show(pod, {}, status=True)
        await node.kubelet.start(pod, "main")
        if api == "behind":
            assert list(await node.shares()) == ["pod/prepare"]
            node.show(pod, {}, status=True)

            async def is_told() -> bool:
                return list(await node.shares()) == ["pod/main"]

            await eventually(is_told, node.log)
        shares = await node.shares()
        assert list(shares) == ["pod/main"]
        assert shares["pod/main"].id == prepared.id
        assert dict(shares["pod/main"].labels) == {**prepared.labels, "container": "main"}
        await node.end(node.agent, signal.SIGKILL)
        await node.start_agent()
        assert list(await node.shares()) == ["pod/main"]
