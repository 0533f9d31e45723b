"""Limits or pauses pods, step by step, on devices for which a share of higher priority was measured to wait. Pure.

All requests fit there, and the arbiter gives each share its request whatever the others do. But the bursts of other
shares make it wait: their turns have to end, and caches are cold. So where a share of higher priority waits for a
device, the lower shares there are first limited to their requests. If that is not enough, they are paused one after the
other. When the higher share has not waited for some time, they go back by the same steps. A paused pod goes on as soon
as there is room for it (scheduling_cycle.py); all of them go on when the higher pod has left. How a pod yields
(Pod.yields) is "limit", "pause", or "" for not at all. `state.pressed` says until when it yields, and for which pod.
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
    """Return the actions for pods that have to yield because of the measurement, or yield no more.

    Each cycle begins with it. On each device on which a pod waits too long it takes the next step, at most every
    STEP_S. Then it lets those go on that need not yield any more. They count on the view and in the state at once.
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
    """Yield the name of the node and the device for each device with several shares that together wait for too long."""
    for name in cluster.contended():
        use = cluster.use(name)
        for device in use.devices if use else ():
            if device.numbers.waited_1m_millipercent >= WAITED_MILLIPERCENT and len(device.shares) > 1:
                yield name, device


def _pods_on(cluster: Cluster, device: DeviceUse) -> dict[str, Pod]:
    """Return the pods that have a share on a device, by uid, as far as the API server shows them."""
    found = {share.terms.pod_uid: cluster.pod(share.terms.pod_uid) for share in device.shares if share.terms.pod_uid}
    return {uid: pod for uid, pod in found.items() if pod is not None}


def _waiter(device: DeviceUse, pods: dict[str, Pod]) -> Pod | None:
    """Return the pod that waits too long for a device although it uses no more than its request and does not yield.

    Of several it is the one of highest priority; None: there is none. `pods`: those of the device, by uid.
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
    """Return the next step for the pods of lower priority on a device: which yield, and how; empty: no step is left.

    First all that may use more than their requests are limited. Then one pod is paused, the least important: the one
    with the lowest priority, then the least urgent class, then the largest request.
    """
    if bursting := [pod for pod in lower if not pod.yields and may_burst(pod)]:
        return [(pod, "limit") for pod in bursting]
    running = [pod for pod in lower if pod.yields != "pause" and pod.gang is None]  # else a whole gang would stop
    if not running:
        return []
    return [(min(running, key=lambda pod: (pod.priority, -_class_rank(pod), -pod.request.milli, pod.uid)), "pause")]


def may_burst(pod: Pod) -> bool:
    """Tell whether a pod may use more of its devices than it is promised, so that a limit would change something."""
    return any(share.limit_milli is not None and share.limit_milli > share.milli for share in pod.request.shares)


def _class_rank(pod: Pod) -> int:
    """Return the rank of the least urgent class of a pod's shares, in the order of CLASSES."""
    return max((CLASSES.index(share.share_class) for share in pod.request.shares), default=0)
