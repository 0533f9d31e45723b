"""Checks what must hold of what scheduling cycles remember, after any cycle."""

from sharepod.scheduler.controller.controller_state import ControllerState
from sharepod.scheduler.state.cluster import Cluster

OF_PODS = (
    "_pods", "_since", "_started", "_paused", "_busy", "ending", "leaving", "spared", "yields", "limited", "_stranded",
    "sent",
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
    queues = {key: job for jobs in state._by_namespace.values() for key, job in jobs.items()}
    assert queues == state.jobs
    noted, state._held = state._held, {}
    for (namespace, device_mib), held in noted.items():
        assert state.held(namespace, device_mib) == held, f"{namespace} holds something else"
