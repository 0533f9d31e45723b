"""The plugin's client of the node's agent. Shares and devices stay the agent's own messages.

Every method may raise PluginError with the agent's own text of one line: what is wrong, the limit, the remedy.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self, TypeVar

import grpc

from sharepod.agent.shares.share import WHOLE_MILLIPERCENT, DeviceAsk, Terms
from sharepod.deviceplugin.core.coalesce import Look
from sharepod.deviceplugin.errors import PluginError
from sharepod.proto import v1_pb2 as pb
from sharepod.proto import v1_pb2_grpc as rpc

if TYPE_CHECKING:
    from types import TracebackType

    from sharepod.deviceplugin.core.terms import PodTerms

Answer = TypeVar("Answer")


TIMEOUT_S: Final = 10.0
_SHARES_NAME: Final = "shares"
HeldShare = pb.Share
"""A share that the agent has now."""


class NoRoom(PluginError):
    """No device has room for the share now."""


class StaysPaused(NoRoom):
    """A paused share was to run again. It got its terms but not its device time, which other shares have now."""


@dataclass(frozen=True, slots=True)
class NodeView:
    """The node, as its agent describes it."""

    devices: tuple[pb.Device, ...]
    hook_path: str
    shares_directory: str
    closed: bool
    """Programs may not start without a usable region."""
    environment: Mapping[str, str]
    """The variables that programs need to see simulated devices; empty: the devices are real."""
    all_offered: bool = True
    """Pods may have shares of all devices of the node."""

    def device(self, uuid: str) -> pb.Device | None:
        """Return the device with that UUID."""
        return next((device for device in self.devices if device.uuid == uuid), None)


def free_millipercent(device: pb.Device) -> int:
    """Return the part of the device's time that is not promised to shares."""
    return WHOLE_MILLIPERCENT - device.requested_millipercent


class Agent:
    """A connection to the agent. The agent may go away and come back."""

    def __init__(self, socket: Path) -> None:
        """Take the agent's socket, which need not exist yet."""
        self._socket = socket
        # No proxy of the environment for a unix socket. The short backoff finds a new agent soon.
        options = [("grpc.enable_http_proxy", 0), ("grpc.max_reconnect_backoff_ms", 1000)]
        self._channel = grpc.aio.insecure_channel(f"unix:{socket}", options=options)
        self._stub: rpc.NodeServiceAsyncStub = rpc.NodeServiceStub(self._channel)
        self.failed: Callable[[], None] = lambda: None
        """Called when the agent does not answer, or not as it should."""
        self._looks = Look(self._node)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Cancel the look at the node that is under way, and close the connection."""
        await self._looks.end()
        await self._channel.close()

    async def node(self) -> NodeView:
        """Return the node as it is now or a moment later. Callers that ask at the same time share one call."""
        return await self._looks.take()

    async def _node(self) -> NodeView:
        """Ask the agent for the node, without a second try."""
        answer = await self._call(self._stub.GetNode(pb.GetNodeRequest(), timeout=TIMEOUT_S))
        return NodeView(
            devices=tuple(answer.devices),
            hook_path=answer.hook_path,
            shares_directory=f"{answer.runtime_directory}/{_SHARES_NAME}",
            closed=answer.policy == "closed",
            environment=dict(answer.environment),
        )

    async def shares(self) -> dict[str, HeldShare]:
        """Return all shares by id."""
        answer = await self._call(self._stub.ListShares(pb.ListSharesRequest(), timeout=TIMEOUT_S))
        return {share.id: share for share in answer.shares}

    async def share(self, share_id: str) -> HeldShare | None:
        """Return the share with that id; None: there is none."""
        try:
            answer = await self._stub.ListShares(pb.ListSharesRequest(shares=[share_id]), timeout=TIMEOUT_S)
        except grpc.aio.AioRpcError as error:
            if error.code() is grpc.StatusCode.NOT_FOUND:
                return None
            raise self._plugin_error(error) from None
        return answer.shares[0]

    async def register(
        self, share_id: str, terms: PodTerms, devices: Sequence[str], labels: Mapping[str, str]
    ) -> HeldShare:
        """Register the share under its id. If that share is there already, return it unchanged.

        `devices` are UUIDs, one for each device asked for; empty: the agent picks. `labels` name the container. Raises
        NoRoom when the share does not fit.
        """
        uuids = list(devices) or [""] * terms.devices
        asks = [
            pb.DeviceAsk(
                device=uuid,
                request_millipercent=terms.request_millipercent,
                limit_millipercent=terms.limit_now_millipercent,
                memory_limit_bytes=terms.memory_limit_bytes or 0,
                memory_in_proportion=terms.memory_limit_bytes is None,
            )
            for uuid in uuids
        ]
        request = pb.RegisterShareRequest(
            id=share_id,
            devices=asks,
            share_class=_class_of(terms),
            labels=dict(labels),
            gang=terms.gang,
        )
        return (await self._call(self._stub.RegisterShare(request, timeout=TIMEOUT_S))).share

    async def update(
        self, share: HeldShare, terms: PodTerms, node: NodeView, labels: Mapping[str, str] | None = None
    ) -> None:
        """Bring a live share to `terms`, and pause or resume it as they say. Its devices stay.

        `share` is the agent's latest answer: if it has these terms, nothing is sent; else all terms are. `node` tells
        the devices' memory, for the cap in bytes; on a device of unknown memory the share keeps its cap. `labels` are
        given if another container has the share now; None: they stay. Raises StaysPaused if the share got everything
        but the device time that it had yielded.
        """
        if len(share.devices) != terms.devices:
            raise PluginError(
                f"sharepod.io/devices is {terms.devices} and the share is on {len(share.devices)}: that is read when a "
                "container starts for the first time, set it back or delete the pod",
                retriable=False,
            )
        old = [Terms(one.request_millipercent, one.limit_millipercent, one.memory_limit_bytes) for one in share.devices]
        wanted = [
            _terms_on(node.device(part.device_uuid), terms, held) for part, held in zip(share.devices, old, strict=True)
        ]
        share_class, new_labels = _class_of(terms), dict(labels or share.labels)
        present = old, share.share_class, dict(share.labels), share.gang
        if (wanted, share_class, new_labels, terms.gang) != present:
            changes = [
                pb.DeviceChange(
                    device=part.device_uuid,
                    request_millipercent=new.request_millipercent,
                    limit_millipercent=new.limit_millipercent,
                    memory_limit_bytes=new.memory_limit_bytes,
                )
                for part, new in zip(share.devices, wanted, strict=True)
            ]
            request = pb.UpdateShareRequest(
                share=share.id,
                devices=changes,
                share_class=share_class,
                labels=labels or {},
                gang=terms.gang,
            )
            await self._call(self._stub.UpdateShare(request, timeout=TIMEOUT_S))
        await self._pause(share, terms)

    async def _pause(self, share: HeldShare, terms: PodTerms) -> None:
        """Pause or resume a share if its state in `share`, the agent's latest answer, is not that of `terms`.

        Raises StaysPaused if other shares have the device time that it needs to run again.
        """
        yielding = terms.yields == "pause"
        paused = terms.paused or yielding
        if (paused, yielding) == (share.paused, share.yielding):
            return
        try:
            if paused:
                request = pb.PauseShareRequest(share=share.id, yielding=yielding)
                await self._call(self._stub.PauseShare(request, timeout=TIMEOUT_S))
            else:
                await self._call(self._stub.ResumeShare(pb.ResumeShareRequest(share=share.id), timeout=TIMEOUT_S))
        except NoRoom as error:
            raise StaysPaused(str(error)) from None

    async def release(self, share_id: str) -> None:
        """End a share. A share that is not there is no error."""
        try:
            await self._stub.ReleaseShare(pb.ReleaseShareRequest(share=share_id), timeout=TIMEOUT_S)
        except grpc.aio.AioRpcError as error:
            if error.code() is not grpc.StatusCode.NOT_FOUND:
                raise self._plugin_error(error) from None

    async def report(self, report: pb.ReportPluginRequest) -> None:
        """Send the plugin's counters to the agent, for its metrics."""
        await self._call(self._stub.ReportPlugin(report, timeout=TIMEOUT_S))

    async def _call(self, call: Awaitable[Answer]) -> Answer:
        """Return the answer to a call. Raises PluginError."""
        try:
            return await call
        except grpc.aio.AioRpcError as error:
            raise self._plugin_error(error) from None

    def _plugin_error(self, error: grpc.aio.AioRpcError) -> PluginError:
        """Return the agent's error as the plugin's, and call `failed` if the agent has failed.

        A lack of room and a pod's wrong request are no failures of the agent.
        """
        text = (error.details() or error.code().name).splitlines()[0]
        if error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED:
            return NoRoom(text)
        if error.code() is not grpc.StatusCode.INVALID_ARGUMENT:
            self.failed()
        if error.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED):
            return PluginError(f"the node's agent at {self._socket} does not answer ({text}): it is tried again")
        return PluginError(text, retriable=error.code() is not grpc.StatusCode.INVALID_ARGUMENT)


def _class_of(terms: PodTerms) -> pb.ShareClass.ValueType:
    """Return the class of the terms as the agent's message has it."""
    return pb.ShareClass.Value(f"SHARE_CLASS_{terms.share_class.upper()}")


def _terms_on(device: pb.Device | None, terms: PodTerms, held: Terms) -> Terms:
    """Return the new terms on one device of a share; `held` are its present ones there.

    `device` None: the node does not list it now. If `terms` have no cap, the cap is in proportion to the request.
    """
    given = Terms(terms.request_millipercent, terms.limit_now_millipercent, terms.memory_limit_bytes or 0)
    ask = DeviceAsk("", given, memory_in_proportion=terms.memory_limit_bytes is None)
    asked = ask.terms_on(device.memory_total_bytes if device else 0)
    # 0: the memory of the device is not known. Then the share keeps its cap.
    return asked if asked.memory_limit_bytes else replace(asked, memory_limit_bytes=held.memory_limit_bytes)
