"""Test the scheduler's view in single cases: device affinity, choices not seen yet, facts that were never reported."""

from dataclasses import replace
from typing import Any

import pytest
from cluster_world import Agent, World, node_body, pod_body, read, row_of

from sharepod.scheduler.explain.summary import summarise
from sharepod.scheduler.placement.decision import judge, refusal_text
from sharepod.scheduler.placement.native import Verdict
from sharepod.scheduler.state.cluster import ASSUMED_S, Cluster
from sharepod.scheduler.state.usage import UsageBook

NODES = ["n1", "n2"]


def two_nodes() -> tuple[World, Cluster]:
    world = World({"n1": 2, "n2": 2})
    return world, world.replica()


def place(world: World, cluster: Cluster, name: str, units: int, **annotations: str) -> tuple[str, tuple[str, ...]]:
    """Find a place for a pod, release and bind it there, and tell the replica."""
    keys = {f"sharepod.io/{key.replace('_', '-')}": text for key, text in annotations.items()}
    uid = world.create(pod_body(name, units, keys))
    world.tell(cluster, "pod", uid)
    assumed = world.place(cluster, uid)
    if assumed is None:
        return "", ()
    world.release(assumed)
    world.bind(uid)
    world.tell(cluster, "pod", uid)
    return assumed.node, assumed.devices[0]


def judged(cluster: Cluster, body: dict[str, Any], names: list[str] = NODES) -> dict[str, str]:
    """Return for each node in the snapshot why a pod does not fit there; an empty text: it fits."""
    pod = read(body)
    cluster.advance(1000.0)
    found = judge(cluster, pod, names)
    verdicts = found.ranking.verdict.tolist() if found.ranking is not None else []
    return {
        name: "" if verdict == Verdict.FITS else refusal_text(pod, Verdict(verdict))
        for name, verdict in zip(found.names, verdicts, strict=True)
    }


def test_pods_with_one_word_are_on_the_same_device_and_nowhere_else() -> None:
    world, cluster = two_nodes()
    first = place(world, cluster, "a", 30, device_affinity="team")
    other = place(world, cluster, "b", 60)
    assert place(world, cluster, "c", 10, device_affinity="team") == first
    assert place(world, cluster, "d", 40, device_affinity="other") != ("", ())
    left = 100 - 30 - 10 - (60 if other == first else 0)
    found = judged(cluster, pod_body("e", left + 1, {"sharepod.io/device-affinity": "team"}))
    assert all(found.values())
    assert any("device affinity" in text for text in found.values())


def test_pods_with_one_word_are_apart_on_every_node_and_of_other_namespaces_are_not_meant() -> None:
    world, cluster = two_nodes()
    places = [place(world, cluster, f"p{number}", 10, device_anti_affinity="apart") for number in range(4)]
    assert len(set(places)) == 4
    assert place(world, cluster, "p4", 10, device_anti_affinity="apart") == ("", ())
    body = pod_body("p5", 10, {"sharepod.io/device-anti-affinity": "apart"})
    body["metadata"]["namespace"] = "elsewhere"
    assert judged(cluster, body) == dict.fromkeys(NODES, "")
    world.end("uid-p2")
    world.tell(cluster, "pod", "uid-p2")
    assert place(world, cluster, "p6", 10, device_anti_affinity="apart") == places[2]


def test_a_choice_counts_until_it_is_seen_on_the_pod_or_it_is_too_old() -> None:
    world, cluster = two_nodes()
    uid = world.create(pod_body("a", 100))
    assumed = world.place(cluster, uid)
    assert assumed is not None
    world.tell(cluster, "pod", uid)  # the pod's state from before its release
    cluster.advance(world.now_s)
    for released in (False, True):
        row = row_of(cluster, assumed.node)
        assert row.named(row.places[uid]) == assumed.devices
        assert (cluster.assumed(uid) is None) is released
        world.release(assumed)
        world.tell(cluster, "pod", uid)
        cluster.advance(world.now_s)

    other = world.create(pod_body("b", 100))
    assert world.place(cluster, other) is not None
    cluster.advance(world.now_s + ASSUMED_S - 1)
    assert cluster.assumed(other) is not None
    cluster.advance(world.now_s + ASSUMED_S)
    assert cluster.assumed(other) is None


def test_what_a_pod_was_told_to_yield_counts_until_it_is_shown_or_for_a_while() -> None:
    world, cluster = two_nodes()
    place(world, cluster, "a", 100)
    uid = "uid-a"
    shown = cluster.pod(uid)
    assert shown is not None
    cluster.presume(uid, "limit", world.now_s)
    cluster.presume(uid, "pause", world.now_s + 1)
    cluster.set_pod(shown)  # the API server shows the pod's old state once more
    cluster.advance(world.now_s + ASSUMED_S)
    assert cluster.yields(shown) == "pause"
    cluster.advance(world.now_s + 1 + ASSUMED_S)
    assert cluster.yields(shown) == "", "the order has not arrived"
    cluster.presume(uid, "pause", world.now_s + 50)
    cluster.set_pod(replace(shown, yields="pause"))
    cluster.set_pod(shown)
    assert cluster.yields(shown) == "", "it was seen, and resumed by somebody since"


def test_a_pod_that_is_bound_elsewhere_than_it_was_sent_counts_there_alone() -> None:
    world, cluster = two_nodes()
    uid = world.create(pod_body("a", 100))
    assumed = world.place(cluster, uid)
    assert assumed is not None
    other = next(name for name in NODES if name != assumed.node)
    world.pods[uid]["spec"]["nodeName"] = other
    world.tell(cluster, "pod", uid)
    cluster.advance(world.now_s)
    assert [uid in row_of(cluster, name).places for name in NODES] == [name == other for name in NODES]


@pytest.mark.parametrize("gone", ["node", "use"])
def test_a_node_that_goes_takes_its_row_along_and_comes_back_with_its_pods(gone: str) -> None:
    world, cluster = two_nodes()
    node, devices = place(world, cluster, "a", 70)
    [other] = {*NODES} - {node}
    body = world.nodes.pop(node) if gone == "node" else world.nodes[node]
    world.agents[node].reports = gone == "node"
    world.tell(cluster, gone, node)
    assert judged(cluster, pod_body("b", 10)) == {other: ""}
    assert cluster.row(node) is None
    world.nodes[node], world.agents[node].reports = body, True
    world.tell(cluster, gone, node)
    cluster.advance(world.now_s)
    row = row_of(cluster, node)
    assert {uid: row.named(there) for uid, there in row.places.items()} == {"uid-a": (devices,)}


def test_more_nodes_than_there_was_room_for_are_taken() -> None:
    world, cluster = two_nodes()
    names = [*NODES, *(f"n{number}" for number in range(3, 200))]
    for name in names[2:]:
        world.nodes[name], world.agents[name] = node_body(name, 1), Agent(name, 1)
        world.tell(cluster, "node", name)
        world.tell(cluster, "use", name)
        if name.endswith("50"):
            cluster.advance(world.now_s)
    assert judged(cluster, pod_body("b", 100), names) == dict.fromkeys(names, "")


def test_the_room_of_a_pod_that_is_gone_is_given_before_its_agent_has_released_the_share() -> None:
    world = World({"n1": 1})
    cluster = world.replica()
    place(world, cluster, "a", 100)
    assert world.start("uid-a")
    world.tell(cluster, "use", "n1")
    assert place(world, cluster, "b", 100) == ("", ())
    world.end("uid-a")
    world.tell(cluster, "pod", "uid-a")
    world.agents["n1"].shares["uid-a"] = read(pod_body("a", 100)), ("GPU-n1-0",)
    world.tell(cluster, "use", "n1")  # the agent has both shares
    assert place(world, cluster, "c", 100)[0] == "n1"
    assert place(world, cluster, "d", 100) == ("", ()), "one room is one pod's"


def yielding(world: World, uid: str, how: str, *, paused: bool) -> None:
    """Let the API server show that a pod yields in this way, and the agent whether its share is paused."""
    annotations = world.pods[uid]["metadata"]["annotations"]
    annotations.pop("sharepod.io/yield", None)
    annotations |= {"sharepod.io/yield": how} if how else {}
    agent = world.agents[world.pods[uid]["spec"]["nodeName"]]
    agent.yielding = agent.yielding | {uid} if paused else agent.yielding - {uid}


@pytest.mark.parametrize("paused", [True, False])
def test_a_pod_that_yields_counts_as_its_annotation_says_whatever_its_agent_has_done_yet(paused: bool) -> None:
    world = World({"n1": 1})
    body = pod_body("batch", 70, {"sharepod.io/class": "latency", "sharepod.io/memory": "16Gi"})
    body["spec"]["nodeName"] = "n1"
    uid = world.create(body)
    for known in ("nothing", "annotation", "agent"):
        if known == "agent":
            assert world.start(uid)
        elif known == "annotation":
            world.pods[uid]["metadata"]["annotations"]["sharepod.io/device"] = "GPU-n1-0"
        found = {}
        for how in ("", "limit", "pause"):
            yielding(world, uid, how, paused=paused)
            row = row_of(world.replica(), "n1")
            [strain] = row.strains
            found[how] = row.free_milli, row.free_mib, row.cpu_milli, strain.latency_milli, strain.limits_milli
        memory, processors = (64 * 1024,), 63_000
        assert found == {
            "": ((300,), memory, processors, 700, 1000),
            "limit": ((300,), memory, processors, 700, 700),
            "pause": ((1000,), memory, processors, 0, 0),
        }, known


def test_a_paused_pod_of_which_no_device_is_known_is_placed_by_its_memory_alone() -> None:
    world = World({"n1": 1})
    for name, units, how in (("runs", 100, ""), ("paused", 70, "pause")):
        body = pod_body(name, units, {"sharepod.io/memory": "16Gi"} | ({"sharepod.io/yield": how} if how else {}))
        body["spec"]["nodeName"] = "n1"
        world.create(body)
    assert world.start("uid-runs")
    row = row_of(world.replica(), "n1")
    assert (row.free_milli, row.free_mib, row.homeless) == ((0,), (48 * 1024,), frozenset())


def test_a_share_of_no_pod_that_is_known_counts_as_its_agent_says() -> None:
    world = World({"n1": 1})
    world.agents["n1"].shares["uid-gone"] = read(pod_body("gone", 70)), ("GPU-n1-0",)
    for paused, left in ((False, 300), (True, 1000)):
        world.agents["n1"].yielding = frozenset({"uid-gone"} if paused else ())
        row = row_of(world.replica(), "n1")
        assert (row.free_milli, row.free_mib) == ((left,), (24 * 1024,))


def test_the_summary_counts_pods_by_where_they_are() -> None:
    world, cluster = two_nodes()
    place(world, cluster, "bound", 30)
    for name in ("waiting", "chosen"):
        world.tell(cluster, "pod", uid := world.create(pod_body(name, 30)))
    assert world.place(cluster, uid) is not None  # the choice is assumed: the pod has not been seen on its node yet
    found = summarise(cluster, UsageBook(), 1000.0, ready=True, streams=0, stream_ends={})
    assert found.pods_by_state == {"bound": 1, "waiting": 2, "assumed": 1, "homeless": 0}
