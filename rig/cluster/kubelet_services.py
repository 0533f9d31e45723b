"""The services of the double of kubelet: the registry of device plugins, and pod-resources."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import grpc

from sharepod.proto import deviceplugin_pb2 as pb
from sharepod.proto import deviceplugin_pb2_grpc as rpc
from sharepod.proto import podresources_pb2 as pods_pb
from sharepod.proto import podresources_pb2_grpc as pods_rpc

if TYPE_CHECKING:
    from typing import Any

    from rig.cluster.kubelet import FakeKubelet


class Registry(rpc.RegistrationServicer):
    def __init__(self, kubelet: FakeKubelet) -> None:
        self._kubelet = kubelet

    async def Register(  # noqa: N802 - proto
        self, request: pb.RegisterRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> pb.Empty:
        try:
            await self._kubelet.adopt(request)
        except (ValueError, TimeoutError, grpc.aio.AioRpcError) as error:
            await context.abort(grpc.StatusCode.UNKNOWN, str(error) or "failed to dial device plugin")
        return pb.Empty()


class PodResources(pods_rpc.PodResourcesListerServicer):
    """Answers kubelet's `rate` calls a second, and up to `burst` at once."""

    def __init__(self, kubelet: FakeKubelet) -> None:
        self._kubelet = kubelet
        self._tokens = float(kubelet.burst)
        self._refilled_s = 0.0

    async def List(  # noqa: N802 - proto
        self, _request: pods_pb.ListPodResourcesRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> pods_pb.ListPodResourcesResponse:
        kubelet = self._kubelet
        await self._admit(context)
        kubelet.lists += 1
        return pods_pb.ListPodResourcesResponse(pod_resources=kubelet.listed())

    async def GetAllocatableResources(  # noqa: N802 - proto
        self, _request: pods_pb.AllocatableResourcesRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> pods_pb.AllocatableResourcesResponse:
        kubelet = self._kubelet
        await self._admit(context)
        resources = {kubelet.resource: sorted(kubelet.healthy)}
        for others in (kubelet.others, kubelet.others_held):
            for key, ids in others.items():
                resources.setdefault(key, []).extend(ids)
        return pods_pb.AllocatableResourcesResponse(
            devices=[
                pods_pb.ContainerDevices(resource_name=key, device_ids=[i]) for key in resources for i in resources[key]
            ]
        )

    async def _admit(self, context: grpc.aio.ServicerContext[Any, Any]) -> None:
        """Count a call against the limit, a token bucket. Beyond the limit the call ends here, with kubelet's error."""
        now_s, kubelet = asyncio.get_running_loop().time(), self._kubelet
        self._tokens = min(kubelet.burst, self._tokens + (now_s - self._refilled_s) * kubelet.rate)
        self._refilled_s = now_s
        if self._tokens < 1:
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "rejected by rate limit")
        self._tokens -= 1
