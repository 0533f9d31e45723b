"""Test that placement finds room exactly where there is room, never takes more, and answers the same each time.

The snapshot must also follow a cluster in which nodes come, change and go, and pods are observed instead of placed.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from reference import Node

from sharepod.scheduler.errors import PlacementError
from sharepod.scheduler.placement.mix import Mix
from sharepod.scheduler.placement.native import Place, Snapshot, Verdict
from sharepod.scheduler.placement.policy import ROWS, Numbers, Outline, Policy
from sharepod.scheduler.placement.request import NodeSpec, PodRequest, ShareRequest

NODE = NodeSpec("n", 16_000, 65_536, 4, "A", 1000)
SMALL = NodeSpec("n", 1, 1, 2, "A", 1000)
OTHER = NodeSpec("m", 8_000, 1_024, 2, "B")
PLAIN = NodeSpec("p", 8_000, 1_024, 0)
MIX = Mix.of([PodRequest(1000, 0, (ShareRequest(300),)), PodRequest(4000, 0, (ShareRequest(1000, 2),))])
IDLE = 0, 0, 0, 0


def policy(snapshot: Snapshot, name: str = "binpack") -> Policy:
    return Policy(name, snapshot, MIX)


def pod(milli: int, devices: int = 1, mib: int | None = None, **more: int) -> PodRequest:
    return PodRequest(shares=(ShareRequest(milli, devices, mib),), **more)


@pytest.mark.parametrize(
    ("node", "wanted", "before", "expected"),
    [
        (NODE, pod(300), (), Verdict.FITS),
        (NODE, PodRequest(cpu_milli=16_001), (), Verdict.NO_CPU),
        (NODE, PodRequest(memory_mib=65_537), (), Verdict.NO_MEMORY),
        (NODE, PodRequest(shares=(ShareRequest(1),), models=frozenset({"B"})), (), Verdict.NO_MODEL),
        (NODE, PodRequest(shares=(ShareRequest(1),), models=frozenset({"B", "A"})), (), Verdict.FITS),
        (NODE, pod(1000, 5), (), Verdict.FEW_DEVICES),
        (NODE, pod(1000, 4), (pod(10),), Verdict.NO_TIME),
        (NODE, pod(700), tuple(pod(400) for _ in range(8)), Verdict.NO_TIME),
        (SMALL, pod(300, mib=600), (pod(300, mib=500), pod(800, mib=500)), Verdict.NO_DEVICE_MEMORY),
        (NodeSpec("n", 1, 1, 1, "A", 1000), pod(500), (pod(500),), Verdict.FITS),
        (NodeSpec("n", 1, 1, 0), PodRequest(cpu_milli=1), (), Verdict.FITS),
        (NodeSpec("n", 1, 1, 0), pod(1), (), Verdict.FEW_DEVICES),
    ],
)  # fmt: skip
def test_why_a_node_cannot_take_a_pod(
    node: NodeSpec, wanted: PodRequest, before: tuple[PodRequest, ...], expected: Verdict
) -> None:
    snapshot = Snapshot([node])
    for other in before:
        place = snapshot.best(other, policy(snapshot).native)
        assert place
        snapshot.take(other, place)
    [judged] = snapshot.rank(wanted, policy(snapshot).native, [0])
    assert judged.verdict is expected


def test_the_fullest_device_that_fits_is_taken_and_with_spread_the_emptiest() -> None:
    for name, expected in (("binpack", 0), ("consolidate", 0), ("spread", 2)):
        snapshot = Snapshot([NODE])
        for device, milli in ((0, 600), (1, 300)):
            snapshot.take(pod(milli), Place(0, ((device,),)))
        place = snapshot.best(pod(400), policy(snapshot, name).native)
        assert place == Place(0, ((expected,),)), name


def snapshot_of(*left: int, mib: tuple[int, ...] = ()) -> Snapshot:
    """Return a snapshot of one node that has these amounts left on its devices."""
    snapshot = Snapshot([NodeSpec("n", 1, 1, len(left), "A", 1000 if mib else 0)])
    for device, milli in enumerate(left):
        share = ShareRequest(max(1, 1000 - milli), mib=1000 - mib[device] if mib else 0)
        if milli < 1000:
            snapshot.take(PodRequest(shares=(share,)), Place(0, ((device,),)))
    return snapshot


@pytest.mark.parametrize("name", ROWS)
@pytest.mark.parametrize(
    ("snapshot", "shares"),
    [
        (snapshot_of(300, 600), (ShareRequest(300), ShareRequest(300, beside=0))),
        (snapshot_of(100, 1000, 1000, 1000), (ShareRequest(100, 2), ShareRequest(200, 2, beside=0))),
        (snapshot_of(400, 1000), (ShareRequest(400), ShareRequest(1000))),
        (snapshot_of(450, 500, mib=(1000, 460)), (ShareRequest(400, mib=0), ShareRequest(100, mib=470))),
    ],
)
def test_a_share_takes_no_room_that_only_a_later_one_can_use(
    snapshot: Snapshot, shares: tuple[ShareRequest, ...], name: str
) -> None:
    request = PodRequest(shares=shares)
    place = snapshot.best(request, policy(snapshot, name).native)
    assert place
    snapshot.take(request, place)
    snapshot.give_back(request, place)


NODES = st.builds(
    NodeSpec, st.just("n"), st.integers(0, 8000), st.integers(0, 8000), st.integers(0, 4), st.sampled_from("AB"),
    st.sampled_from([0, 1000, 80_000]),
)  # fmt: skip
SHARES = st.builds(
    ShareRequest,
    st.one_of(st.integers(1, 1000), st.sampled_from([300, 500, 700, 1000])),
    st.integers(1, 3),
    st.one_of(st.none(), st.integers(0, 1200)),
    memory_milli=st.sampled_from([0, 0, 250, 1000]),
)


@st.composite
def pods(draw: st.DrawFn) -> PodRequest:
    shares: list[ShareRequest] = []
    for share in draw(st.lists(SHARES, max_size=3)):
        earlier = [index for index, other in enumerate(shares) if other.devices >= share.devices]
        beside = draw(st.sampled_from([None, *earlier]))
        shares.append(replace(share, beside=beside))
    models = draw(st.sampled_from([frozenset(), frozenset("A"), frozenset("AB"), frozenset("C")]))
    return PodRequest(draw(st.integers(0, 3000)), draw(st.integers(0, 3000)), tuple(shares), models)


@pytest.mark.early
@given(
    st.lists(NODES, min_size=1, max_size=4),
    st.lists(st.tuples(st.booleans(), pods()), max_size=40),
    st.sampled_from(sorted(ROWS)),
)
@settings(max_examples=150, deadline=None)
def test_a_pod_is_refused_exactly_where_it_does_not_fit_and_nothing_is_given_twice(
    nodes: list[NodeSpec], steps: list[tuple[bool, PodRequest]], name: str
) -> None:
    snapshot, model = Snapshot(nodes), [Node(node) for node in nodes]
    mix = Mix.of([request for _, request in steps] or [PodRequest()])
    rule = Policy(name, snapshot, mix)
    running: list[tuple[PodRequest, Place]] = []
    for ends, request in steps:
        if ends and running:
            ended, place = running.pop(len(running) // 2)
            snapshot.give_back(ended, place)
            model[place.node].take(ended, place.devices, -1)
        rule.refresh()
        fresh = Policy(name, snapshot, mix)  # earlier judgements must leave no trace
        judged = snapshot.rank(request, rule.native, range(len(nodes)))
        assert judged == snapshot.rank(request, fresh.native, range(len(nodes)))
        assert all(not any(one.devices) for one in judged if one.verdict is not Verdict.FITS)
        assert [one.verdict is Verdict.FITS for one in judged] == [node.fits(request) for node in model]
        found = snapshot.best(request, rule.native)
        fitting = [one for one in judged if one.verdict is Verdict.FITS]
        if not fitting:
            assert found is None
            continue
        first = min(fitting, key=lambda one: one.cost)
        assert found == Place(first.node, first.devices)
        snapshot.take(request, found)
        model[found.node].take(request, found.devices)
        running.append((request, found))
        for index, node in enumerate(model):
            node.validate()
            assert snapshot.left(index) == (node.cpu_milli, node.memory_mib, tuple(node.milli))
    for model_name, left in snapshot.free_milli.items():
        assert left == sum(sum(node.milli) for node in model if node.spec.model == model_name)


SHARE = pod(300)
TOO_MUCH = PodRequest(shares=(ShareRequest(1, mib=2**31 - 1), ShareRequest(1, mib=2**31 - 1)))
"""A request for more memory than 32 bits can hold."""
NO_PLACES = [Place(-1, ((0,),)), Place(2, ((0,),)), Place(0, ()), Place(0, ((0, 1),)), Place(0, ((4,),))]


@pytest.mark.parametrize(
    ("act", "text"),
    [
        (lambda snapshot: snapshot.take(pod(701), Place(0, ((0,),))), "place it again"),
        (lambda snapshot: snapshot.take(pod(10, cpu_milli=16_001), Place(0, ((0,),))), "place it again"),
        (lambda snapshot: snapshot.take(pod(10, memory_mib=65_537), Place(0, ((0,),))), "place it again"),
        (lambda snapshot: snapshot.take(TOO_MUCH, Place(0, ((1,), (1,)))), "has not what"),
        (lambda snapshot: snapshot.give_back(pod(301), Place(0, ((0,),))), "had not given that"),
        (lambda snapshot: snapshot.give_back(pod(1), Place(0, ((1,),))), "had not given that"),
        (lambda snapshot: snapshot.give_back(pod(10), Place(0, ((4,),))), "no place"),
        *((lambda snapshot, place=place: snapshot.take(pod(10), place), "no place") for place in NO_PLACES),
        (lambda snapshot: snapshot.rank(pod(10), policy(snapshot).native, [0, 2]), "node 2 is not of this snapshot"),
        (lambda each: each.rank(pod(10), policy(each).native, [0, 0], allowed=[1]), "1 sets of devices for 2 nodes"),
        (lambda snapshot: snapshot.rank_array(pod(10), policy(snapshot).native, [2]), "node 2 is not of this snapshot"),
        (lambda each: each.rank_array(pod(10), policy(each).native, [0, 0], [1]), "1 sets of devices for 2 nodes"),
        (lambda snapshot: snapshot.best(pod(10), policy(Snapshot([NODE, OTHER])).native), "another snapshot's"),
        (lambda snapshot: snapshot.set_node(0, OTHER), "model 'B', new to this snapshot: build a new"),
        (lambda snapshot: snapshot.set_node(2, NODE), "node 2 is not of this snapshot: it has room for 2"),
        (lambda snapshot: snapshot.set_node(-1, NODE), "node -1 is not"),
        (lambda snapshot: snapshot.remove_node(2), "node 2 is not"),
        (lambda snapshot: snapshot.set_left(1, 1, 1, [], []), "no node is at 1"),
        (lambda snapshot: snapshot.set_left(0, 1, 1, [1], [1, 1, 1, 1]), "1 devices' time and 4 devices' memory for n"),
        (lambda snapshot: snapshot.set_uses(0, [IDLE] * 3), "uses of 3 devices for n, which has 4"),
        (lambda snapshot: snapshot.set_uses(2, []), "node 2 is not of this snapshot"),
        (lambda snapshot: snapshot.set_links(0, [0, 0, 0]), "links of 3 devices"),
        (lambda snapshot: snapshot.set_links(0, [0] * 4, [0]), "memory nodes of 1"),
        (lambda snapshot: snapshot.set_links(0, [0b0010, 0, 0, 0]), "others have not: give both ends"),
        (lambda snapshot: snapshot.set_links(0, [0b10000, 0, 0, 0]), "others have not"),
        (lambda _: ShareRequest(0), "a share of 0 thousandths of a device: 1 to 1000 are possible"),
        (lambda _: ShareRequest(1001), "1 to 1000"),
        (lambda _: ShareRequest(10, 17), "1 to 16"),
        (lambda _: ShareRequest(10, mib=-1), "MiB on each device"),
        (lambda _: ShareRequest(100, share_class="best"), "'best' is not known: choose one of latency, standard"),
        (lambda _: ShareRequest(100, limit_milli=99), "limit 99 thousandths of a device: 100 to 1000"),
        (lambda _: PodRequest(cpu_milli=-1), "a pod with -1 thousandths of a processor"),
        (lambda _: PodRequest(shares=(ShareRequest(1),) * 9), "0 to 8 are possible"),
        (lambda _: PodRequest(shares=(ShareRequest(1, beside=0),)), "name an earlier one"),
        (lambda _: PodRequest(shares=(ShareRequest(1), ShareRequest(1, 2, beside=0))), "on more devices"),
        (lambda _: NodeSpec("x", 1, 1, 17), "node x with 17 devices: 0 to 16 are possible"),
        (lambda _: Snapshot([NodeSpec(str(n), 1, 1, 1, str(n)) for n in range(33)]), "33 models of devices, 32 are"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused_and_changes_nothing(act: Callable[[Snapshot], object], text: str) -> None:
    snapshot = Snapshot([NODE], capacity=2)
    snapshot.take(pod(300), Place(0, ((0,),)))
    before = snapshot.left(0), dict(snapshot.free_milli)
    with pytest.raises(PlacementError, match=text):
        act(snapshot)
    assert (snapshot.left(0), snapshot.free_milli) == before


def test_a_row_without_a_node_takes_nothing_not_even_an_empty_pod() -> None:
    snapshot = Snapshot([], capacity=2, models=["A"])
    rule = policy(snapshot).native
    assert [one.verdict for one in snapshot.rank(PodRequest(), rule, [0, 1])] == [Verdict.NO_NODE] * 2
    assert snapshot.best(PodRequest(), rule) is None
    snapshot.set_node(1, NODE)
    assert snapshot.best(SHARE, rule) == Place(1, ((0,),))
    snapshot.remove_node(1)
    assert snapshot.best(PodRequest(), rule) is None
    assert snapshot.free_milli == {"A": 0}
    with pytest.raises(PlacementError, match="no node is at 1"):
        snapshot.left(1)


def test_a_model_that_no_node_has_changes_no_answer() -> None:
    bare, spare = Snapshot([NODE, OTHER]), Snapshot([NODE, OTHER], capacity=9, models=["0", "C"])
    mix = Mix.of(
        [
            PodRequest(0, 0, (ShareRequest(500),), frozenset("AB")),
            PodRequest(0, 0, (ShareRequest(1000),), frozenset("A")),
        ]
    )
    for name in ROWS:
        first, second = (Policy(name, snapshot, mix) for snapshot in (bare, spare))
        assert bare.rank(SHARE, first.native, [0, 1]) == spare.rank(SHARE, second.native, [0, 1])


def test_of_equal_nodes_the_earliest_is_best_in_whatever_order_they_are_asked_about() -> None:
    snapshot = Snapshot([NODE] * 5)
    ranking = snapshot.rank_array(SHARE, policy(snapshot).native, np.array([3, 1, 4, 2], np.int32))
    assert ranking.best() == 1
    assert ranking.place(ranking.best()) == Place(1, ((0,),))
    assert snapshot.rank_array(SHARE, policy(snapshot).native, []).best() == -1


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("set"), st.integers(0, 5), st.sampled_from([NODE, OTHER, PLAIN])),
        st.tuples(st.just("remove"), st.integers(0, 5), st.none()),
        st.tuples(st.just("left"), st.integers(0, 5), st.lists(st.integers(-200, 1200), min_size=6, max_size=6)),
        st.tuples(st.just("take"), st.integers(0, 5), st.integers(1, 1000)),
    ),
    max_size=25,
)


@given(STEPS, st.sampled_from(sorted(ROWS)))
@settings(max_examples=100, deadline=None)
def test_a_snapshot_that_lived_answers_as_one_that_was_made_so(steps: list[tuple[str, int, Any]], name: str) -> None:
    snapshot, model = Snapshot([NODE], capacity=6, models=["B"]), {0: Node(NODE)}
    # The prices of processors come from the nodes that were there when the policy was made.
    numbers = Numbers.of(name, Outline.of(snapshot), MIX)
    rule = Policy.made_of(numbers, snapshot)
    for what, index, value in steps:
        if what == "set":
            snapshot.set_node(index, value)
            model[index] = Node(value)
        elif what == "remove":
            snapshot.remove_node(index)
            model.pop(index, None)
        elif what == "left" and index in model:
            node = model[index]
            milli = mib = value[: node.spec.devices]
            snapshot.set_left(index, value[4] * 8, value[5], milli, mib)
            node.milli = [min(max(0, left), 1000) for left in milli]
            node.mib = [min(max(0, left), node.spec.device_mib) for left in mib]
            node.cpu_milli = min(max(0, value[4] * 8), node.spec.cpu_milli)
            node.memory_mib = min(max(0, value[5]), node.spec.memory_mib)
        elif what == "take" and (
            place := snapshot.best(request := PodRequest(10, 1, (ShareRequest(value),)), rule.native)
        ):
            snapshot.take(request, place)
            model[place.node].take(request, place.devices)
    rule.refresh()
    fresh = Snapshot([], capacity=6, models=["A", "B"])
    for index, node in model.items():
        assert snapshot.left(index) == (node.cpu_milli, node.memory_mib, tuple(node.milli))
        fresh.set_node(index, node.spec)
        fresh.set_left(index, *snapshot.left(index), node.mib)
    assert (fresh.free_milli, fresh.devices) == (snapshot.free_milli, snapshot.devices)
    anew = Policy.made_of(numbers, fresh)
    for request in (
        SHARE,
        PodRequest(100, 10, (ShareRequest(700), ShareRequest(200, beside=0))),
        PodRequest(shares=(ShareRequest(1000, 2),)),
    ):
        ours = snapshot.rank(request, rule.native, range(6))
        assert ours == fresh.rank(request, anew.native, range(6))
        ranking = snapshot.rank_array(request, rule.native, range(6))
        fitting = [one for one in ours if one.verdict is Verdict.FITS]
        best = min(fitting, key=lambda one: (one.cost, one.node), default=None)
        assert ranking.best() == (best.node if best else -1)
