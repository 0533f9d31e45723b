"""Checks what must hold of the view of the cluster after any event: what it keeps twice is the same in both places."""

from itertools import pairwise

from sharepod.scheduler.placement.device_affinity import DeviceAffinity
from sharepod.scheduler.placement.mix import Census
from sharepod.scheduler.placement.request import NODE_DEVICES_MAX
from sharepod.scheduler.state.cluster import Cluster
from sharepod.scheduler.state.node_info import row_of


def validate(cluster: Cluster) -> None:
    """Check a view; nodes that have changed since the last `advance` have no row that could be checked."""
    _check_pods(cluster)
    census, affinity = Census(), DeviceAffinity()
    for pod in cluster.pods():
        census.put(pod.request)
        affinity.put(pod)
    assert +cluster._census._counts == +census._counts, "pods are counted that are not there, or the other way round"
    assert not -cluster._census._counts, "a kind of pod is counted below 0"
    assert cluster._device_affinity._uids == affinity._uids, "the words of a pod that has gone or changed"
    for name, facts in cluster._facts.items():
        used = facts.use.pod_uids() if facts.use else set()
        assert facts.gone <= used, f"{name}: a pod has gone, and its shares have gone, too"
        waits = facts.use is not None and any(one.numbers.waited_1m_millipercent for one in facts.use.devices)
        assert (name in cluster._contended) == waits, f"{name}: does a share wait there?"
        if name not in cluster._dirty:
            _check_row(cluster, name)
    assert cluster._contended <= cluster._facts.keys(), "a share waits on a node that is not known"
    assert set(cluster.node_index.names()) <= cluster._facts.keys(), "the snapshot has a node that is not known"


def _check_pods(cluster: Cluster) -> None:
    """Check where pods count, and what is assumed of them."""
    there = {uid: name for name, facts in cluster._facts.items() for uid in facts.pods}
    assert there == {pod.uid: pod.place for pod in cluster.pods() if pod.place}, "a pod counts on another node"
    for name, facts in cluster._facts.items():
        assert facts.pods.items() <= cluster._pods.items(), f"{name}: a pod as it was before"
        assert facts.assumed.items() <= cluster._assumed.items(), f"{name}: a choice that was forgotten"
        assert all(assumed.node == name for assumed in facts.assumed.values())
    assert sum(len(facts.assumed) for facts in cluster._facts.values()) == len(cluster._assumed)
    ends_s = [assumed.until_s for assumed in cluster._assumed.values()]
    assert all(one <= next_ for one, next_ in pairwise(ends_s)), "choices end in another order than they were made in"
    for uid, assumed in cluster._assumed.items():
        pod = cluster.pod(uid)
        shown = pod is not None and pod.place and (pod.place != assumed.node or pod.chosen)
        assert not shown, f"{uid} is assumed on {assumed.node}, and the API server shows where it is"
    for uid in cluster._stranded:
        pod = cluster.pod(uid)
        assert pod is not None, f"{uid} is stranded and has gone"
        assert not pod.node, f"{uid} is stranded and bound"
        assert cluster.assumed(uid) is None, f"{uid} is stranded and assumed"
    for uid, yields in cluster._assumed_yields._assumed.items():
        assert yields.yields != yields.shown, f"{uid}: what the API server shows is assumed"
        assert cluster._pods[uid].yields == yields.yields, f"{uid}: what is assumed of it does not count"


def _check_row(cluster: Cluster, name: str) -> None:
    """Check that a node's row follows from what is known of it, and that the snapshot has it."""
    facts, row = cluster._facts[name], cluster.row(name)
    spec = cluster._spec(name)
    assert (name in cluster.node_index) == (row is not None), f"{name}: is it in the snapshot?"
    if row is None or facts.node is None or facts.use is None or spec is None:
        assert row is None, f"{name}: a row of a node that takes no shares"
        return
    assumed = {uid: (one.pod, one.devices) for uid, one in facts.assumed.items()}
    gone = facts.gone | (cluster._stranded & facts.pods.keys())
    assert row == row_of(spec, facts.use, facts.pods.values(), assumed, gone, facts.node.units), f"{name}: an old row"
    devices = tuple(device.facts for device in facts.use.devices[:NODE_DEVICES_MAX])
    assert cluster.node_index._placed[name] == (spec, devices), f"{name}: an old node in the snapshot"
    index = cluster.node_index.indices([name])
    assert (cluster.node_index.usable(index)[0], cluster.node_index.units(index)[0]) == (row.usable, row.units)
