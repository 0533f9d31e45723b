"""Limits or pauses pods, step by step, on devices for which a share of higher priority was measured to wait. Pure.

All requests fit there, and the arbiter gives each share its request whatever the others do. But the bursts of other
shares make it wait: their turns have to end, and caches are cold. The pod of higher priority that waits is the waiter.
The pods of lower priority on its device are first limited to their requests. If that is not enough, they are paused one
after the other. When the waiter has left, or has not waited too long for CALM_S, they may go on: a limited pod at once,
a paused one as soon as there is room for it (scheduling_cycle.py). How a pod yields (Pod.yields) is "limit", "pause",
or "" for not at all. `state.pressed` says until when it yields, and for which waiter.
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
"""When the waiter has not waited too long for this time, the pods beside it go on."""


def relieve(cluster: Cluster, state: ControllerState, now_s: float) -> list[Action]:
    """Return the actions that make pods yield, or let them go on, by the measured waiting.

    Called first in each cycle. The view and the state show each action at once.
    """
    return _press(cluster, state, now_s) + _let_go(cluster, state, now_s)


def _press(cluster: Cluster, state: ControllerState, now_s: float) -> list[Action]:
    """Make the next pods yield on each device on which a pod waits too long: one step at most every STEP_S."""
    actions: list[Action] = []
    for name, device in _contended_devices(cluster):
        if now_s - state.last_step_s.get((name, device.facts.uuid), -STEP_S) < STEP_S:  # its effect does not show yet
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
            state.last_step_s[name, device.facts.uuid] = now_s
    return actions


def _let_go(cluster: Cluster, state: ControllerState, now_s: float) -> list[Action]:
    """Let limited pods go on when their waiter has left, or has not waited too long for CALM_S."""
    actions: list[Action] = []
    # Limited pods without a time limit here: another replica limited them, or our order to go on was not written.
    for uid in state.limited - state.pressed.keys():
        state.pressed[uid] = now_s + CALM_S, ""
    for uid, (until_s, waiter_uid) in list(state.pressed.items()):
        pod, waiter = cluster.pod(uid), cluster.pod(waiter_uid)
        waiter_left = bool(waiter_uid) and (waiter is None or waiter.ended)
        if pod is None or waiter_left or until_s <= now_s:
            del state.pressed[uid]
            if pod is not None and pod.yields == "limit":  # a paused pod goes on once it has room
                cause = "has left" if waiter_left else "has not waited for its device lately"
                actions.append(Yield(pod, "", f"the pod of higher priority beside it {cause}"))
                cluster.presume(uid, "", now_s)
    return actions


def _contended_devices(cluster: Cluster) -> Iterator[tuple[str, DeviceUse]]:
    """Yield each device with several shares that together wait too long, with the name of its node in front."""
    for name in cluster.contended():
        use = cluster.use(name)
        for device in use.devices if use else ():
            if device.numbers.waited_1m_millipercent >= WAITED_MILLIPERCENT and len(device.shares) > 1:
                yield name, device


def _pods_on(cluster: Cluster, device: DeviceUse) -> dict[str, Pod]:
    """Return, by uid, the pods that have a share on a device and that the API server shows."""
    found = {share.terms.pod_uid: cluster.pod(share.terms.pod_uid) for share in device.shares if share.terms.pod_uid}
    return {uid: pod for uid, pod in found.items() if pod is not None}


def _waiter(device: DeviceUse, pods: dict[str, Pod]) -> Pod | None:
    """Return the pod that waits too long for a device although it uses no more than its request and does not yield.

    Of several it is the one of highest priority; None: there is none. `pods`: those with a share there, by uid.
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
    """Return the next step on a device: pods of `lower`, each with how it is to yield. Empty: no step is left.

    `lower`: the pods there of lower priority than the waiter. First all that may use more than their requests are
    limited. Then one pod is paused, the least important: the lowest priority, then the least urgent class, then the
    largest request.
    """
    if bursting := [pod for pod in lower if not pod.yields and may_burst(pod)]:
        return [(pod, "limit") for pod in bursting]
    # A paused member would stop its whole gang, so gangs are left out.
    pausable = [pod for pod in lower if pod.yields != "pause" and pod.gang is None]
    if not pausable:
        return []
    return [(min(pausable, key=lambda pod: (pod.priority, -_class_rank(pod), -pod.request.milli, pod.uid)), "pause")]


def may_burst(pod: Pod) -> bool:
    """Tell whether a pod may use more of its devices than it is promised, so that a limit would change something."""
    return any(share.limit_milli is not None and share.limit_milli > share.milli for share in pod.request.shares)


def _class_rank(pod: Pod) -> int:
    """Return the rank of the least urgent class of a pod's shares, in the order of CLASSES."""
    return max((CLASSES.index(share.share_class) for share in pod.request.shares), default=0)
