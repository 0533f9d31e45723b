"""Who yields where all requests fit and a share of higher priority is kept waiting: measured, step by step. Pure.

The arbiter gives each share its request whoever else is there. What bursts of others add is waiting: turns that have to
end, caches that are cold. So where a share of higher priority waits for a device, the lower ones there are first held
to their requests, and paused, one after the other, where that was not enough. When it waits no more for some time, they
go back by the same steps. A paused one goes on as soon as there is room for it (scheduling_cycle.py), and all of them
when the higher one has left.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from sharepod.scheduler.controller.actions import Order, Yield
from sharepod.scheduler.placement.request import CLASSES

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sharepod.scheduler.controller.controller_state import Memory
    from sharepod.scheduler.state.cluster import Cluster
    from sharepod.scheduler.state.pod import Pod
    from sharepod.scheduler.state.usage import DeviceUse

WAITED_MILLIPERCENT: Final = 5_000
"""Of the last minute: a share that waits for so long is pressed."""
STEP_S: Final = 60.0
"""What is measured is the last minute: so long it takes to see what a step has done."""
CALM_S: Final = 120.0
"""How long nobody has to be pressed before the last step is taken back."""


def relieve(cluster: Cluster, memory: Memory, now_s: float) -> list[Order]:
    """Return who yields because of what was measured, and who does so no more. Counts on the view at once."""
    orders: list[Order] = []
    for name, device in _devices(cluster):
        if now_s - memory.eased.get((name, device.facts.uuid), -STEP_S) < STEP_S:
            continue
        pods = _pods(cluster, device)
        pressed = _pressed(device, pods)
        lower = [pod for pod in pods.values() if pressed is not None and pod.priority < pressed.priority]
        if pressed is None or not lower:
            continue
        for pod in lower:
            if pod.yields:
                memory.pressed[pod.uid] = now_s + CALM_S, pressed.uid
        step = _next_step(lower)
        for pod, how in step:
            why = f"for {pressed.title} of priority {pressed.priority}, which waits for its device"
            orders.append(Yield(pod, how, why))
            memory.pressed[pod.uid] = now_s + CALM_S, pressed.uid
            cluster.presume(pod.uid, how, now_s)
        if step:
            memory.eased[name, device.facts.uuid] = now_s
    for uid in memory.limited - memory.pressed.keys():  # by another replica, or an order to go on was not written
        memory.pressed[uid] = now_s + CALM_S, ""
    for uid, (until_s, for_uid) in list(memory.pressed.items()):
        there, other = cluster.pod(uid), cluster.pod(for_uid)
        gone = bool(for_uid) and (other is None or other.ended)
        if there is None or gone or until_s <= now_s:
            del memory.pressed[uid]
            if there is not None and there.yields == "limit":
                who = "has left" if gone else "has not waited for its device lately"
                orders.append(Yield(there, "", f"the pod of higher priority beside it {who}"))
                cluster.presume(uid, "", now_s)
    return orders


def _devices(cluster: Cluster) -> Iterator[tuple[str, DeviceUse]]:
    """Yield the devices of which a share waits, with their node."""
    for name in cluster.contended():
        use = cluster.use(name)
        for device in use.devices if use else ():
            if device.numbers.waited_1m_millipercent >= WAITED_MILLIPERCENT and len(device.shares) > 1:
                yield name, device


def _pods(cluster: Cluster, device: DeviceUse) -> dict[str, Pod]:
    found = {share.terms.pod_uid: cluster.pod(share.terms.pod_uid) for share in device.shares if share.terms.pod_uid}
    return {uid: pod for uid, pod in found.items() if pod is not None}


def _pressed(device: DeviceUse, pods: dict[str, Pod]) -> Pod | None:
    """Return the pod of highest priority that waits for too long while it has not had what it is due; None: none."""
    waiting = [
        pods[share.terms.pod_uid]
        for share in device.shares
        if share.terms.pod_uid in pods
        and share.waited_1m_millipercent >= WAITED_MILLIPERCENT
        and share.used_1m_millipercent <= share.terms.request_millipercent
        and not pods[share.terms.pod_uid].yields
    ]
    return max(waiting, key=lambda pod: (pod.priority, pod.uid), default=None)


def _next_step(lower: list[Pod]) -> list[tuple[Pod, str]]:
    """Return what the lower ones do next: all are limited, then one is paused."""
    if bursting := [pod for pod in lower if not pod.yields and may_burst(pod)]:
        return [(pod, "limit") for pod in bursting]
    running = [pod for pod in lower if pod.yields != "pause" and pod.gang is None]
    if not running:
        return []
    return [(min(running, key=lambda pod: (pod.priority, -_class_rank(pod), -pod.ask.milli, pod.uid)), "pause")]


def may_burst(pod: Pod) -> bool:
    """Tell whether a pod may use more of its devices than it is promised."""
    return any(share.limit_milli is not None and share.limit_milli > share.milli for share in pod.ask.shares)


def _class_rank(pod: Pod) -> int:
    return max((CLASSES.index(share.share_class) for share in pod.ask.shares), default=0)
