"""Holds what scheduling cycles remember: the jobs, and since when a pod exists, runs, is paused and so on. Pure.

It reads only the changes of the cluster's view. So the cost of a cycle depends on what has changed and what waits, not
on what runs. All times, `now_s` too, are seconds of one clock that does not jump. A replica that starts anew notes the
times that the API server has, and decides the same. Holders are pods that yield together (preemption_units.py).
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Final

from sharepod.scheduler.controller.job import job_of, key_of
from sharepod.scheduler.controller.job_order import Total, total_of
from sharepod.scheduler.controller.restarts import Restarts
from sharepod.scheduler.gate_metrics import GateCounters
from sharepod.scheduler.preemption.preemption_units import holders_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from sharepod.scheduler.controller.job import Job, Key
    from sharepod.scheduler.controller.queues import Queue
    from sharepod.scheduler.preemption.preemption_units import PreemptionUnit
    from sharepod.scheduler.state.capacity import Capacity
    from sharepod.scheduler.state.cluster import Cluster
    from sharepod.scheduler.state.node_index import NodeIndex
    from sharepod.scheduler.state.pod import Pod

LEAVE_S: Final = 60.0
"""How long the end of an evicted pod is awaited and its room reserved for the preemptor; then room is planned anew."""
BIND_S: Final = 120.0
"""How long kube-scheduler may take to bind a released pod. After that it is taken to refuse the pod."""
AVOID_S: Final = 900.0
"""How long after that no other pod of the same controller is sent to that node."""
SPARED_S: Final = 60.0
"""How long a pod is not evicted after an eviction of it was refused."""

_KINDS_MAX: Final = 65_536


class ControllerState:
    """The state of one controller."""

    def __init__(self) -> None:
        self._since: dict[str, float] = {}
        """By uid: since when a pod exists."""
        self._started: dict[str, float] = {}
        """By uid: since when it runs."""
        self._paused: dict[str, float] = {}
        """By uid: since when it is paused for others."""
        self._busy: dict[str, float] = {}
        """By uid: when its shares were last seen to use their devices."""
        self._pods: dict[str, Pod] = {}
        """By uid: the pods of all jobs, as the last `look` saw them."""
        self.members: defaultdict[Key, dict[str, Pod]] = defaultdict(dict)
        """The pods of each job, by uid."""
        self.jobs: dict[Key, Job] = {}
        self.waits: dict[Key, Job] = {}
        """Jobs that have a waiting or paused pod, or that are refused."""
        self._kinds: dict[object, int] = {}
        """The numbers that `_kind_of` has given."""
        self._last_kind = 0
        self.holders: dict[Key, tuple[PreemptionUnit, ...]] = {}
        """By job; only jobs that have released pods."""
        self._by_namespace: defaultdict[str, dict[Key, Job]] = defaultdict(dict)
        """The jobs of each queue."""
        self._held: dict[tuple[str, int], Total] = {}
        """What `held` has returned, by its arguments; dropped when a job of the namespace is made anew."""
        self.ending: dict[str, Pod] = {}
        """By uid: pods that have a node and are being deleted, for any reason: their room becomes free by itself."""
        self.leaving: dict[str, float] = {}
        """By uid: until when the end of an evicted pod is awaited."""
        self.spared: dict[str, float] = {}
        """By uid: until when a pod is not evicted."""
        self.pressed: dict[str, tuple[float, str]] = {}
        """By uid of a yielding pod: until when it yields, and the uid of its waiter (contention.py). That uid is empty
        where only another replica knew it."""
        self.avoided: dict[tuple[str, str], float] = {}
        """By controller and node: until when no pod of the controller is sent to the node, because kube-scheduler did
        not bind one there."""
        self.limited: set[str] = set()
        """Uids of pods that yield by "limit": they are held to their requests."""
        self.last_step_s: dict[tuple[str, str], float] = {}
        """By node and device: when a pod was last made to yield because a share waited for the device."""
        self.kept: dict[Key, tuple[tuple[str, ...], float]] = {}
        """Nodes that are reserved for a job, and until when."""
        self.tried: set[Key] = set()
        """Jobs for which no victims were found. They get no new plan while other jobs still wait for their first."""
        self.released: dict[Key, float] = {}
        """By gang: when the members that it needs were last released. Dropped when all of them run."""
        self._stranded: set[str] = set()
        """Uids of pods that hold nothing, because kube-scheduler does not bind them where they were sent."""
        self.sent: dict[str, float] = {}
        """By uid: when a pod was released that kube-scheduler has not bound yet, or when it was last given up."""
        self.told: dict[Key, str] = {}
        """The reason of the last Event about a job."""
        self.waiting: list[tuple[Job, str]] = []
        """The jobs that waited after the last cycle, in the order in which they were tried, and why each waits."""

        self.yields: dict[str, tuple[float, str]] = {}
        """By uid: since when a pod yields, and why, if this replica has decided it."""
        self.restarts = Restarts()
        self.counters = GateCounters()
        self.decides = False
        """This replica decides. False: another one does, and what its cycles note is not known here."""
        self._stale: set[Key] = set()
        """Jobs that the next `look` has to make anew, in addition to those with a changed pod."""
        self.capacity: tuple[tuple[NodeIndex, int, int], Capacity] | None = None
        """What the nodes would take without pods, and the version of the nodes for which this holds (capacity.py)."""

    def note(self, pod: Pod, *, since_s: float, started_s: float | None = None) -> None:
        """Note since when a pod exists and runs, according to the API server; times that are known already stay.

        `started_s`: None if the pod does not run, or if that time is not known. To be called before `look` sees it.
        """
        self._since.setdefault(pod.uid, since_s)
        if started_s is not None:
            self._started.setdefault(pod.uid, started_s)

    def refused(self, pod: Pod, now_s: float) -> None:
        """Note that a pod was not evicted, because a disruption budget forbids it.

        The pod is spared for SPARED_S, and reservations of its node end, because its room there does not become free.
        From the next `look` on it belongs to its job again.
        """
        self.leaving.pop(pod.uid, None)
        self.spared[pod.uid] = now_s + SPARED_S
        self._stale.add(key_of(pod))
        for key in [key for key, (nodes, _) in self.kept.items() if pod.place in nodes]:
            del self.kept[key]

    def look(self, cluster: Cluster, busy: Iterable[str], now_s: float) -> None:
        """Read what has changed on the view, make the changed jobs anew, and forget what has expired.

        Called first in each cycle. `busy`: uids of pods that use their devices; they matter only if a queue has the
        rule `idle`.
        """
        dirty, self._stale = self._stale, set()
        for uid in sorted(cluster.take_changed()):
            before, pod = self._pods.pop(uid, None), cluster.pod(uid)
            if before is not None:
                dirty.add(key_of(before))
                self.members[key_of(before)].pop(uid, None)
            if pod is None or not pod.yields:
                self.yields.pop(uid, None)
            (self.limited.add if pod is not None and pod.yields == "limit" else self.limited.discard)(uid)
            if pod is None or pod.withheld or not (pod.request.shares or pod.refusal):  # it needs nothing of SharePod
                self._forget(uid)
                continue
            self._pods[uid] = pod
            if pod.node:
                self.sent.pop(uid, None)
            (self._stranded.add if cluster.is_stranded(uid) else self._stranded.discard)(uid)
            if pod.deleting and pod.place:
                self.ending[uid] = pod
            self.members[key_of(pod)][uid] = pod
            dirty.add(key_of(pod))
            self._note_times(pod, now_s)
        for pod in cluster.take_gone():
            self.restarts.lose(pod, now_s)
        dirty |= self._expire(now_s)
        for key in sorted(dirty):
            self._make_job(key, cluster)
        for uid in busy:
            if uid in self._busy:
                self._busy[uid] = now_s

    def take_over(self, now_s: float) -> None:
        """Begin to decide: gangs and pods that another replica has released get their whole timeout from now on."""
        self.decides = True
        self.released = {key: now_s for key, job in self.jobs.items() if job.is_gang and job.starts}
        self.sent = {pod.uid: now_s for job in self.jobs.values() for pod in job.released if not pod.node}

    def _forget(self, uid: str) -> None:
        """Forget what is noted of a pod that has gone, or that is not SharePod's to place."""
        self.ending.pop(uid, None)
        self._stranded.discard(uid)
        for noted in (self._since, self._started, self._paused, self._busy, self.leaving, self.spared, self.sent):
            noted.pop(uid, None)

    def _expire(self, now_s: float) -> set[Key]:
        """Forget what has expired; return the jobs to be made anew: those of pods that have left `leaving` or `spared`.

        An evicted pod that is not being deleted by then belongs to its job again.
        """
        dirty: set[Key] = set()
        for until in (self.leaving, self.spared):
            for uid in [uid for uid, until_s in until.items() if until_s <= now_s]:
                del until[uid]
                if uid in self._pods:
                    dirty.add(key_of(self._pods[uid]))
        for key in [key for key, (_, until_s) in self.kept.items() if until_s <= now_s]:
            del self.kept[key]
        for place in [place for place, until_s in self.avoided.items() if until_s <= now_s]:
            del self.avoided[place]
        return dirty

    def evicted(self, pod: Pod, now_s: float, cluster: Cluster) -> None:
        """Note that a pod is about to be evicted: it belongs to no job any more."""
        self.leaving[pod.uid] = now_s + LEAVE_S
        self._make_job(key_of(pod), cluster)

    def avoid_node(self, pod: Pod, now_s: float) -> None:
        """Send no pod of this pod's controller to its node for AVOID_S: kube-scheduler has not bound this pod there."""
        if pod.controller:
            self.avoided[pod.controller, pod.place] = now_s + AVOID_S

    def yielded(self, pod: Pod, how: str, why: str, now_s: float) -> None:
        """Note, for `sharepod explain`, that a pod was made to yield, and why; an empty `how`: it goes on."""
        if how:
            since_s = self.yields[pod.uid][0] if pod.uid in self.yields else now_s
            self.yields[pod.uid] = since_s, why
        else:
            self.yields.pop(pod.uid, None)

    def queues(self) -> list[str]:
        """Return the names of the queues that have jobs: they hold or wait for something."""
        return [name for name, jobs in self._by_namespace.items() if jobs]

    def held(self, namespace: str, device_mib: int) -> Total:
        """Return what the released pods of a namespace hold, without those that are paused or stranded.

        `device_mib`: the memory of one device, for the shares without a memory cap; 0: the caller needs only the time
        of devices.
        """
        found = self._held.get((namespace, device_mib))
        if found is None:
            theirs = self._by_namespace[namespace].values()
            holding = (
                pod for job in theirs for pod in job.released if pod.yields != "pause" and pod.uid not in self._stranded
            )
            found = total_of(holding, device_mib)
            self._held[namespace, device_mib] = found
        return found

    def _note_times(self, pod: Pod, now_s: float) -> None:
        """Note since when a pod exists, runs and is paused, and when it was busy; known times stay."""
        self._since.setdefault(pod.uid, now_s)
        if pod.running:
            self._started.setdefault(pod.uid, now_s)
            self._busy.setdefault(pod.uid, now_s)
        if pod.yields == "pause":
            self._paused.setdefault(pod.uid, now_s)
        elif self._paused.pop(pod.uid, None) is not None:
            self._busy[pod.uid] = now_s  # while it was paused it could not be busy

    def _kind_of(self, kind: object) -> int:
        """Return the number of a kind of job: equal kinds have equal numbers.

        When too many are known, all are forgotten. Equal kinds may then have two numbers, which only costs time.
        """
        if len(self._kinds) >= _KINDS_MAX:
            self._kinds.clear()
        self._last_kind += 1  # no number is given twice, so some are never given
        return self._kinds.setdefault(kind, self._last_kind)

    def _make_job(self, key: Key, cluster: Cluster) -> None:
        """Make a job anew from its members that stay, with its holders; forget it if none of them stays.

        Members that are being evicted or deleted do not stay. Called when a member has changed, come or gone.
        """
        namespace = key[0]
        for known in (self.jobs, self.waits, self.holders, self._by_namespace[namespace]):
            known.pop(key, None)
        for arguments in [arguments for arguments in self._held if arguments[0] == namespace]:
            del self._held[arguments]
        members = [pod for uid, pod in self.members[key].items() if uid not in self.leaving and not pod.deleting]
        if all(pod.gated or pod.deleting for pod in self.members[key].values()):  # no released pod is left
            self.restarts.emptied(key)
        if not members:
            if not self.members[key]:  # else pods of the job are still ending: what was noted of it stays
                del self.members[key]
                for noted in (self.kept, self.released, self.told):
                    noted.pop(key, None)
            return
        job = job_of(
            key, members, self.since_s, lambda pod: not pod.gated or cluster.assumed(pod.uid) is not None, self._kind_of
        )
        self.jobs[key] = self._by_namespace[namespace][key] = job
        if holders := holders_of(job, self.started_s):
            self.holders[key] = holders
        if job.waiting or job.refusal or any(pod.yields == "pause" for pod in job.released):
            self.waits[key] = job

    def since_s(self, pod: Pod) -> float:
        """Return since when a known pod waits: since it exists, or since it was paused for others."""
        return self._paused.get(pod.uid, self._since[pod.uid])

    def came_s(self, pod: Pod) -> float:
        """Return since when a known pod exists."""
        return self._since[pod.uid]

    def paused_s(self, uid: str) -> float | None:
        """Return since when a pod is seen paused; None: it is not paused."""
        return self._paused.get(uid)

    def waited_s(self, uid: str, now_s: float) -> float | None:
        """Return for how long a pod has existed; None: it has gone."""
        since_s = self._since.get(uid)
        return None if since_s is None else max(0.0, now_s - since_s)

    def started_s(self, pod: Pod) -> float:
        """Return since when a known pod runs; if it does not run yet, since when it exists."""
        return self._started.get(pod.uid, self._since[pod.uid])

    def overruns(self, pod: Pod, queue: Queue, now_s: float) -> bool:
        """Tell whether a pod has run for longer than the rules of its queue (`longest-run`) allow."""
        started_s = self._started.get(pod.uid)
        return queue.longest_run_s is not None and started_s is not None and now_s - started_s > queue.longest_run_s

    def idles(self, pod: Pod, queue: Queue, now_s: float) -> bool:
        """Tell whether a pod has used none of its devices for longer than the rules of its queue (`idle`) allow."""
        busy_s = self._busy.get(pod.uid)
        return queue.idle_s is not None and busy_s is not None and now_s - busy_s > queue.idle_s
