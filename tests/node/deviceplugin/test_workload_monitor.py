"""Test Events about running programs on a node where agent, plugin, hook and simulated devices are the real code."""

import asyncio
import contextlib
import os
import sys
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import grpc
import pytest
from model_sides import Lag, ModelAgent, ModelApi
from virtual_time import virtually

from rig import REPO_ROOT
from rig.cluster.node import plugin_node
from rig.until import eventually
from sharepod.deviceplugin.cdi.files import CdiDirectory
from sharepod.deviceplugin.core.allocation_table import Record
from sharepod.deviceplugin.core.checkpoint import Store
from sharepod.deviceplugin.core.shares import Shares
from sharepod.deviceplugin.reconcile.annotation_reconciler import AnnotationReconciler
from sharepod.deviceplugin.reconcile.processes import HostProcesses
from sharepod.deviceplugin.reconcile.workload_findings import Note
from sharepod.deviceplugin.reconcile.workload_monitor import WorkloadMonitor
from sharepod.proto import v1_pb2 as pb
from sharepod.proto import v1_pb2_grpc as rpc

LIBRARIES = REPO_ROOT / "simgpu" / "lib"
GREEDY = """
import ctypes, sys
cuda, context, place = ctypes.CDLL("libcuda.so.1"), ctypes.c_void_p(), ctypes.c_uint64()
assert not cuda.cuInit(0) and not cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0)
assert not cuda.cuCtxSetCurrent(context)
print([cuda.cuMemAlloc_v2(ctypes.byref(place), ctypes.c_size_t(1 << 36)) for _ in range(int(sys.argv[1]))], flush=True)
sys.stdin.read()
"""


@contextlib.asynccontextmanager
async def program(environment: Mapping[str, str], allocations: int) -> AsyncIterator[str]:
    inherited = {k: v for k, v in os.environ.items() if not k.startswith(("SHAREPOD_", "SIMGPU_", "CUDA_"))}
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", GREEDY, str(allocations),
        env={**inherited, "LD_LIBRARY_PATH": str(LIBRARIES), **environment},
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    try:
        assert process.stdout is not None
        yield (await process.stdout.readline()).decode()
    finally:
        process.kill()
        await process.wait()


@pytest.mark.early
async def test_denied_memory_a_stranger_and_a_lost_share_are_told() -> None:
    async with plugin_node() as node:
        pod = await node.admit("pod", {"main": 30})
        await node.kubelet.start(pod, "main")
        node.show(pod, {}, status=True)
        lost = await node.admit("lost", {"main": 30})
        await node.kubelet.start(lost, "main")
        node.show(lost, {}, status=True)
        shares = await node.shares()
        share = shares["pod/main"]
        async with grpc.aio.insecure_channel(f"unix:{node.runtime}/agent.sock") as channel:
            stub: rpc.NodeServiceAsyncStub = rpc.NodeServiceStub(channel)
            await stub.ReleaseShare(pb.ReleaseShareRequest(share=shares["lost/main"].id))  # one look finds all three
            described = await stub.GetNode(pb.GetNodeRequest())
            own = {**described.environment, "SHAREPOD_REGION": share.directory, "LD_PRELOAD": described.hook_path}
            own["CUDA_VISIBLE_DEVICES"] = share.devices[0].device_uuid
            async with program(own, 3) as refused, program(described.environment, 0):
                assert refused == "[2, 2, 2]\n"
                text = (
                    "MemoryDenied: container main: 3 allocations of device memory denied, the last of 64 GiB: its cap"
                )
                await eventually(lambda: any(text in told for told in node.events("pod")), node.log)
                text = "ProcessWithoutShare: device 0 is used without a share by process "
                await eventually(lambda: any(told.startswith(text) for told in node.events("n1")), node.log)
            assert len([told for told in node.events("n1") if "ProcessWithoutShare" in told]) == 1
            await eventually(lambda: any("ShareLost: container main" in told for told in node.events("lost")), node.log)


@virtually
async def test_an_agent_that_is_away_for_half_a_minute_is_told_once_and_its_return(tmp_path: Path) -> None:
    lag, notes = Lag(1), list[Note]()
    api, agent = ModelApi(lag), ModelAgent(lag, lambda _: False)
    record = Record(Store(tmp_path))
    shares = Shares(record, agent, CdiDirectory(tmp_path / "cdi"))  # type: ignore[arg-type]
    reconciler = AnnotationReconciler(record, shares, agent, api, limit_percent=100)  # type: ignore[arg-type]
    sides: Any = (record, shares, reconciler, agent, api, HostProcesses(tmp_path / "none"))
    monitor = WorkloadMonitor(*sides, notes.append)
    api.listed = True
    looking = asyncio.create_task(monitor.look_for_ever())
    for away_s in (15, 200):
        agent.up = False
        await asyncio.sleep(away_s)
        agent.up = True
        await asyncio.sleep(60)
    looking.cancel()
    assert [(note.reason, note.warning) for note in notes] == [
        ("SharePodAgentUnreachable", True),
        ("SharePodAgentReachable", False),
    ]
