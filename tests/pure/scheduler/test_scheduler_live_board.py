"""A board follows a cluster in which nodes come, change and go, and pods are seen rather than placed."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sharepod.scheduler.ask import NodeSpec, PodAsk, ShareAsk
from sharepod.scheduler.errors import PlacementError
from sharepod.scheduler.mix import Mix
from sharepod.scheduler.native import Board, Place, Verdict
from sharepod.scheduler.policy import ROWS, Policy

NODE = NodeSpec("n", 16_000, 65_536, 4, "A", 1000)
OTHER = NodeSpec("m", 8_000, 1_024, 2, "B")
PLAIN = NodeSpec("p", 8_000, 1_024, 0)
MIX = Mix.of([PodAsk(1000, 0, (ShareAsk(300),)), PodAsk(4000, 0, (ShareAsk(1000, 2),))])
SHARE = PodAsk(shares=(ShareAsk(300),))


def policy(board: Board, name: str = "worth") -> Policy:
    return Policy(name, board, MIX)


def test_a_row_without_a_node_takes_nothing_not_even_an_empty_pod() -> None:
    board = Board([], capacity=2, models=["A"])
    rule = policy(board).native
    assert [one.verdict for one in board.rank(PodAsk(), rule, [0, 1])] == [Verdict.NO_NODE] * 2
    assert board.best(PodAsk(), rule) is None
    board.set_node(1, NODE)
    assert board.best(SHARE, rule) == Place(1, ((0,),))
    board.remove_node(1)
    assert board.best(PodAsk(), rule) is None
    assert board.free_milli == {"A": 0}
    with pytest.raises(PlacementError, match="no node is at 1"):
        board.left(1)


def test_a_node_that_changes_is_another_with_all_of_it_left() -> None:
    board = Board([NODE, OTHER], models=["C"])
    board.take(SHARE, Place(0, ((2,),)))
    board.set_node(0, OTHER)
    assert board.left(0) == (8_000, 1_024, (1000, 1000))
    assert board.free_milli == {"A": 0, "B": 4000, "C": 0}
    assert board.devices == {"A": 0, "B": 4, "C": 0}
    board.set_node(1, PLAIN)
    assert board.free_milli["B"] == 2000
    assert board.left(1) == (8_000, 1_024, ())


@pytest.mark.parametrize(
    ("act", "text"),
    [
        (lambda board: board.set_node(0, NodeSpec("x", 1, 1, 1, "new")), "model 'new', new to this board: build a new"),
        (lambda board: board.set_node(2, NODE), "node 2 is not of this board: it has room for 2"),
        (lambda board: board.set_node(-1, NODE), "node -1 is not"),
        (lambda board: board.remove_node(2), "node 2 is not"),
        (lambda board: board.set_left(1, 1, 1, [], []), "no node is at 1"),
        (lambda board: board.set_left(0, 1, 1, [1], [1, 1, 1, 1]), "1 devices' time and 4 devices' memory for n"),
        (lambda board: board.rank_array(SHARE, policy(board).native, [2]), "node 2 is not of this board"),
        (lambda board: board.rank_array(SHARE, policy(board).native, [0, 0], [1]), "1 sets of devices for 2 nodes"),
    ],
)
def test_what_cannot_be_changes_nothing(act: object, text: str) -> None:
    board = Board([NODE], capacity=2)
    assert callable(act)
    with pytest.raises(PlacementError, match=text):
        act(board)
    assert board.left(0) == (16_000, 65_536, (1000,) * 4)
    assert board.free_milli == {"A": 4000}


def test_what_is_left_is_set_within_what_there_is() -> None:
    board = Board([NODE])
    board.set_left(0, -5, 10**9, [-1, 2000, 300, 1000], [-7, 2000, 10, 1000])
    assert board.left(0) == (0, 65_536, (0, 1000, 300, 1000))
    assert board.free_milli == {"A": 2300}
    rule = policy(board, "binpack").native
    small = PodAsk(shares=(ShareAsk(100, mib=11),))
    assert board.best(small, rule) == Place(0, ((1,),))


def test_a_model_that_no_node_has_changes_no_answer() -> None:
    bare, spare = Board([NODE, OTHER]), Board([NODE, OTHER], capacity=9, models=["0", "C"])
    mix = Mix.of([PodAsk(0, 0, (ShareAsk(500),), frozenset("AB")), PodAsk(0, 0, (ShareAsk(1000),), frozenset("A"))])
    for name in ROWS:
        first, second = (Policy(name, board, mix) for board in (bare, spare))
        assert bare.rank(SHARE, first.native, [0, 1]) == spare.rank(SHARE, second.native, [0, 1])


def test_of_equal_nodes_the_earliest_is_best_in_whatever_order_they_are_asked_about() -> None:
    board = Board([NODE] * 5)
    ranking = board.rank_array(SHARE, policy(board).native, np.array([3, 1, 4, 2], np.int32))
    assert ranking.best() == 1
    assert ranking.place(ranking.best()) == Place(1, ((0,),))
    assert board.rank_array(SHARE, policy(board).native, []).best() == -1


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
def test_a_board_that_lived_answers_as_one_that_was_made_so(steps: list[tuple[str, int, object]], name: str) -> None:
    board = Board([NODE], capacity=6, models=["B"])
    specs: dict[int, NodeSpec] = {0: NODE}
    rule = Policy(name, board, MIX)
    for what, index, value in steps:
        if what == "set":
            assert isinstance(value, NodeSpec)
            board.set_node(index, value)
            specs[index] = value
        elif what == "remove":
            board.remove_node(index)
            specs.pop(index, None)
        elif what == "left" and index in specs:
            assert isinstance(value, list)
            devices = specs[index].devices
            board.set_left(index, value[4] * 8, value[5], value[:devices], value[:devices])
        elif what == "take":
            assert isinstance(value, int)
            ask = PodAsk(10, 1, (ShareAsk(value),))
            place = board.best(ask, rule.native)
            if place is not None:
                board.take(ask, place)
    rule.refresh()
    fresh = Board([], capacity=6, models=["A", "B"])
    for index, spec in specs.items():
        fresh.set_node(index, spec)
        mib = tuple(board._nodes[index].free_mib[0 : spec.devices])
        fresh.set_left(index, *board.left(index), mib)
    assert fresh.free_milli == board.free_milli
    assert fresh.devices == board.devices
    for ask in (SHARE, PodAsk(100, 10, (ShareAsk(700), ShareAsk(200, beside=0))), PodAsk(shares=(ShareAsk(1000, 2),))):
        # Prices of processors are those of the nodes that were there when the policy was made.
        copy = Policy(name, Board([NODE], models=["B"]), MIX)
        copy._board = fresh
        copy.refresh()
        ours = board.rank(ask, rule.native, range(6))
        assert ours == fresh.rank(ask, copy.native, range(6))
        ranking = board.rank_array(ask, rule.native, range(6))
        fitting = [one for one in ours if one.verdict is Verdict.FITS]
        best = min(fitting, key=lambda one: (one.cost, one.node), default=None)
        assert ranking.best() == (best.node if best else -1)
