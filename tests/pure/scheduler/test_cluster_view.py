"""The scheduler's view of single cases: affinity of devices, choices that are not seen yet, what nobody has told."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from cluster_world import World, node_body, pod_body, read

from sharepod.scheduler.cluster import ASSUMED_S, Cluster
from sharepod.scheduler.decision import judge, refusal_text
from sharepod.scheduler.native import Verdict
from sharepod.scheduler.node import read_node

NODES = ["n1", "n2"]


def two_nodes() -> tuple[World, Cluster]:
    world = World({"n1": 2, "n2": 2})
    return world, world.replica()


def place(world: World, cluster: Cluster, name: str, units: int, **annotations: str) -> tuple[str, tuple[str, ...]]:
    """Find a pod its place, have it released and bound there, and let the replica hear of it."""
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
    """Return of each node that is on the board why a pod does not fit there; an empty text: it fits."""
    pod = read(body)
    cluster.settle(1000.0)
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


def test_a_whole_job_goes_to_models_that_it_names_or_nowhere() -> None:
    world, cluster = two_nodes()
    assert place(world, cluster, "a", 10, model="H200, A100")[0]
    found = judged(cluster, pod_body("b", 10, {"sharepod.io/model": "A100"}))
    assert found == dict.fromkeys(NODES, "its devices are of no model that the pod takes")


def test_a_choice_counts_until_it_is_seen_on_the_pod_or_it_is_too_old() -> None:
    world, cluster = two_nodes()
    uid = world.create(pod_body("a", 100))
    assumed = world.place(cluster, uid)
    assert assumed is not None
    world.tell(cluster, "pod", uid)  # as it was before it was released
    cluster.settle(world.now_s)
    for released in (False, True):
        row = cluster.row(assumed.node)
        assert row is not None
        assert row.named(row.places[uid]) == assumed.devices
        assert (cluster.assumed(uid) is None) is released
        world.release(assumed)
        world.tell(cluster, "pod", uid)
        cluster.settle(world.now_s)

    other = world.create(pod_body("b", 100))
    assert world.place(cluster, other) is not None
    cluster.settle(world.now_s + ASSUMED_S - 1)
    assert cluster.assumed(other) is not None
    cluster.settle(world.now_s + ASSUMED_S)
    assert cluster.assumed(other) is None


def test_what_a_pod_was_told_to_yield_counts_until_it_is_shown_or_for_a_while() -> None:
    world, cluster = two_nodes()
    place(world, cluster, "a", 100)
    uid = "uid-a"
    shown = cluster.pod(uid)
    assert shown is not None
    cluster.presume(uid, "limit", world.now_s)
    cluster.presume(uid, "pause", world.now_s + 1)
    cluster.set_pod(shown)  # seen again as it was before
    cluster.settle(world.now_s + ASSUMED_S)
    assert cluster.yields(shown) == "pause"
    cluster.settle(world.now_s + 1 + ASSUMED_S)
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
    cluster.settle(world.now_s)
    rows = {name: cluster.row(name) for name in NODES}
    assert [uid in row.places for row in rows.values() if row is not None] == [name == other for name in NODES]


def test_a_bound_pod_that_fits_on_no_device_of_its_node_is_told_apart() -> None:
    world, cluster = two_nodes()
    for number in range(2):
        place(world, cluster, f"p{number}", 60)
    full = world.pods["uid-p0"]["spec"]["nodeName"]
    for number in range(2, 4):
        world.create(pod_body(f"p{number}", 60))
        world.pods[f"uid-p{number}"]["spec"]["nodeName"] = full
        world.tell(cluster, "pod", f"uid-p{number}")
    cluster.settle(world.now_s)
    row = cluster.row(full)
    assert row is not None
    placed = sum(1 for uid in row.places if uid.startswith("uid-p"))
    assert placed == 2
    assert len(row.homeless) == len([pod for pod in world.pods.values() if pod["spec"].get("nodeName") == full]) - 2
    assert all(value >= 0 for value in row.free_milli)


@pytest.mark.parametrize("gone", ["node", "use"])
def test_a_node_that_goes_takes_its_row_along_and_comes_back_with_its_pods(gone: str) -> None:
    world, cluster = two_nodes()
    node, devices = place(world, cluster, "a", 70)
    before = cluster.row(node)
    if gone == "node":
        body: dict[str, Any] = world.nodes.pop(node)
        world.tell(cluster, "node", node)
    else:
        world.agents[node].reports = False
        world.tell(cluster, "use", node)
    other = next(name for name in NODES if name != node)
    assert judged(cluster, pod_body("b", 10)) == {other: ""}
    assert cluster.row(node) is None
    if gone == "node":
        world.nodes[node] = body
        world.tell(cluster, "node", node)
    else:
        world.agents[node].reports = True
        world.tell(cluster, "use", node)
    cluster.settle(world.now_s)
    after = cluster.row(node)
    assert before is not None
    assert after is not None
    assert after.places == {"uid-a": before.places.get("uid-a", after.places["uid-a"])}
    assert after.named(after.places["uid-a"]) == (devices,)


def test_nodes_of_a_new_model_and_more_nodes_than_there_was_room_for_are_taken() -> None:
    world, cluster = two_nodes()
    for number in range(3, 200):
        name = f"n{number}"
        world.nodes[name] = node_body(name, 1)
        node = read_node(world.nodes[name])
        assert node is not None
        cluster.set_node(node)
        agent = type(world.agents["n1"])(name, 1)
        use = agent.use()
        assert use is not None
        cluster.set_use(name, use)
        if number % 50 == 0:
            cluster.settle(world.now_s)
    names = [f"n{number}" for number in range(1, 200)]
    assert judged(cluster, pod_body("b", 100), names) == dict.fromkeys(names, "")


def yielding(world: World, uid: str, how: str, *, paused: bool) -> None:
    """Have the API server show that a pod yields so, and its agent that it is paused, or not."""
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
    for known in ("annotation", "agent"):
        if known == "agent":
            assert world.start(uid)
        else:
            world.pods[uid]["metadata"]["annotations"]["sharepod.io/device"] = "GPU-n1-0"
        found = {}
        for how in ("", "limit", "pause"):
            yielding(world, uid, how, paused=paused)
            row = world.replica().row("n1")
            assert row is not None
            [strain] = row.strains
            found[how] = row.free_milli, row.free_mib, row.cpu_milli, strain.latency_milli, strain.limits_milli
        memory, processors = (64 * 1024,), 63_000
        assert found == {
            "": ((300,), memory, processors, 700, 1000),
            "limit": ((300,), memory, processors, 700, 700),
            "pause": ((1000,), memory, processors, 0, 0),
        }, known


def test_a_share_of_no_pod_that_is_known_counts_as_its_agent_says() -> None:
    world = World({"n1": 1})
    body = pod_body("gone", 70)
    body["spec"]["nodeName"] = "n1"
    uid = world.create(body)
    assert world.start(uid)
    yielding(world, uid, "", paused=True)
    del world.pods[uid]
    row = world.replica().row("n1")
    assert row is not None
    assert row.free_milli == (1000,)
    assert row.free_mib == (24 * 1024,)


def test_changes_are_kept_only_for_who_asks_for_them() -> None:
    cluster = Cluster()
    cluster.set_pod(read(pod_body("a", 30)))
    cluster.remove_pod("uid-a")
    cluster.set_pod(read(pod_body("b", 30)))
    assert cluster.take_changed() == {"uid-b"}, "nobody had asked yet: who is there"
    cluster.set_pod(read(pod_body("c", 30)))
    cluster.remove_pod("uid-b")
    assert cluster.changed() == cluster.take_changed() == {"uid-b", "uid-c"}
    assert cluster.take_changed() == set()
