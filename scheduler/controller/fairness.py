"""Measures how evenly a cluster is divided among its queues. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sharepod.scheduler.controller.controller_state import ControllerState
    from sharepod.scheduler.controller.queues import Queues


def jain(values: Sequence[float]) -> float:
    """Return Jain's index: 1 where all values are equal, all 0 included; 1/n where one of n has everything."""
    squares = len(values) * sum(value * value for value in values)
    return sum(values) ** 2 / squares if squares else 1.0


def weighted_shares(state: ControllerState, queues: Queues) -> dict[str, float]:
    """Return the dominant share (job_order.py), divided by its weight, of each queue that holds or waits for something.

    Empty: no cycle has run yet.
    """
    if state.capacity is None:
        return {}
    _, capacity = state.capacity
    return {
        name: state.held(name, capacity.device_mib).dominant(capacity.total) / queues.of(name).weight
        for name in sorted(state.queues())
    }


def overfull(state: ControllerState, queues: Queues) -> list[tuple[str, int, int]]:
    """Return the queues that hold more than their caps, with what they hold and their caps, in milli of devices."""
    caps = [(name, cap) for name in state.queues() if (cap := queues.of(name).cap_milli) is not None]
    held = ((name, state.held(name, device_mib=0).device_milli, cap) for name, cap in caps)
    return [(name, milli, cap) for name, milli, cap in held if milli > cap]
