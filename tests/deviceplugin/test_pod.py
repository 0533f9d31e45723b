"""A pod out of the API server's JSON, whatever is in it."""

from __future__ import annotations

from apiserver import pod

from sharepod.deviceplugin.pod import read_pod


def test_the_cgroup_of_a_static_pod_is_named_by_its_manifests_hash_and_no_tenant_may_claim_one() -> None:
    value = "0123456789abcdef0123456789abcdef"
    tenant = read_pod(pod("a", annotations={"kubernetes.io/config.hash": value}))
    mirror = read_pod(pod("b", annotations={"kubernetes.io/config.hash": value, "kubernetes.io/config.mirror": value}))
    assert tenant is not None
    assert mirror is not None
    assert (tenant.cgroup_uid, mirror.cgroup_uid) == (tenant.uid, value)


def test_all_kinds_of_containers_are_seen_and_what_is_malformed_is_no_pod() -> None:
    body = pod("a")
    body["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    body["spec"] = {"containers": [{"name": "c"}], "initContainers": [{"name": "i"}], "ephemeralContainers": None}
    body["status"] = {
        "containerStatuses": [{"name": "c", "state": {"waiting": {}}}, {"name": "d", "state": None}, None],
        "initContainerStatuses": [{"name": "i", "state": {"running": {}}}],
        "ephemeralContainerStatuses": [{"name": "e", "state": {"running": {"startedAt": None}}}],
    }
    found = read_pod(body)
    assert found is not None
    assert found.running == {"i", "e"}
    assert found.containers == {"c", "i"}
    assert found.finished == frozenset()
    body["status"]["initContainerStatuses"] = [
        {"name": name, "state": {"terminated": {"exitCode": code}}} for name, code in (("i", 0), ("j", 1))
    ]
    ended = read_pod(body)
    assert ended is not None
    assert ended.finished == {"i"}
    assert found.deleting
    assert found.phase == "Unknown"
    for broken in (None, [], {}, {"metadata": None}, {"metadata": {"uid": 1, "name": "a", "namespace": "b"}}):
        assert read_pod(broken) is None
