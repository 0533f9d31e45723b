"""Decides which gangs start anew as a whole because they lost a member, and how soon. Pure.

Only gangs with the annotation `gang-restart: whole` do so. The watch says only that a pod no longer lives. So
exit_status.py asks the API server how it ended, and tells it here. If a member failed, all others are ended. If it was
deleted or evicted, they are ended only if fewer than the gang's least are left. If it succeeded, they go on. A gang
that starts anew again and again waits longer and longer before it is released, like containers in kubelet's back-off.
Times are seconds of the controller's clock.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from sharepod.scheduler.controller.actions import Action, Evict, Tell
from sharepod.scheduler.controller.job import key_of

if TYPE_CHECKING:
    from sharepod.scheduler.controller.controller_state import ControllerState
    from sharepod.scheduler.controller.job import Job, Key
    from sharepod.scheduler.state.cluster import Cluster
    from sharepod.scheduler.state.pod import Pod

FIRST_S: Final = 10.0
"""The wait before the second restart; it doubles before each further one."""
MOST_S: Final = 300.0
"""The longest wait before a restart."""
CALM_S: Final = 600.0
"""A gang that has gone on for this time after its wait starts anew at once, as if for the first time."""
ASKED_S: Final = 600.0
"""How long the API server is asked what became of a member; then the member is forgotten."""
KNOWN_MAX: Final = 4096
"""The most lost members, and the most delayed gangs, that are remembered; the oldest are forgotten first."""
FAILED: Final = "failed"
GONE: Final = "gone"
SUCCEEDED: Final = "succeeded"


@dataclass(frozen=True, slots=True)
class Lost:
    """A member that no longer lives."""

    pod: Pod
    """The member, or with `unknown` the pod that has come in its place."""
    at_s: float
    how: str
    """FAILED, GONE or SUCCEEDED; empty: the API server has not answered yet."""
    detail: str = ""
    """How it ended, in words for users."""
    unknown: bool = False
    """It was lost before this replica decided, so nothing more is known of it."""


@dataclass(frozen=True, slots=True)
class _Ending:
    """The end of a gang that starts anew."""

    at_s: float
    """Members that came later belong to its next start."""
    why: str


@dataclass(frozen=True, slots=True)
class _Delay:
    """How often a gang was started anew, and until when it is not released."""

    times: int
    until_s: float


class Restarts:
    """The members that gangs have lost, and the gangs that start anew because of that."""

    def __init__(self) -> None:
        self._lost: OrderedDict[str, Lost] = OrderedDict()
        """By uid."""
        self._ending: dict[Key, _Ending] = {}
        """Gangs that start anew, and of which members from before are still there."""
        self._delays: OrderedDict[Key, _Delay] = OrderedDict()
        self._found_earlier = False
        """`_find_lost` has looked for gangs that lost a member before this replica decided."""

    def lose(self, pod: Pod, now_s: float) -> None:
        """Note that a pod no longer lives, if it was released and its gang starts anew as a whole; else do nothing.

        A pod that was being deleted when it was last seen counts as GONE. About any other the API server is asked.
        """
        if pod.gang is not None and pod.gang.restart == "whole" and not pod.gated:
            self._lost[pod.uid] = Lost(pod, now_s, GONE if pod.deleting else "", "it was deleted")
            if len(self._lost) > KNOWN_MAX:
                self._lost.popitem(last=False)

    def unknown(self, most: int) -> list[Pod]:
        """Return at most `most` pods about which the API server is to be asked how they ended."""
        return [lost.pod for lost in self._lost.values() if not lost.how][:most]

    def found(self, uid: str, how: str, detail: str) -> None:
        """Note how a pod ended, as exit_status.py has been told; an empty `how`: it lives, and is not lost."""
        if (lost := self._lost.pop(uid, None)) is not None and how:
            self._lost[uid] = replace(lost, how=how, detail=detail)

    def emptied(self, key: Key) -> None:
        """Note that no released pod of a gang is left to be ended, so its lost members matter no more."""
        for uid in [uid for uid, lost in self._lost.items() if key_of(lost.pod) == key]:
            del self._lost[uid]

    def held_back(self, now_s: float) -> dict[Key, str]:
        """Return the gangs that are not to be released now because they have lost a member, each with the reason.

        Delays that ended CALM_S ago are forgotten.
        """
        found: dict[Key, str] = {}
        for key, delay in list(self._delays.items()):
            if now_s < delay.until_s:
                found[key] = (
                    f"its gang was started anew {delay.times} times: it waits for {delay.until_s - now_s:.0f} s more"
                )
            elif now_s - delay.until_s > CALM_S:
                del self._delays[key]
        for lost in self._lost.values():
            if not lost.how:
                found[key_of(lost.pod)] = "a member of its gang has ended, and the API server is asked how"
        for key, ending in self._ending.items():
            found[key] = f"its gang starts anew, and members of before have not ended yet: {ending.why}"
        return found

    def restart(self, cluster: Cluster, state: ControllerState, now_s: float) -> list[Action]:
        """Return the actions that end the pods of gangs that start anew; each cycle calls it once.

        The state notes the evictions. A pod that a disruption budget keeps is evicted later, when it is not spared any
        more. A gang has ended when no pod that came before the loss is left.
        """
        actions: list[Action] = []
        if not self._found_earlier:
            self._found_earlier = True
            self._find_lost(state, now_s)
        for uid, lost in list(self._lost.items()):
            if lost.how or now_s - lost.at_s > ASKED_S:
                del self._lost[uid]
                actions += self._begin(state, lost, now_s)
        for key, ending in list(self._ending.items()):
            left = [  # released pods that came before the loss
                pod
                for pod in state.members.get(key, {}).values()
                if not pod.deleting
                and (not pod.gated or cluster.assumed(pod.uid) is not None)
                and state.came_s(pod) <= ending.at_s
            ]
            if not left:
                del self._ending[key]
            for pod in left:
                if pod.uid not in state.spared and pod.uid not in state.leaving:
                    actions.append(Evict(pod, ending.why, "restart"))
                    state.evicted(pod, now_s, cluster)
        return actions

    def _begin(self, state: ControllerState, lost: Lost, now_s: float) -> list[Action]:
        """Let a gang start anew if it lost a member in a way that ends the others; return the Event about that.

        The gang is noted in `_ending`, so that `restart` ends its pods. Empty: it goes on, or it starts anew already.
        """
        key = key_of(lost.pod)
        job = state.jobs.get(key)
        if job is None or key in self._ending or lost.how not in (FAILED, GONE):
            return []
        others = [pod for pod in job.released if state.came_s(pod) <= lost.at_s]
        if not others or (lost.how == GONE and len(job.released) >= job.least):
            return []
        what = "failed" if lost.how == FAILED else "is gone"
        member = "a member of its gang" if lost.unknown else f"member {lost.pod.name} of its gang"
        why = f"{member} {what} ({lost.detail}): all start anew"
        self._ending[key] = _Ending(lost.at_s, why)
        state.released.pop(key, None)
        state.counters.gangs["restarted"] += 1
        delay = self._note_restart(key, now_s)
        text = f"{what} ({lost.detail}): the {len(others)} other members of {job.title} start anew with it"
        if lost.unknown:
            text = f"{member} {text}"
        if delay.times > 1:
            text += f", for the {delay.times}. time: {delay.until_s - now_s:.0f} s from now at the soonest"
        return [Tell(lost.pod, "GangRestarts", text)]

    def _note_restart(self, key: Key, now_s: float) -> _Delay:
        """Note that a gang starts anew; return how often it has done so lately, and until when it waits.

        The first restart is at once, the second after FIRST_S; from then on the wait doubles, up to MOST_S.
        """
        before = self._delays.pop(key, None)
        times = before.times + 1 if before is not None and now_s - before.until_s < CALM_S else 1
        doublings = min(times - 2, 16)  # 16: no overflow, and far above MOST_S
        wait_s = min(FIRST_S * 2.0**doublings, MOST_S) if times > 1 else 0.0
        delay = self._delays[key] = _Delay(times, now_s + wait_s)
        if len(self._delays) > KNOWN_MAX:
            self._delays.popitem(last=False)
        return delay

    def _find_lost(self, state: ControllerState, now_s: float) -> None:
        """Note the gangs that lost a member before this replica decided. What is there now shows it.

        Such a gang has running members, and needs some of its waiting ones to reach its least. All that it needs came
        after the first of the running ones had started, so they came in the place of lost members. The oldest of them
        is noted instead of the lost one, of which nothing is known (`unknown`). The members of paused gangs (`resumes`)
        wait because they are paused.
        """
        for job in state.waits.values():
            if job.restart == "whole" and not job.resumes and job.released and job.needed:
                running = [state.started_s(pod) for pod in job.released if pod.running]
                # The times are whole seconds: only a difference of more than 1 s proves the order.
                if running and min(running) + 1.0 < min(map(state.came_s, job.needed)):
                    self._lost[job.needed[0].uid] = Lost(job.needed[0], now_s, GONE, _lost_before_us(job), unknown=True)


def _lost_before_us(job: Job) -> str:
    """Return in words how a member was lost before this replica decided."""
    return f"{len(job.released)} of {job.least} were left when this replica came to decide, and another had come"
