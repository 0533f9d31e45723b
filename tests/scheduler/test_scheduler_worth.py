"""The tables of `worth` are what their definition says, and the policy does what they are for."""

import pytest

from sharepod.scheduler.ask import NodeSpec, PodAsk, ShareAsk
from sharepod.scheduler.mix import Kind, Mix
from sharepod.scheduler.native import PRICES, STEPS, Board, Models, NativePolicy, Place, Rule
from sharepod.scheduler.policy import Policy

KINDS = [
    (Kind(1, 300, 1000, ()), 0.5, 333.0),
    (Kind(1, 1000, 4000, ("A",)), 0.25, 1000.0),
    (Kind(1, 70, 0, ("B",)), 0.25, 0.0),
    (Kind(2, 1000, 0, ()), 0.1, 1000.0),
]


def expected(model: str, price: float, offers: int) -> list[float]:
    """Return the worth of each residue by the definition, written recursively from the last offer."""
    worth = [0.0] * STEPS
    for _ in range(offers):
        worth = [
            value
            + sum(
                part * max(0.0, gain - price * kind.cpu_milli + worth[step - -(-kind.milli // 10)] - value)
                for kind, part, gain in KINDS
                if kind.devices == 1 and (not kind.models or model in kind.models) and step >= -(-kind.milli // 10)
            )
            for step, value in enumerate(worth)
        ]
    return worth


def test_the_tables_are_their_definition() -> None:
    policy = NativePolicy(Rule.WORTH, Models("AB"), KINDS, 1.0)
    prices = [0.0, *(0.01 * step for step in range(1, PRICES))]
    policy.fill_worth(prices, 7)
    for index, model in enumerate("AB"):
        for at in (0, 1, 7, PRICES - 1):
            first = (index * PRICES + at) * STEPS
            found = list(policy._tables[first : first + STEPS])
            assert found == pytest.approx(expected(model, prices[at], 7), rel=1e-5, abs=1e-3)


def share(milli: int, cpu_milli: int = 0, devices: int = 1, models: str = "") -> PodAsk:
    return PodAsk(cpu_milli, 0, (ShareAsk(milli, devices, mib=0),), frozenset(models.split()))


def place(board: Board, mix: list[PodAsk], ask: PodAsk) -> Place:
    policy = Policy("worth", board, Mix.of(mix))
    policy.refresh()
    found = board.best(ask, policy.native)
    assert found
    return found


def test_a_share_completes_a_device_rather_than_break_one() -> None:
    board = Board([NodeSpec("n", 64_000, 0, 3)])
    board.take(share(650), Place(0, ((1,),)))
    assert place(board, [share(650), share(350)], share(350)) == Place(0, ((1,),))


def test_a_share_goes_where_little_is_lost_and_not_where_it_spoils_what_others_need() -> None:
    board = Board([NodeSpec("half", 64_000, 0, 1), NodeSpec("hole", 64_000, 0, 1)])
    board.take(share(500), Place(0, ((0,),)))
    board.take(share(700), Place(1, ((0,),)))
    mix = [share(500)] * 6 + [share(300)] + [share(700)]
    assert place(board, mix, share(300)).node == 1


def test_who_needs_many_processors_goes_where_they_are_not_what_runs_out() -> None:
    few, many = NodeSpec("few", 8_000, 0, 8), NodeSpec("many", 64_000, 0, 8)
    mix = [share(1000, 1000)] * 3 + [share(1000, 6000)]
    assert place(Board([few, many]), mix, share(1000, 6000)).node == 1


def test_room_for_the_wide_is_not_broken_when_it_is_scarce() -> None:
    board = Board([NodeSpec("whole", 64_000, 0, 8), NodeSpec("begun", 64_000, 0, 8)])
    board.take(share(1000), Place(1, ((0,),)))
    mix = [share(1000, devices=8)] * 3 + [share(1000)] * 8
    assert place(board, mix, share(1000)).node == 1


def test_devices_that_some_insist_on_are_left_to_them() -> None:
    nodes = [NodeSpec("wanted", 64_000, 0, 4, "A"), NodeSpec("other", 64_000, 0, 4, "B")]
    mix = [share(1000, models="A"), share(1000)]
    assert place(Board(nodes), mix, share(1000)).node == 1
    assert place(Board(nodes), mix, share(1000, models="A")).node == 0
    full = Board(nodes)
    for device in range(4):
        full.take(share(1000), Place(1, ((device,),)))
    assert place(full, mix, share(1000)).node == 0, "a pod that fits is never refused"


def test_without_an_expectation_every_pod_finds_its_place() -> None:
    board = Board([NodeSpec("n", 1000, 0, 1)])
    assert place(board, [], share(400)) == Place(0, ((0,),))
