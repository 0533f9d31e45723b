"""Test how the pods of a node are read from the API server."""

from pathlib import Path

import pytest

from rig.cluster.apiserver import ApiServer, pod
from sharepod.deviceplugin.cdi.runtime import Runtime
from sharepod.deviceplugin.reconcile.pods import Pods
from sharepod.kube.client import ApiUnavailable
from sharepod.kube.informer import Pace

FAST = Pace(first_s=0.01, last_s=0.1, watch_s=20)


async def test_a_pod_is_read_as_it_is_now_and_only_a_404_about_pods_is_one_that_is_gone(tmp_path: Path) -> None:
    async with ApiServer() as server, Pods(server.access(tmp_path), "n1", FAST) as pods:
        for limit in ("60", "40"):
            server.put(pod("train-0", annotations={"sharepod.io/limit": limit}, running=("main",)))
            found = await pods.get("default", "train-0")
            assert found is not None
            assert (found.uid, found.namespace, found.name) == ("uid-default-train-0", "default", "train-0")
            assert (found.annotations, found.running) == ({"sharepod.io/limit": limit}, {"main"})
        assert await pods.get("default", "train-1") is None
        assert await pods.get("other", "train-0") is None
        before = server.requests["get pods"]
        assert await pods.get("..", "x/y?z") is None
        assert server.requests["get pods"] == before, "what is no name is not asked for"
        server.faults.refuse(404)
        with pytest.raises(ApiUnavailable, match="404 told to say 404: it is asked again"):
            await pods.get("default", "train-1")  # a 404 counts only with the API server's Status about pods


async def test_a_node_tells_what_runs_its_containers(tmp_path: Path) -> None:
    async with ApiServer() as server:
        info = {"kubeletVersion": "v1.36.2", "containerRuntimeVersion": "containerd://2.1.9+unknown"}
        server.put_node({"metadata": {"name": "n1"}, "status": {"nodeInfo": info}})
        async with Pods(server.access(tmp_path), "n1", FAST) as pods:
            assert await pods.runtime() == Runtime("v1.36.2", "containerd://2.1.9+unknown")
            server.faults.refuse(403)
            with pytest.raises(ApiUnavailable, match="give our service account the role"):
                await pods.runtime()
        async with Pods(server.access(tmp_path), "n2", FAST) as pods:
            with pytest.raises(ApiUnavailable, match='nodes "n2" not found'):
                await pods.runtime()
