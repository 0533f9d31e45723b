"""Limits or pauses pods, step by step, on devices for which a share of higher priority was measured to wait. Pure.

All requests fit there, and the arbiter gives each share its request whatever the others do. But the bursts of other
shares make it wait: their turns have to end, and caches are cold. So where a share of higher priority waits for a
device, the lower shares there are first limited to their requests. If that is not enough, they are paused one after the
other. When the higher share has not waited for some time, they go back by the same steps. A paused pod goes on as soon
as there is room for it (scheduling_cycle.py); all of them go on when the higher pod has left.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from sharepod.scheduler.controller.actions import Action, Yield
from sharepod.scheduler.placement.request import CLASSES

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sharepod.scheduler.controller.controller_state import ControllerState
    from sharepod.scheduler.state.cluster import Cluster
    from sharepod.scheduler.state.pod import Pod
    from sharepod.scheduler.state.usage import DeviceUse

WAITED_MILLIPERCENT: Final = 5_000
"""A share that waited for at least this part of the last minute waits too long."""
STEP_S: Final = 60.0
"""The measurement covers the last minute, so the effect of a step shows after this time."""
CALM_S: Final = 120.0
"""When for this time no share has waited too long, the last step is taken back."""


def relieve(cluster: Cluster, state: ControllerState, now_s: float) -> list[Action]:
    """Return actions for pods that yield because of the measurement, or yield no more.

    They count on the view and in the state at once.
    """
    actions: list[Action] = []
    for name, device in _contended_devices(cluster):
        if now_s - state.eased.get((name, device.facts.uuid), -STEP_S) < STEP_S:  # the last step does not show yet
            continue
        pods = _pods_on(cluster, device)
        waiter = _waiter(device, pods)
        lower = [pod for pod in pods.values() if waiter is not None and pod.priority < waiter.priority]
        if waiter is None or not lower:
            continue
        for pod in lower:
            if pod.yields:  # CALM_S begins anew
                state.pressed[pod.uid] = now_s + CALM_S, waiter.uid
        step = _next_step(lower)
        for pod, how in step:
            why = f"for {waiter.title} of priority {waiter.priority}, which waits for its device"
            actions.append(Yield(pod, how, why))
            state.pressed[pod.uid] = now_s + CALM_S, waiter.uid
            cluster.presume(pod.uid, how, now_s)
        if step:
            state.eased[name, device.facts.uuid] = now_s
    for uid in state.limited - state.pressed.keys():  # by another replica, or an order to go on was not written
        state.pressed[uid] = now_s + CALM_S, ""
    for uid, (until_s, for_uid) in list(state.pressed.items()):
        yielding, higher = cluster.pod(uid), cluster.pod(for_uid)
        gone = bool(for_uid) and (higher is None or higher.ended)
        if yielding is None or gone or until_s <= now_s:
            del state.pressed[uid]
            if yielding is not None and yielding.yields == "limit":  # a paused pod goes on once it has room
                cause = "has left" if gone else "has not waited for its device lately"
                actions.append(Yield(yielding, "", f"the pod of higher priority beside it {cause}"))
                cluster.presume(uid, "", now_s)
    return actions


def _contended_devices(cluster: Cluster) -> Iterator[tuple[str, DeviceUse]]:
    """Yield the devices that several shares hold and on which they wait for too long, each with its node."""
    for name in cluster.contended():
        use = cluster.use(name)
        for device in use.devices if use else ():
            if device.numbers.waited_1m_millipercent >= WAITED_MILLIPERCENT and len(device.shares) > 1:
                yield name, device


def _pods_on(cluster: Cluster, device: DeviceUse) -> dict[str, Pod]:
    """Return the pods that have a share on a device, by uid."""
    found = {share.terms.pod_uid: cluster.pod(share.terms.pod_uid) for share in device.shares if share.terms.pod_uid}
    return {uid: pod for uid, pod in found.items() if pod is not None}


def _waiter(device: DeviceUse, pods: dict[str, Pod]) -> Pod | None:
    """Return the pod of highest priority that waits too long, uses no more than its request and does not yield.

    None: there is no such pod.
    """
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
    """Return the next step for the lower pods: all are limited, then one is paused; empty: no step is left.

    The least important pod is paused: the lowest priority, then the last class, then the largest request.
    """
    if bursting := [pod for pod in lower if not pod.yields and may_burst(pod)]:
        return [(pod, "limit") for pod in bursting]
    running = [pod for pod in lower if pod.yields != "pause" and pod.gang is None]  # else a whole gang would stop
    if not running:
        return []
    return [(min(running, key=lambda pod: (pod.priority, -_class_rank(pod), -pod.request.milli, pod.uid)), "pause")]


def may_burst(pod: Pod) -> bool:
    """Tell whether a pod may use more of its devices than it is promised."""
    return any(share.limit_milli is not None and share.limit_milli > share.milli for share in pod.request.shares)


def _class_rank(pod: Pod) -> int:
    """Return the rank of the least urgent class of a pod's shares, in the order of CLASSES."""
    return max((CLASSES.index(share.share_class) for share in pod.request.shares), default=0)
