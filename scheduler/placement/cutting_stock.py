"""Computes how much of a device a share takes in effect: its size, and the room beside it that nothing else can fill.

How few devices can hold given shares is the cutting-stock problem. If devices may be cut, its solution is that of a
linear programme (Gilmore and Gomory, "A Linear Programming Approach to the Cutting-Stock Problem", 1961). Its dual
prices are the sizes in effect. The prices of shares that fit on one device together add up to at most 1; where they add
up to less, room is lost. A share of 81 % leaves 19 % to the few shares that are so small, so it takes nearly 1. A share
of 16 % that fills such holes takes nearly 0.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from scipy.optimize import linprog

from sharepod.scheduler.errors import PlacementError
from sharepod.scheduler.placement.request import DEVICE_MILLI, STEP_MILLI

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_STEPS: Final = DEVICE_MILLI // STEP_MILLI
_EQUAL: Final = 1e-7
"""Prices that differ by less, in devices, count as equal."""
_ROUNDS_MAX: Final = 1000
"""The most rounds of `_prices`. Each adds a way to fill a device, of which only a few dozen matter."""


def effective_sizes(demand: Mapping[int, float]) -> dict[int, float]:
    """Return for each size of share, in milli, its size in effect, 0 to 1 devices.

    `demand`: how often each size comes; only the ratios mean something. Raises PlacementError if the linear programme
    is not solved, which should not happen.
    """
    wanted: dict[int, float] = {}
    for size, frequency in demand.items():
        wanted[_step(size)] = wanted.get(_step(size), 0.0) + frequency / sum(demand.values())
    prices = _prices(dict(sorted(wanted.items())))
    return {size: prices[_step(size)] for size in sorted(demand)}


def _step(size: int) -> int:
    """Return a size of share, in milli, as a number of steps, rounded up."""
    return -(-size // STEP_MILLI)


def _prices(wanted: Mapping[int, float]) -> dict[int, float]:
    """Return the price of a share, 0 to 1 devices, by its size in steps; `wanted`: the part of all shares of that size.

    A fill says how many shares of each size are on one device together. The prices are the highest ones, weighted by
    `wanted`, with which no known fill costs more than 1 (the dual programme). A knapsack then finds the dearest of all
    fills, and adds it to the known ones (column generation). The prices are final when that fill costs at most 1, too.
    """
    steps = [*wanted]
    # At first one fill for each size: as many shares of it as there is room for.
    fills = [[_STEPS // step if row == column else 0 for row in range(len(steps))] for column, step in enumerate(steps)]
    prices: list[float] = []
    for _ in range(_ROUNDS_MAX if steps else 0):
        solved = linprog(
            [-part for part in wanted.values()], A_ub=fills, b_ub=[1.0] * len(fills), bounds=(0.0, 1.0), method="highs"
        )
        if solved.x is None:  # should not happen: prices of 0 are always allowed, and none is above 1
            raise PlacementError(f"sizes of shares: {solved.message}: report it with the list of pods")
        prices = [float(price) for price in solved.x]
        cost, fill = _dearest_fill(steps, prices)
        if cost <= 1.0 + _EQUAL:
            return dict(zip(steps, prices, strict=True))
        fills.append(fill)
    # Near enough: after the division by what the dearest fill costs, no fill of a device costs more than 1.
    dearest = max(1.0, _dearest_fill(steps, prices)[0]) if steps else 1.0
    return {step: price / dearest for step, price in zip(steps, prices, strict=True)}


def _dearest_fill(steps: Sequence[int], prices: Sequence[float]) -> tuple[float, list[int]]:
    """Return the cost of the dearest fill of a device, and how many shares of each size it has (a knapsack).

    `steps`: the sizes, in steps; `prices`: of a share of each size.
    """
    best = [0.0] * (_STEPS + 1)  # by the room in steps: the cost of its dearest fill
    last = [-1] * (_STEPS + 1)  # by the room: the index of the last size put in; -1: its last step stays empty
    for room in range(1, _STEPS + 1):
        best[room] = best[room - 1]
        for index, step in enumerate(steps):
            if step <= room and best[room - step] + prices[index] > best[room] + _EQUAL / _STEPS:
                best[room] = best[room - step] + prices[index]
                last[room] = index
    fill = [0] * len(steps)
    room = _STEPS
    while room > 0:
        index = last[room]
        if index >= 0:
            fill[index] += 1
        room -= steps[index] if index >= 0 else 1
    return best[_STEPS], fill
