"""Test the explanation of why a pod is where it is, or why it waits, from the scheduler's view."""

import json
from dataclasses import asdict, replace
from typing import Any

import pytest
from cluster_world import World, pod_body

from sharepod.cli.commands.pods import lines
from sharepod.scheduler.explain.explanation import EXAMPLES, LISTED, Explanation, explain
from sharepod.scheduler.explain.neighbours import LISTED as NEIGHBOURS_LISTED
from sharepod.scheduler.state.cluster import Cluster
from sharepod.scheduler.state.usage import DeviceNumbers

AGENTLESS = "no SharePod agent reports from it"


def explained(world: World, uid: str, cluster: Cluster | None = None, **more: Any) -> Explanation:
    cluster = cluster or world.replica()
    cluster.advance(world.now_s)
    pod = cluster.pod(uid)
    assert pod is not None
    return explain(cluster, pod, **more)


def shown(found: Explanation, width: int = 200) -> str:
    """Return what the command prints of an explanation after its way over the wire."""
    return "\n".join(lines(json.loads(json.dumps(asdict(found))), "http://here", width))


def started(world: World, name: str, units: int, node: str, annotations: dict[str, str] | None = None) -> str:
    """Run a pod on a node, on the device that the agent picks."""
    body = pod_body(name, units, annotations)
    body["spec"]["nodeName"] = node
    uid = world.create(body)
    assert world.start(uid)
    return uid


def busy(world: World, cluster: Cluster, node: str, numbers: DeviceNumbers, *, alone: bool = False) -> None:
    """Let an agent report what its devices do; `alone`: nothing else has changed since its last report."""
    use = world.agents[node].use()
    assert use is not None
    (cluster.measure if alone else cluster.set_use)(
        node, replace(use, devices=tuple(replace(device, numbers=numbers) for device in use.devices))
    )


def test_each_node_that_fits_is_told_with_what_it_costs_more_and_what_is_left_there() -> None:
    world = World({"n1": 2, "n2": 2, "n3": 1, "n4": 1})
    started(world, "most", 70, "n2", {"sharepod.io/limit": "70"})
    started(world, "full", 90, "n3")
    world.agents["n4"].reports = False
    uid = world.create(pod_body("waits", 30, {"sharepod.io/limit": "30"}))
    cluster = world.replica()
    version = cluster.version
    found = explained(world, uid, cluster)
    assert explained(world, uid, cluster) == found
    assert (cluster.version, cluster.assumed(uid)) == (version, None), "it changes nothing"
    assert (found.state, found.fitting_nodes) == ("waiting", 2)
    best, other = found.fitting
    assert (best.left.node, best.behind, best.devices) == ("n2", 0, ((0,),)), "it fills what is left"
    assert (other.left.node, other.devices) == ("n1", ((0,),))
    assert other.behind > 0
    assert other.behind_milli == 20 * other.behind
    assert other.behind_use == 0, "nothing runs anywhere: all of it is for the room"
    assert [(device.left_percent, device.left_mib) for device in best.left.devices] == [(30, 24576), (100, 81920)]
    silent, refused = sorted(found.refused, key=lambda one: one.reason)
    assert (refused.reason, refused.nodes) == ("no device with 30 percent left", 1)
    assert refused.examples[0].devices[0].left_percent == 10
    assert (silent.reason, silent.nodes) == (AGENTLESS, 1)
    assert "its shares fit on 2 of 4 nodes" in found.text
    text = shown(found)
    assert f"costs {other.behind_milli} milli of a device more (+{other.behind_milli} for the room it takes)" in text
    assert "n4: nothing is known of it" in text


@pytest.mark.parametrize("alone", [False, True])
def test_nodes_that_are_as_good_are_told_so_and_what_runs_somewhere_apart_from_the_room_there(*, alone: bool) -> None:
    world = World({"n1": 1, "n2": 1})
    uid = world.create(pod_body("waits", 30, {"sharepod.io/class": "latency"}))
    cluster = world.replica()
    text = shown(explained(world, uid, cluster))
    assert "1  n1: device 0, the best" in text
    assert "2  n2: device 0, as good, but later by name" in text
    busy(world, cluster, "n1", DeviceNumbers(used_1m_millipercent=80_000, waited_1m_millipercent=30_000), alone=alone)
    best, other = explained(world, uid, cluster).fitting
    assert (best.left.node, other.left.node) == ("n2", "n1")
    assert other.behind == other.behind_use > 0
    text = shown(explained(world, uid, cluster))
    assert "0 100 % and 80 GiB (80 % used, 30 % waited)" in text
    assert "for what runs, is promised or not linked there" in text
    assert "for the room it takes" not in text


def test_why_a_device_is_closed_is_told_of_each() -> None:
    world = World({"n1": 3})
    world.agents["n1"].unhealthy = frozenset({1})
    started(world, "first", 30, "n1", {"sharepod.io/device-anti-affinity": "apart"})
    uid = world.create(pod_body("waits", 80, {"sharepod.io/device-anti-affinity": "apart"}))
    cluster = world.replica()
    use = cluster.use("n1")
    assert use is not None
    held, bad, spare = use.devices
    spare = replace(spare, facts=replace(spare.facts, offered=False))
    bad = replace(bad, facts=replace(bad.facts, health_reason="XID 79"))
    cluster.set_use("n1", replace(use, devices=(held, bad, spare)))
    found = explained(world, uid, cluster)
    [refused] = found.refused
    assert [device.closed for device in refused.examples[0].devices] == [
        "not allowed by the pod's device affinity", "not healthy: XID 79", "not offered by its device plugin",
    ]  # fmt: skip
    assert "n1: 0 not allowed by the pod's device affinity, 1 not healthy: XID 79, 2 not offered" in shown(found)


def test_a_node_without_processors_shows_how_few_it_has() -> None:
    world = World({"n1": 1})
    found = explained(world, world.create(pod_body("waits", 10, cpu="100")))
    assert found.refused[0].reason == "not enough processors beside the pods that are to come"
    assert found.refused[0].examples[0].cpu_milli == 64_000
    assert "64 processors and 512 GiB of memory" in shown(found)


def test_of_a_large_cluster_no_more_is_told_than_one_can_read() -> None:
    world = World({f"n{number:03}": 8 for number in range(300)})
    for number in range(100):
        world.agents[f"n{number:03}"].unhealthy = frozenset(range(8))
    found = explained(world, world.create(pod_body("waits", 60)))
    assert (found.fitting_nodes, len(found.fitting)) == (200, LISTED)
    assert [(one.nodes, len(one.examples)) for one in found.refused] == [(100, EXAMPLES)]
    text = shown(found, 80)
    assert "  and 180 more" in text
    assert "      and 97 more" in text
    assert len(text.splitlines()) < 160
    assert max(map(len, text.splitlines())) <= 80


def test_a_bound_pod_is_told_with_who_is_beside_it_and_who_says_so() -> None:
    world = World({"n1": 2})
    uid = started(world, "mine", 30, "n1")
    started(world, "other", 40, "n1", {"sharepod.io/class": "latency"})
    later = pod_body("later", 20, {"sharepod.io/device": world.agents["n1"].uuid(0)})
    later["spec"]["nodeName"] = "n1"
    world.create(later)
    started(world, "elsewhere", 90, "n1")
    found = explained(world, uid)
    assert (found.state, found.node, found.known_by) == ("bound", "n1", "agent")
    assert found.held[0].devices == ((0, "GPU-n1-0"),)
    [place] = found.there
    assert [(one.pod, one.share_class, one.asked_percent, one.used_percent) for one in place.shares] == [
        ("default/other", "latency", 40, 0), ("default/later", "standard", 20, None),
    ]  # fmt: skip
    assert found.left is not None
    assert found.left.devices[0].left_percent == 10
    text = shown(found)
    assert "it is bound to n1, and its agent reports its shares" in text
    assert "device 0 10 % and 8 GiB (40 % latency) left, beside it:" in text
    assert "default/other main: latency, asked for 40 %, used 0 % of the last minute" in text
    assert "default/later main: standard, asked for 20 %\n" in text + "\n"
    assert "elsewhere" not in text


def test_who_tells_of_a_bound_pod_that_its_agent_does_not_report() -> None:
    world = World({"n1": 1})
    named, silent, wide = (pod_body(name, units) for name, units in (("named", 30), ("silent", 60), ("wide", 90)))
    named["metadata"]["annotations"]["sharepod.io/device"] = "GPU-n1-0"
    for age, body in enumerate((named, silent, wide)):
        body["metadata"]["creationTimestamp"] = f"2026-01-01T00:00:0{age}Z"
        body["spec"]["nodeName"] = "n1"
        world.create(body)
    said = {name: explained(world, f"uid-{name}") for name in ("named", "silent", "wide")}
    assert {name: one.known_by for name, one in said.items()} == {
        "named": "annotation", "silent": "presumed", "wide": "homeless",
    }  # fmt: skip
    assert "its annotation names its devices" in said["named"].text
    assert "its agent has not reported its devices" in said["silent"].text
    assert "fit on no device now: it starts when others there end" in said["wide"].text
    assert said["wide"].held == said["wide"].there == ()


def test_many_neighbours_are_counted_not_listed() -> None:
    world = World({"n1": 1})
    uids = [started(world, f"p{number:02}", 5, "n1") for number in range(20)]
    [place] = explained(world, uids[0]).there
    assert (len(place.shares), place.more) == (NEIGHBOURS_LISTED, 19 - NEIGHBOURS_LISTED)


def test_a_pod_that_was_sent_is_told_with_its_devices_and_its_neighbours_until_it_is_bound() -> None:
    world = World({"n1": 1, "n2": 1})
    started(world, "most", 70, "n1")
    uid = world.create(pod_body("sent", 30))
    cluster = world.replica()
    assumed = world.place(cluster, uid)
    assert assumed is not None
    for known_by in ("assumed", "annotation"):
        found = explained(world, uid, cluster)
        assert (found.state, found.node, found.known_by) == ("sent", "n1", known_by)
        assert found.held[0].devices == ((0, "GPU-n1-0"),)
        assert [one.pod for one in found.there[0].shares] == ["default/most"]
        assert "it was sent to n1, and is not seen bound yet" in found.text
        world.release(assumed)
        world.tell(cluster, "pod", uid)
    world.bind(uid)
    world.tell(cluster, "pod", uid)
    assert explained(world, uid, cluster).state == "bound"


def test_what_cannot_be_or_needs_no_device_is_one_sentence() -> None:
    world = World({"n1": 1})
    wrong = explained(world, world.create(pod_body("wrong", 30, {"sharepod.io/limit": "10"})))
    assert (wrong.state, wrong.fitting, wrong.refused) == ("refused", (), ())
    assert "limit 10 % is below the request 30 %" in wrong.text
    plain = pod_body("plain", 0)
    del plain["spec"]["containers"][0]["resources"]["limits"]
    assert explained(world, world.create(plain)).text == "it asks for no share of a device"
    gone = pod_body("gone", 30)
    gone["spec"]["nodeName"] = "n9"
    gone["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    assert explained(world, world.create(gone)).text == f"it is on n9: {AGENTLESS}; it is being deleted"


@pytest.mark.parametrize(
    ("how", "paused", "text", "beside"),
    [
        ("", False, "reports its shares", "asked for 70 %, used"),
        ("limit", False, "; it yields: its limit is its request for now", "asked for 70 %, limited to that, used"),
        ("pause", False, "; it is to yield its time, and its agent does not report it paused yet", "paused to make"),
        ("pause", True, "; it yields: it is paused, and its time is others'", "asked for 70 %, paused to make room"),
        ("", True, "; it has yielded, and stays paused until its time is free again", "paused to make room"),
    ],
)
def test_a_pod_that_yields_is_told_with_how_far_its_agent_is_and_so_are_its_neighbours(
    how: str, paused: bool, text: str, beside: str
) -> None:
    world = World({"n1": 1})
    uid = started(world, "batch", 70, "n1", {"sharepod.io/memory": "16Gi"})
    other = started(world, "other", 30, "n1", {"sharepod.io/memory": "16Gi"})
    world.pods[uid]["metadata"]["annotations"] |= {"sharepod.io/yield": how} if how else {}
    world.agents["n1"].yielding = frozenset({uid} if paused else ())
    assert shown(explained(world, uid)).splitlines()[0].endswith(text)
    assert beside in shown(explained(world, other))


def test_no_control_character_reaches_the_terminal() -> None:
    world = World({"n1": 1})
    found = replace(explained(world, world.create(pod_body("a", 10))), text="red \x1b[31m\nline")
    assert shown(found).splitlines()[0] == "default/a: red ?[31m?line"
