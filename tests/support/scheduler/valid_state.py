"""Checks what must hold of what scheduling cycles remember, after any cycle."""

from sharepod.scheduler.controller.controller_state import ControllerState
from sharepod.scheduler.controller.job import job_of, key_of
from sharepod.scheduler.preemption.preemption_units import holders_of
from sharepod.scheduler.state.cluster import Cluster
from sharepod.scheduler.state.pod import Pod

OF_PODS = (
    "_pods", "_since", "_started", "_paused", "_busy", "ending", "leaving", "spared", "yields", "limited", "_stranded",
    "sent", "pressed",
)  # fmt: skip
"""What is noted by the uid of a pod."""
OF_JOBS = ("jobs", "waits", "holders", "kept", "released", "told")
"""What is noted by the key of a job."""


def validate(cluster: Cluster, state: ControllerState) -> None:
    """Check a state against the view. What has changed there since the last cycle began is not known yet."""
    unseen = cluster.changed()
    there = {pod.uid: pod for pod in cluster.pods()}
    for name in OF_PODS:
        assert not set(getattr(state, name)) - there.keys() - unseen, f"{name}: a pod that has gone"
    members = {uid: pod for job in state.members.values() for uid, pod in job.items()}
    assert members == state._pods
    assert all(state.members.values()), "a job without a member"
    for uid, pod in there.items():
        counts = not pod.withheld and bool(pod.request.shares or pod.refusal)
        assert uid in unseen or (state._pods.get(uid) == pod) == counts, f"{pod.name} is not as it is on the view"
    for name in OF_JOBS:
        assert not set(getattr(state, name)) - state.members.keys(), f"{name}: a job that has gone"
    _check_times(state, {uid: pod for uid, pod in state._pods.items() if uid not in unseen})
    for uid in there.keys() - unseen:
        assert (uid in state.limited) == (there[uid].yields == "limit"), f"{uid}: held to its request"
        assert (uid in state._stranded) == cluster.is_stranded(uid), f"{uid}: stranded"
        assert uid not in state.yields or there[uid].yields, f"{uid}: it yields no more"
    for key, own in state.members.items():
        if key not in state._stale and unseen.isdisjoint(own):
            _check_job(cluster, state, own)
    assert not state.restarts._ending.keys() - state.members.keys(), "the end of a gang that has gone"
    queues = {key: job for jobs in state._by_namespace.values() for key, job in jobs.items()}
    assert queues == state.jobs
    noted, state._held = state._held, {}
    for (namespace, device_mib), held in noted.items():
        assert state.held(namespace, device_mib) == held, f"{namespace} holds something else"


def _check_times(state: ControllerState, pods: dict[str, Pod]) -> None:
    """Check what is noted of pods by their uids."""
    assert not pods.keys() - state._since.keys(), "since when each exists"
    for uid, pod in pods.items():
        assert not pod.running or (uid in state._started and uid in state._busy), f"{uid}: since when it runs"
        assert (uid in state._paused) == (pod.yields == "pause"), f"{uid}: since when it is paused"
        assert (uid in state.ending) == bool(pod.deleting and pod.place), f"{uid}: it ends"
        assert uid not in state.sent or not pod.node, f"{uid}: it is bound"


def _check_job(cluster: Cluster, state: ControllerState, members: dict[str, Pod]) -> None:
    """Check that a job is what its members are, all of which are as the last cycle saw them."""
    stays = [pod for uid, pod in members.items() if uid not in state.leaving and not pod.deleting]
    key = key_of(next(iter(members.values())))
    job = state.jobs.get(key)
    assert (job is None) == (not stays), f"{key}: is it a job?"
    if job is None:
        assert key not in state.waits.keys() | state.holders.keys(), f"{key}: it has gone"
        return
    kind = job.kind or 0
    assert job == job_of(
        key, stays, state.since_s, lambda pod: not pod.gated or cluster.assumed(pod.uid) is not None, lambda _: kind
    )
    paused = any(pod.yields == "pause" for pod in job.released)
    assert (key in state.waits) == bool(job.waiting or job.refusal or paused), f"{key}: does it wait?"
    assert state.holders.get(key, ()) == holders_of(job, state.started_s), f"{key}: its holders"
