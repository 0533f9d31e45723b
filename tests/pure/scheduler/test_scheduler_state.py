"""Test that the view follows each fact as it comes, and so does all that is computed of it and kept."""

from dataclasses import replace
from itertools import pairwise
from math import inf
from typing import Any

import pytest
from cluster_world import Agent, World, node_body, pod_body, read, row_of

from sharepod.scheduler.controller.controller_state import ControllerState
from sharepod.scheduler.controller.job_order import Total
from sharepod.scheduler.placement.constraints import Constraints
from sharepod.scheduler.placement.mix import Kind, Mix
from sharepod.scheduler.placement.native import Snapshot
from sharepod.scheduler.placement.policy import DEAREST, PRICE_STEP, WIDE_WEIGHT, Numbers, Outline, Policy
from sharepod.scheduler.placement.request import NodeSpec
from sharepod.scheduler.state import usage
from sharepod.scheduler.state.capacity import capacity_of
from sharepod.scheduler.state.cluster import ASSUMED_S, Cluster
from sharepod.scheduler.state.pod import NODE

P = "sharepod.io/"
APART = {P + "device-anti-affinity": "apart"}


def on_n1(world: World, number: int, units: int, **annotations: str) -> str:
    """Bind a pod to n1, the younger the higher its number."""
    body = pod_body(f"p{number}", units, {P + key: text for key, text in annotations.items()})
    body["metadata"]["creationTimestamp"] = f"2026-01-01T00:00:{number:02}Z"
    body["spec"]["nodeName"] = "n1"
    return str(world.create(body))


def picture(cluster: Cluster) -> list[Any]:
    """Return what a view answers about nodes and pods."""
    index, snapshot = cluster.node_index, cluster.snapshot
    return [
        {name: snapshot.left(index.index(name)) for name in index.names()}, index.specs(), sorted(cluster.names()),
        [[cluster.row(node), cluster.use(node), {pod.uid for pod in cluster.pods_on(node)}] for node in ("n1", "n2")],
        snapshot.free_milli, snapshot.devices, {pod.uid: pod for pod in cluster.pods()}, cluster.expected(),
    ]  # fmt: skip


def test_a_view_that_hears_of_one_fact_after_another_is_as_one_that_hears_of_all_at_once() -> None:
    world = World({"n1": 2, "n2": 1, "n3": 1})
    view = world.replica()
    view.take_changed()
    chosen: dict[str, tuple[str, str]] = {}  # by uid: the node and the device that are not seen yet

    def choose(uid: str, node: str, device: str) -> None:
        view.assume(world.pod(uid), node, ((device,),), world.now_s)
        chosen[uid] = node, device

    def hear(*facts: str, changed: str = "") -> None:
        version = view.version
        for kind, name in map(str.split, facts):
            world.tell(view, kind, name)
        view.advance(world.now_s)
        assert view.take_changed() == {f"uid-{name}" for name in changed}
        assert view.version > version or not facts
        fresh = world.replica()
        for uid, (node, device) in chosen.items():
            fresh.assume(world.pod(uid), node, ((device,),), world.now_s)
        fresh.advance(world.now_s)
        assert picture(view) == picture(fresh)

    a = world.create(pod_body("a", 30, APART))
    hear("pod uid-a", "node n1", changed="a")
    for node, device in (("n1", "GPU-n1-1"), ("n2", "GPU-n2-0")):  # the earlier choice counts no more
        choose(a, node, device)
        hear(changed="a")
    world.end(a)
    del chosen[a]
    hear("pod uid-a", changed="a")
    b, c = world.create(pod_body("b", 30, APART)), world.create(pod_body("c", 30, APART))
    choose(b, "n1", "GPU-n1-1")
    world.pods[b]["spec"]["nodeName"] = "n1"
    hear("pod uid-b", "pod uid-c", changed="bc")  # bound, and its annotation is not seen yet
    assert row_of(view, "n1").places == {b: ((1,),)}
    world.pods[b]["metadata"]["annotations"] |= {P + "device": "GPU-n1-1", NODE: "n1"}
    del chosen[b]
    hear("pod uid-b", changed="b")
    assert world.start(b)
    hear("use n1", "pod uid-b", changed="b")
    body = world.pods[b]
    world.end(b)
    world.tell(view, "pod", b)
    view.advance(world.now_s)
    assert row_of(view, "n1").free_milli == (1000, 1000), "its agent has yet to release it"
    hear("use n1", changed="b")
    world.create(body)
    hear("pod uid-b", changed="b")  # it is there again, and counts again
    gone = {name: (world.nodes.pop(name), world.agents.pop(name)) for name in ("n1", "n2")}
    choose(c, "n2", "GPU-n2-0")
    hear("node n1", "use n1", "node n2", "use n2", changed="c")
    for name, (offers, agent) in gone.items():
        world.nodes[name], world.agents[name] = offers, agent
        hear(f"node {name}", f"use {name}")
    left = row_of(view, "n1").free_milli, row_of(view, "n2").free_milli
    assert left == ((1000, 700), (700,)), "with the pod that is bound there, and the one that was sent"
    world.now_s += ASSUMED_S
    chosen.clear()
    hear(changed="c")
    world.agents["n1"].reports = False
    hear("use n1")
    world.end(b)
    hear("pod uid-b", changed="b")  # nothing is known of its share


def test_a_pod_that_has_gone_or_was_sent_in_vain_leaves_nothing_behind() -> None:
    world = World({"n1": 1, "cpu": 0})
    world.agents["cpu"].reports = False
    a = world.create(pod_body("a", 60, {P + "gang": "g", P + "gang-size": "2"}))
    first = world.replica()
    first.remove_pod(a)
    assert first.take_gone() == [], "no cycle had looked"
    world.pods[a]["metadata"]["annotations"] |= {NODE: "n1"}
    view = world.replica()
    view.take_changed()
    assert view.names() == ["n1"], "the other has neither devices nor an agent"
    for at_s in (world.now_s, world.now_s + 1):
        view.strand(world.pod(a))
        view.advance(at_s)
        assert (view.take_changed(), row_of(view, "n1").free_milli) == ({a}, (1000,))
        view.assume(world.pod(a), "n1", (("GPU-n1-0",),), at_s)
    view.presume(a, "pause", world.now_s)
    gone, b = view.pod(a), read(pod_body("b", 10))
    view.set_pod(b)
    view.set_pod(replace(b, ended=True))
    view.remove_pod(a)
    assert (view.is_stranded(a), view.take_gone(), view.take_gone()) == (False, [gone], [])
    view.advance(world.now_s + ASSUMED_S)
    assert list(view.pods()) == []


def test_what_an_agent_measures_counts_at_once_and_only_if_it_is_new() -> None:
    world = World({"n1": 2})
    view = world.replica()
    calm = view.use("n1")
    assert calm is not None
    waited = usage.DeviceNumbers(used_1s_millipercent=500, waited_1m_millipercent=7)
    waits = replace(calm, devices=(calm.devices[0], replace(calm.devices[1], numbers=waited)))
    versions = [view.version]
    for use, contended in ((waits, ["n1"]), (waits, ["n1"]), (calm, [])):
        view.measure("n1", use)
        assert (view.use("n1"), view.contended()) == (use, contended)
        versions.append(view.version)
    assert [later - earlier for earlier, later in pairwise(versions)] == [1, 0, 1]
    view.measure("n1", waits)
    view.remove_node("n1")
    view.advance(world.now_s)
    view.measure("n1", waits)
    assert (view.row("n1"), view.contended()) == (None, [])


def test_what_empty_nodes_would_take_follows_the_nodes_and_is_kept_while_they_stay_the_same() -> None:
    world = World({"n1": 2, "n2": 1, "n3": 1})
    view, state = world.replica(), ControllerState()
    request, pool = read(pod_body("p", 100)).request, Constraints((("pool", "a"),))

    def known() -> tuple[int, int, bool]:
        view.advance(world.now_s)
        found = capacity_of(view, state)
        return found.total.device_milli, found.silent, found.holds(request, pool, 2)

    def labelled(pool: str) -> None:
        world.nodes["n1"]["metadata"]["labels"] = {"pool": pool}
        world.tell(view, "node", "n1")

    def has_devices(count: int) -> None:
        world.agents["n1"].devices = count
        world.tell(view, "use", "n1")

    assert known() == (4000, 0, False)
    found = capacity_of(view, state)
    assert (found.total, found.device_mib) == (Total(4000, 4 * 81_920, 192_000, 3 * 524_288), 81_920)
    world.tell(view, "node", "n1")
    view.advance(world.now_s)
    assert capacity_of(view, state) is found, "nothing is new"
    labelled("a")
    assert known() == (4000, 0, True)
    view.remove_node("n1")
    labelled("b")
    assert known() == (4000, 0, False)
    has_devices(4)
    assert known() == (6000, 0, False)
    view.set_use("n1", None)
    view.advance(world.now_s)
    has_devices(3)
    assert known() == (5000, 0, False)
    view.set_use("n2", None)
    assert known() == (4000, 1, False)
    view.remove_node("n2")
    assert known() == (4000, 0, False)


def test_nodes_are_emptied_on_which_the_least_work_ends_for_each_pod_that_then_fits() -> None:
    world = World({"n1": 2, "n2": 2, "n3": 1, "n4": 1})
    world.agents["n4"].reports = False
    for name in ("n1", "n3"):
        body = pod_body(f"on-{name}", 40, {P + "device": f"GPU-{name}-0"})
        body["spec"]["nodeName"] = name
        world.create(body)
    found = capacity_of(world.replica(), ControllerState())
    whole, small, wide = (read(pod_body("p", units)) for units in (100, 30, 200))
    for pods, nodes in (
        ([whole] * 2, ("n2",)), ([small, whole, small], ("n2", "n1")), ([whole] * 5, ("n2", "n1", "n3")),
        ([whole] * 6, ()), ([wide] * 2, ("n2", "n1")),
    ):  # fmt: skip
        assert found.emptiest(pods, ["n9", "n4", "n3", "n2", "n1"]) == nodes, "each counts as the largest"
    assert (found.part(["n1", "n9"]), found.part(["n4"])) == (2 / 5, 0)
    assert [found.can_hold(pods) for pods in ([whole] * 5, [whole] * 6, [small, *[whole] * 6])] == [True, False, False]


def test_a_node_falls_silent_once_comes_back_once_and_is_known_for_an_hour_to_the_second() -> None:
    book = usage.UsageBook()
    book.apply("n1", usage.Report(usage.NodeFacts("n1", "0")), 0.0)
    for at_s, changed in ((0, True), (usage.SILENT_S + 1, True), (usage.SILENT_S + 2, False), (3600, False)):
        book.age(at_s)
        assert bool(book.take_changes().facts) is changed
    for at_s, changed in ((4000, True), (4001, False)):
        book.apply("n1", usage.Report(), at_s)
        assert bool(book.take_changes().facts) is changed
    book.age(4001 + usage.SILENT_S + 1)
    assert book.take_changes().facts == {"n1"}, "it has fallen silent once more"


def test_pods_of_which_no_device_is_known_count_on_the_fullest_with_room_in_the_order_in_which_they_came() -> None:
    world = World({"n1": 3})
    plain = on_n1(world, 0, 1)
    del world.pods[plain]["spec"]["containers"][0]["resources"]["limits"]
    for number, units, memory in ((1, 20, "70Gi"), (2, 60, "10Gi")):
        assert world.start(on_n1(world, number, units, memory=memory, device=f"GPU-n1-{number - 1}"))
    asked = ((40, "10Gi"), (40, "10Gi"), (50, "20Gi"), (60, "1Gi"), (10, "70Gi"))
    for number, (units, memory) in enumerate(asked, 3):
        on_n1(world, number, units, memory=memory)
    row = row_of(world.replica(), "n1")
    assert row.places == {"uid-p1": ((0,),), "uid-p2": ((1,),), "uid-p3": ((1,),), "uid-p4": ((0,),), "uid-p5": ((2,),)}
    assert (sorted(row.homeless), row.free_milli) == (["uid-p6", "uid-p7"], (400, 0, 500))
    assert row.free_mib == (0, 60 * 1024, 60 * 1024)


def test_a_pod_that_is_there_may_keep_its_device_whatever_its_anti_affinity() -> None:
    world = World({"n1": 2})
    uid = on_n1(world, 0, 30, **{"device-anti-affinity": "apart", "device": "GPU-n1-1"})
    view = world.replica()
    found = view.rest(world.pod(uid), "n1")
    assert found is not None
    assert found[0].allowed == 0b11
    assert view.allowed(read(pod_body("b", 30, APART)), view.node_index.indices()).tolist() == [0b01]


def test_a_view_judges_by_what_is_left_now_also_with_a_new_snapshot() -> None:
    world = World({f"n{number}": 2 for number in range(1, 4)})
    view, mix = world.replica(), Mix.of(read(pod_body("p", units)).request for units in (30, 100, 200))
    version = view.version
    view.renew(Policy("worth", view.snapshot, mix), mix)
    assert view.version > version
    for number, names in enumerate(([], [f"m{number}" for number in range(99)])):
        for name in names:
            world.nodes[name], world.agents[name] = node_body(name, 2), Agent(name, 2)
            world.tell(view, "node", name)
            world.tell(view, "use", name)
        world.tell(view, "pod", on_n1(world, number, 60, device=f"GPU-n1-{number}"))
        view.advance(world.now_s)
        wanted = [[policy.native.native.kind[index].wanted for index in range(len(mix.parts))]
                  for policy in (view.policy, Policy("worth", view.snapshot, mix))]  # fmt: skip
        assert max(wanted[0]) > 0
        assert wanted[0] == wanted[1]


def test_scarce_models_and_room_for_the_wide_have_the_prices_of_their_definition() -> None:
    snapshot = Snapshot([NodeSpec("a", 64_000, 0, 4, "A"), NodeSpec("b", 64_000, 0, 3, "B")], models=["C"])
    small, rare, wide = Kind(1, 300, 0, ("A",)), Kind(1, 100, 0, ("C",)), Kind(3, 1000, 0, ("B",))
    kinds = {small: 4.0, Kind(1, 500, 0, ("A", "B")): 2.0, Kind(2, 1000, 0, ()): 1.0, wide: 1.0, rare: 30.0}
    policy = Policy("worth", snapshot, Mix.counted(kinds))
    for index, left in ((0, [300, 1000, 1000, 0]), (1, [1000, 1000, 1000])):
        snapshot.set_left(index, 64_000, 0, left, [0] * len(left))
    policy.refresh()
    loads = {kind: count * kind.milli * kind.devices for kind, count in kinds.items()}
    total, native = sum(loads.values()) / 5300, policy.native.native
    on = [loads[small] / (2300 + 1000), loads[wide] / (3000 + 1000), loads[rare] / 1000]
    assert list(native.crowding)[:3] == pytest.approx([min(1.0, load / total) ** 4 for load in on])
    rooms = {2: (5000, 2 * 2000), 3: (3000, 1 * 3000)}  # the load of all kinds as wide; the time of the pods that fit
    for at, kind in enumerate(sorted(kinds)):
        as_wide, room = rooms.get(kind.devices, (1, inf))
        scarcity = (as_wide / total / (room + 1000)) ** 2 * loads[kind] / as_wide
        assert native.kind[at].wanted == pytest.approx(WIDE_WEIGHT * scarcity)
    first, *prices = Numbers.of("worth", Outline.of(snapshot), Mix.counted(kinds)).prices
    assert first == 0
    assert prices[-1] == pytest.approx(DEAREST * 7000 / 128_000)
    assert all(low / high == pytest.approx(PRICE_STEP) for low, high in pairwise(prices))
