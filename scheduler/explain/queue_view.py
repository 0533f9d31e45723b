"""Returns what `sharepod queue` shows, as plain values: the waiting jobs, their order, and why each waits. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sharepod.scheduler.controller.fairness import jain, weighted_shares
from sharepod.scheduler.placement.request import DEVICE_MILLI

if TYPE_CHECKING:
    from sharepod.kube.lease import Lease
    from sharepod.scheduler.controller.controller_state import ControllerState
    from sharepod.scheduler.controller.job import Job
    from sharepod.scheduler.controller.queues import Queues


def view(state: ControllerState, queues: Queues, lease: Lease, now_s: float, *, refusal: str) -> dict[str, object]:
    """Return the waiting jobs and the queues as the last cycle left them.

    Only the replica that decides has them; another one returns empty lists. `queues`: the rules. `refusal`: why the
    rules that were last given are not in force; empty: they are.
    """
    shares = weighted_shares(state, queues)
    decides = lease.is_held()
    return {
        "decides": decides,
        "trouble": lease.trouble,
        "refusal": refusal,
        "fairness": round(jain(list(shares.values())), 6),
        "waiting": [
            _row(number, job, why, now_s)
            for number, (job, why) in enumerate(state.waiting if decides else (), start=1)
        ],
        "queues": [
            {
                "queue": name,
                "weight": queues.of(name).weight,
                "share": round(shares.get(name, 0.0), 6),
                "held_devices": state.held(name, device_mib=0).device_milli / DEVICE_MILLI,
                "cap_devices": None if (cap := queues.of(name).cap_milli) is None else cap / DEVICE_MILLI,
                "waiting": sum(job.namespace == name for job, _ in state.waiting),
            }
            for name in sorted(state.queues() if decides else ())
        ],
    }  # fmt: skip


def _row(number: int, job: Job, why: str, now_s: float) -> dict[str, object]:
    """Return a waiting job as plain values; `number` is its position from 1, `why` says why it waits."""
    return {
        "position": number,
        "job": job.title,
        "kind": job.key[1].partition("/")[0],
        "queue": job.namespace,
        "priority": job.priority,
        "pods": len(job.waiting),
        "least": job.least,
        "devices": sum(pod.request.milli for pod in job.waiting) / DEVICE_MILLI,
        "waited_s": round(max(0.0, now_s - job.since_s), 1),
        "paused": job.resumes,
        "why": why,
    }
