"""Placement finds room exactly where there is room, never takes what is not there, and answers the same again."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from reference import Node

from sharepod.scheduler.ask import NodeSpec, PodAsk, ShareAsk
from sharepod.scheduler.errors import PlacementError
from sharepod.scheduler.mix import Mix
from sharepod.scheduler.native import Board, Place, Verdict
from sharepod.scheduler.policy import ROWS, Policy

NODE = NodeSpec("n", 16_000, 65_536, 4, "A")
SMALL = NodeSpec("n", 1, 1, 2, "A", 1000)


def policy(board: Board, name: str = "binpack") -> Policy:
    return Policy(name, board, Mix.of([PodAsk(1000, 0, (ShareAsk(300),)), PodAsk(4000, 0, (ShareAsk(1000, 2),))]))


def verdict(node: NodeSpec, ask: PodAsk, *before: PodAsk) -> Verdict:
    board = Board([node])
    for other in before:
        place = board.best(other, policy(board).native)
        assert place
        board.take(other, place)
    [judged] = board.rank(ask, policy(board).native, [0])
    return judged.verdict


def pod(milli: int, devices: int = 1, mib: int | None = None, **more: int) -> PodAsk:
    return PodAsk(shares=(ShareAsk(milli, devices, mib),), **more)


@pytest.mark.parametrize(
    ("node", "ask", "before", "expected"),
    [
        (NODE, pod(300), (), Verdict.FITS),
        (NODE, PodAsk(cpu_milli=16_001), (), Verdict.NO_CPU),
        (NODE, PodAsk(memory_mib=65_537), (), Verdict.NO_MEMORY),
        (NODE, PodAsk(shares=(ShareAsk(1),), models=frozenset({"B"})), (), Verdict.NO_MODEL),
        (NODE, PodAsk(shares=(ShareAsk(1),), models=frozenset({"B", "A"})), (), Verdict.FITS),
        (NODE, pod(1000, 5), (), Verdict.FEW_DEVICES),
        (NODE, pod(1000, 4), (pod(10),), Verdict.NO_TIME),
        (NODE, pod(700), tuple(pod(400) for _ in range(8)), Verdict.NO_TIME),
        (SMALL, pod(300, mib=600), (pod(300, mib=500), pod(800, mib=500)), Verdict.NO_DEVICE_MEMORY),
        (NodeSpec("n", 1, 1, 1, "A", 1000), pod(500), (pod(500),), Verdict.FITS),
        (NodeSpec("n", 1, 1, 0), PodAsk(cpu_milli=1), (), Verdict.FITS),
        (NodeSpec("n", 1, 1, 0), pod(1), (), Verdict.FEW_DEVICES),
    ],
)  # fmt: skip
def test_why_a_node_cannot_take_a_pod(
    node: NodeSpec, ask: PodAsk, before: tuple[PodAsk, ...], expected: Verdict
) -> None:
    assert verdict(node, ask, *before) is expected


def test_the_fullest_device_that_fits_is_taken_and_with_spread_the_emptiest() -> None:
    for name, expected in (("binpack", 0), ("consolidate", 0), ("spread", 2)):
        board = Board([NODE])
        for device, milli in ((0, 600), (1, 300)):
            board.take(pod(milli), Place(0, ((device,),)))
        place = board.best(pod(400), policy(board, name).native)
        assert place == Place(0, ((expected,),)), name


def test_shares_of_a_pod_may_have_to_be_on_the_same_device() -> None:
    board = Board([NODE])
    together = PodAsk(shares=(ShareAsk(600), ShareAsk(300, beside=0)))
    place = board.best(together, policy(board, "spread").native)
    assert place
    assert place.devices[0] == place.devices[1]
    apart = board.best(PodAsk(shares=(ShareAsk(600), ShareAsk(300))), policy(board, "spread").native)
    assert apart
    assert apart.devices[0] != apart.devices[1]
    too_much = PodAsk(shares=(ShareAsk(600), ShareAsk(500, beside=0)))
    assert board.best(too_much, policy(board).native) is None


def test_devices_that_the_pod_may_not_have_are_not_taken() -> None:
    board = Board([NODE, NODE])
    first, second = board.rank(pod(100), policy(board).native, [1, 0], allowed=[0b0100, 0])
    assert (first.node, first.devices) == (1, ((2,),))
    assert (second.node, second.verdict) == (0, Verdict.FEW_DEVICES)


@pytest.mark.parametrize("name", ROWS)
def test_of_equal_nodes_the_first_is_taken(name: str) -> None:
    board = Board([NODE, NODE, NODE])
    place = board.best(pod(300), policy(board, name).native)
    assert place
    assert place.node == 0


def test_what_is_not_there_is_not_taken() -> None:
    board = Board([NODE])
    board.take(pod(700), Place(0, ((1,),)))
    before = board.left(0)
    for ask, devices in ((pod(301), 1), (pod(10, cpu_milli=16_001), 0), (pod(10, memory_mib=65_537), 0)):
        with pytest.raises(PlacementError, match="place it again"):
            board.take(ask, Place(0, ((devices,),)))
    assert board.left(0) == before


def board_of(*left: int, mib: tuple[int, ...] = ()) -> Board:
    """Return a node whose devices have so much left."""
    board = Board([NodeSpec("n", 1, 1, len(left), "A", 1000 if mib else 0)])
    for device, milli in enumerate(left):
        share = ShareAsk(max(1, 1000 - milli), mib=1000 - mib[device] if mib else 0)
        if milli < 1000:
            board.take(PodAsk(shares=(share,)), Place(0, ((device,),)))
    return board


@pytest.mark.parametrize("name", ROWS)
@pytest.mark.parametrize(
    ("board", "shares"),
    [
        (board_of(300, 600), (ShareAsk(300), ShareAsk(300, beside=0))),
        (board_of(100, 1000, 1000, 1000), (ShareAsk(100, 2), ShareAsk(200, 2, beside=0))),
        (board_of(400, 1000), (ShareAsk(400), ShareAsk(1000))),
        (board_of(450, 500, mib=(1000, 460)), (ShareAsk(400, mib=0), ShareAsk(100, mib=470))),
    ],
)
def test_a_share_takes_no_room_that_only_a_later_one_can_use(
    board: Board, shares: tuple[ShareAsk, ...], name: str
) -> None:
    ask = PodAsk(shares=shares)
    place = board.best(ask, policy(board, name).native)
    assert place
    board.take(ask, place)
    board.give_back(ask, place)


def test_what_was_not_taken_is_not_given_back() -> None:
    board = Board([NODE])
    board.take(pod(300), Place(0, ((0,),)))
    before = board.left(0), dict(board.free_milli)
    for ask, device in ((pod(301), 0), (pod(1), 1)):
        with pytest.raises(PlacementError, match="had not given that"):
            board.give_back(ask, Place(0, ((device,),)))
    assert (board.left(0), board.free_milli) == before


def test_amounts_that_add_up_to_more_than_32_bits_are_not_taken() -> None:
    board = Board([NodeSpec("n", 1, 1, 1, "A", 80_000)])
    ask = PodAsk(shares=(ShareAsk(1, mib=2**31 - 1), ShareAsk(1, mib=2**31 - 1)))
    with pytest.raises(PlacementError, match="has not what"):
        board.take(ask, Place(0, ((0,), (0,))))
    assert board.best(ask, policy(board).native) is None


@pytest.mark.parametrize(
    "place",
    [Place(-1, ((0,),)), Place(1, ((0,),)), Place(0, ()), Place(0, ((0, 1),)), Place(0, ((4,),)), Place(0, ((-1,),))],
)
def test_a_place_that_is_none_is_refused(place: Place) -> None:
    board = Board([NODE])
    for act in (board.take, board.give_back):
        with pytest.raises(PlacementError, match="no place"):
            act(pod(10), place)
    assert board.left(0)[2] == (1000,) * 4


def test_questions_about_what_is_not_there_are_refused() -> None:
    board = Board([NODE])
    with pytest.raises(PlacementError, match="node 1 is not of this board"):
        board.rank(pod(10), policy(board).native, [0, 1])
    with pytest.raises(PlacementError, match="1 sets of devices for 2 nodes"):
        board.rank(pod(10), policy(board).native, [0, 0], allowed=[1])
    other = Board([NODE, NodeSpec("b", 1, 1, 1, "B")])
    with pytest.raises(PlacementError, match="another board's"):
        board.best(pod(10), policy(other).native)


def test_a_name_that_is_no_policy_is_refused_with_those_that_are() -> None:
    with pytest.raises(PlacementError, match="'best' is not known: choose one of worth, fgd"):
        policy(Board([NODE]), "best")


NODES = st.builds(
    NodeSpec,
    st.just("n"),
    st.integers(0, 8000),
    st.integers(0, 8000),
    st.integers(0, 4),
    st.sampled_from("AB"),
    st.sampled_from([0, 1000, 80_000]),
)
SHARES = st.builds(
    ShareAsk,
    st.one_of(st.integers(1, 1000), st.sampled_from([300, 500, 700, 1000])),
    st.integers(1, 3),
    st.one_of(st.none(), st.integers(0, 1200)),
)


@st.composite
def pods(draw: st.DrawFn) -> PodAsk:
    shares: list[ShareAsk] = []
    for share in draw(st.lists(SHARES, max_size=3)):
        earlier = [index for index, other in enumerate(shares) if other.devices >= share.devices]
        beside = draw(st.sampled_from([None, *earlier]))
        shares.append(replace(share, beside=beside))
    models = draw(st.sampled_from([frozenset(), frozenset("A"), frozenset("AB"), frozenset("C")]))
    return PodAsk(draw(st.integers(0, 3000)), draw(st.integers(0, 3000)), tuple(shares), models)


@given(
    st.lists(NODES, min_size=1, max_size=4),
    st.lists(st.tuples(st.booleans(), pods()), max_size=40),
    st.sampled_from(sorted(ROWS)),
)
@settings(max_examples=150, deadline=None)
def test_a_pod_is_refused_exactly_where_it_does_not_fit_and_nothing_is_given_twice(
    nodes: list[NodeSpec], steps: list[tuple[bool, PodAsk]], name: str
) -> None:
    board, model = Board(nodes), [Node(node) for node in nodes]
    mix = Mix.of([ask for _, ask in steps] or [PodAsk()])
    rule = Policy(name, board, mix)
    running: list[tuple[PodAsk, Place]] = []
    for ends, ask in steps:
        if ends and running:
            ended, place = running.pop(len(running) // 2)
            board.give_back(ended, place)
            model[place.node].take(ended, place.devices, -1)
        rule.refresh()
        fresh = Policy(name, board, mix)  # what was judged before leaves no trace
        judged = board.rank(ask, rule.native, range(len(nodes)))
        assert judged == board.rank(ask, fresh.native, range(len(nodes)))
        assert all(not any(one.devices) for one in judged if one.verdict is not Verdict.FITS)
        assert [one.verdict is Verdict.FITS for one in judged] == [node.fits(ask) for node in model]
        found = board.best(ask, rule.native)
        fitting = [one for one in judged if one.verdict is Verdict.FITS]
        if not fitting:
            assert found is None
            continue
        first = min(fitting, key=lambda one: one.cost)
        assert found == Place(first.node, first.devices)
        board.take(ask, found)
        model[found.node].take(ask, found.devices)
        running.append((ask, found))
        for index, node in enumerate(model):
            node.validate()
            assert board.left(index) == (node.cpu_milli, node.memory_mib, tuple(node.milli))
    for model_name, left in board.free_milli.items():
        assert left == sum(sum(node.milli) for node in model if node.spec.model == model_name)


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: ShareAsk(0), "a share of 0 thousandths of a device: 1 to 1000 are possible"),
        (lambda: ShareAsk(1001), "1 to 1000"),
        (lambda: ShareAsk(10, 17), "1 to 16"),
        (lambda: ShareAsk(10, mib=-1), "MiB on each device"),
        (lambda: PodAsk(cpu_milli=-1), "a pod with -1 thousandths of a processor"),
        (lambda: PodAsk(shares=(ShareAsk(1),) * 9), "0 to 8 are possible"),
        (lambda: PodAsk(shares=(ShareAsk(1, beside=0),)), "name an earlier one"),
        (lambda: PodAsk(shares=(ShareAsk(1), ShareAsk(1, 2, beside=0))), "on more devices"),
        (lambda: NodeSpec("x", 1, 1, 17), "node x with 17 devices: 0 to 16 are possible"),
        (
            lambda: Board([NodeSpec(str(n), 1, 1, 1, str(n)) for n in range(33)]),
            "33 models of devices, 32 are the limit",
        ),
    ],
)
def test_what_cannot_be_is_refused_with_the_limit(make: object, text: str) -> None:
    assert callable(make)
    with pytest.raises(PlacementError, match=text):
        make()
