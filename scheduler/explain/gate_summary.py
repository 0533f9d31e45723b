"""Computes the numbers of gates and queues that the controller's metrics show. Pure: everything is given."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from sharepod.scheduler.controller.fairness import jain, weighted_shares
from sharepod.scheduler.gate_metrics import GateLook, QueueLook
from sharepod.scheduler.placement.request import DEVICE_MILLI

if TYPE_CHECKING:
    from sharepod.scheduler.controller.controller_state import ControllerState
    from sharepod.scheduler.controller.queues import Queues


def summarise_gates(
    state: ControllerState, queues: Queues, now_s: float, *, leading: bool, turns: int, rules_refused: bool
) -> GateLook:
    """Return the numbers of this moment for the metrics.

    `leading`: this replica decides; else there are no queues in them. `turns`: how often it has come to decide.
    `rules_refused`: the rules that were last given are not in force.
    """
    found: defaultdict[str, QueueLook] = defaultdict(QueueLook)
    longest_s, fairness = 0.0, 1.0
    if leading:
        for job in state.waits.values():
            shares = [share for pod in job.waiting for share in pod.request.shares]
            milli = sum(pod.request.milli for pod in job.waiting)
            paused = sum(pod.yields == "pause" for pod in job.released)
            look = QueueLook(len(job.waiting), len(shares), milli / DEVICE_MILLI, paused)
            found[job.namespace] = found[job.namespace].plus(look)
            if job.waiting:
                longest_s = max(longest_s, now_s - job.since_s)
        for name in state.queues():
            found[name] = found[name].plus(QueueLook(held=state.held(name, device_mib=0).device_milli / DEVICE_MILLI))
        fairness = jain(list(weighted_shares(state, queues).values()))
    return GateLook(leading, turns, found, queues.by_name, longest_s, fairness, rules_refused)
