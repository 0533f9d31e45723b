"""The gRPC edge of the node: protobuf messages come in and go out here and nowhere else in the agent.

Every method turns a request into values, calls the node, and turns the answer back. A ShareError becomes its status
code with its one-line text; anything else is a bug, logged once and answered with INTERNAL.
"""

from __future__ import annotations

import asyncio
import functools
import logging
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final, TypeVar

import grpc

from sharepod.agent.api import plugin
from sharepod.agent.api.explain import explain
from sharepod.agent.errors import InvalidInput, ShareError, WrongState
from sharepod.agent.shares.registry import TermsChange
from sharepod.agent.shares.share import (
    NUMBERS,
    WHOLE_MILLIPERCENT,
    DeviceAsk,
    DeviceUsage,
    DeviceUuid,
    Share,
    ShareAsk,
    ShareClass,
    ShareId,
    ShareState,
    ShareStatus,
    Terms,
    Turn,
)
from sharepod.proto import v1_pb2 as pb
from sharepod.proto import v1_pb2_grpc as rpc

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from sharepod.agent.api.hello import Hello, Peer
    from sharepod.agent.devices.device import DeviceStatus, NodeStatus
    from sharepod.agent.devices.releases import Releases
    from sharepod.agent.node import Node

log = logging.getLogger("sharepod.agent.service")

Request = TypeVar("Request")
Response = TypeVar("Response")
Answer = TypeVar("Answer")
Context = grpc.aio.ServicerContext[Any, Any]

_TURNS_DEFAULT: Final = 4096
_TURNS_MAX: Final = 16384
_INTERVAL_DEFAULT_NS: Final = 1_000_000_000
_INTERVAL_MIN_NS: Final = 100_000_000
_INTERVAL_MAX_NS: Final = 3_600_000_000_000
_UNSEEN: Final = (
    "the owner, a process of a container, is not seen by the agent, which could not tell when it ends: start it in the "
    "host's pid namespace (docker run --pid=host), or with an agent of its own (sharepod run --private)"
)
_UNSEEN_HERE: Final = (
    "the agent does not see the processes from here, another pid namespace than its own, and refuses shares that they "
    "would own: start both in the host's pid namespace (docker run --pid=host), or a program with an agent of its own "
    "(sharepod run --private)"
)

_CLASSES_OUT: Final = {one: pb.ShareClass.Value(f"SHARE_CLASS_{one.name}") for one in ShareClass}
_CLASSES: Final = {value: one for one, value in _CLASSES_OUT.items()}
_STATES_OUT: Final = {state: pb.ShareState.Value(f"SHARE_STATE_{state.name}") for state in ShareState}
_ENDS_OUT: Final = pb.TurnEnd.values()[1:]
"""By `sp_turn.reason`: TurnEnd has the same order, after UNSPECIFIED."""


async def answer(context: Context, name: str, call: Callable[[], Answer]) -> Answer:
    """Return what `call` returns. An error that it raises ends the rpc of `context` with the error's status code.

    `name` is the rpc's, for the log.
    """

    async def called() -> Answer:
        """Make the call an awaitable, for _await_answer."""
        return call()

    return await _await_answer(context, name, called())


async def _await_answer(context: Context, name: str, call: Awaitable[Answer]) -> Answer:
    """Return the result of `call`. An error ends the rpc of `context`: with the code of a ShareError, else INTERNAL."""
    try:
        return await call
    except ShareError as error:
        await context.abort(grpc.StatusCode[error.code], str(error))
    except Exception:
        log.exception("request failed", extra={"method": name})
        await context.abort(grpc.StatusCode.INTERNAL, "the agent failed on this request: see its log")


def _as_rpc(
    method: Callable[[NodeService, Request], Response],
) -> Callable[[NodeService, Request, Context], Awaitable[Response]]:
    """Turn a method that takes a request and returns the answer into an rpc: its errors become status codes."""

    @functools.wraps(method)
    async def handler(self: NodeService, request: Request, context: Context) -> Response:
        """Answer the rpc with what the method returns, or with its error."""
        return await answer(context, method.__name__, lambda: method(self, request))

    return handler


class NodeService(rpc.NodeServiceServicer):
    """The rpcs of proto/v1.proto on one node."""

    def __init__(self, node: Node, releases: Releases, hello: Hello) -> None:
        """Take the node, the devices in operators' hands, and what tells the process of a caller."""
        self._node = node
        self._releases = releases
        self._hello = hello

    async def RegisterShare(  # noqa: N802 - proto
        self, request: pb.RegisterShareRequest, context: Context
    ) -> pb.RegisterShareResponse:
        """Create a share that only operators may change."""

        def register() -> pb.RegisterShareResponse:
            """Create the share without a token, so that no user can change it. Raises a ShareError.

            If the request names an owner process, the caller's own process becomes it, where that is known.
            """
            return self.register(request, "", self._hello.peer(context.invocation_metadata()))

        return await answer(context, "RegisterShare", register)

    def register(self, request: pb.RegisterShareRequest, owner: str, peer: Peer | None) -> pb.RegisterShareResponse:
        """Create a share; `owner` is the digest of the token that may change it. Raises a ShareError.

        With a `peer` the share is owned by that process, if the request names an owner at all.
        """
        caller = peer if request.owner_pid else None
        if caller is not None and not caller.start_ticks:
            raise WrongState(_UNSEEN)
        share_class = _share_class(request.share_class)
        ask = ShareAsk(
            devices=tuple(_device_ask(item) for item in request.devices),
            name=request.name,
            share_class=ShareClass.STANDARD if share_class is None else share_class,
            owner_pid=request.owner_pid if caller is None else caller.pid,
            owner_start_ticks=0 if caller is None else caller.start_ticks,
            labels=dict(request.labels),
            id=ShareId(request.id),
            owner=owner,
            gang=request.gang,
        )
        status = self._node.register(ask)
        return pb.RegisterShareResponse(
            share=self._share(status),
            environment=self._node.environment(status.share),
            hook_path=self._node.identity.hook_path,
        )

    @_as_rpc
    def UpdateShare(self, request: pb.UpdateShareRequest) -> pb.UpdateShareResponse:  # noqa: N802
        """Change the terms, the labels or the gang of a live share. What the request does not give stays."""
        changes = [_change(item) for item in request.devices]
        labels = dict(request.labels) or None
        gang = request.gang if request.HasField("gang") else None
        status = self._node.update(request.share, changes, _share_class(request.share_class), labels, gang)
        return pb.UpdateShareResponse(share=self._share(status))

    @_as_rpc
    def ReleaseShare(self, request: pb.ReleaseShareRequest) -> pb.ReleaseShareResponse:  # noqa: N802
        """End a share."""
        return pb.ReleaseShareResponse(share=self._share(self._node.release(request.share)))

    @_as_rpc
    def ListShares(self, request: pb.ListSharesRequest) -> pb.ListSharesResponse:  # noqa: N802
        """Return the shares with these ids or names, oldest first; all if none is named."""
        now_ns = self._node.now_ns()
        shares = [self._share(status) for status in self._node.statuses(request.shares)]
        return pb.ListSharesResponse(shares=shares, now_ns=now_ns)

    @_as_rpc
    def PauseShare(self, request: pb.PauseShareRequest) -> pb.PauseShareResponse:  # noqa: N802
        """Close a share's gates."""
        status = self._node.pause(request.share, paused=True, yielding=request.yielding)
        return pb.PauseShareResponse(share=self._share(status))

    @_as_rpc
    def ResumeShare(self, request: pb.ResumeShareRequest) -> pb.ResumeShareResponse:  # noqa: N802
        """Let a paused share run again."""
        return pb.ResumeShareResponse(share=self._share(self._node.pause(request.share, paused=False)))

    @_as_rpc
    def ListTurns(self, request: pb.ListTurnsRequest) -> pb.ListTurnsResponse:  # noqa: N802
        """Return finished turns after the given sequence, oldest first; max_turns 0 asks for _TURNS_DEFAULT."""
        if request.max_turns > _TURNS_MAX:
            raise InvalidInput(f"max_turns {request.max_turns} is above {_TURNS_MAX}: ask for less and call again")
        found = self._node.turns(request.after_sequence, request.max_turns or _TURNS_DEFAULT)
        turns = [_turn(turn, share, device) for turn, share, device in found]
        return pb.ListTurnsResponse(turns=turns, now_ns=self._node.now_ns())

    @_as_rpc
    def ExplainShare(self, request: pb.ExplainShareRequest) -> pb.ExplainShareResponse:  # noqa: N802
        """Say why a share runs or waits."""
        share = self._node.share(request.share)
        status = self._node.status()
        devices = explain(status, share.id)
        current = next(held for held in status.shares if held.share.id == share.id)
        return pb.ExplainShareResponse(share=self._share(current), devices=devices)

    async def GetNode(self, request: pb.GetNodeRequest, context: Context) -> pb.GetNodeResponse:  # noqa: N802
        """Describe the node. To a caller with a ticket it also says whether that caller could own a share."""

        def describe() -> pb.GetNodeResponse:
            """Return the node as a message. Raises InvalidInput for a ticket that is not valid any more."""
            caller = self._hello.peer(context.invocation_metadata())
            unseen = [_UNSEEN_HERE] if caller is not None and not caller.start_ticks else []
            return pb.GetNodeResponse(
                **asdict(self._node.identity),
                now_ns=self._node.now_ns(),
                devices=[_device(device) for device in self._node.device_statuses()],
                troubles=[*self._node.troubles, *unseen],
            )

        return await answer(context, "GetNode", describe)

    async def ReleaseDevice(self, request: pb.ReleaseDeviceRequest, context: Context) -> pb.ReleaseDeviceResponse:  # noqa: N802
        """Release a device into an operator's hands, and return it with the shares that hold it."""
        status = await _await_answer(context, "ReleaseDevice", self._releases.release(request.device))
        held = [one for one in self._node.statuses() if any(d.device == status.info.uuid for d in one.share.devices)]
        return pb.ReleaseDeviceResponse(device=_device(status), shares=map(self._share, held))

    async def ResumeDevice(self, request: pb.ResumeDeviceRequest, context: Context) -> pb.ResumeDeviceResponse:  # noqa: N802
        """Take a released device back."""
        status = await _await_answer(context, "ResumeDevice", self._releases.resume(request.device))
        return pb.ResumeDeviceResponse(device=_device(status))

    @_as_rpc
    def ReportPlugin(self, request: pb.ReportPluginRequest) -> pb.ReportPluginResponse:  # noqa: N802
        """Take the device plugin's counters."""
        plugin.check(request)
        self._node.take_report(request)
        return pb.ReportPluginResponse()

    async def WatchUsage(  # noqa: N802
        self, request: pb.WatchUsageRequest, context: Context
    ) -> AsyncIterator[pb.WatchUsageResponse]:
        """Send the usage at once, and again after each interval, until the client leaves or a named share ends."""
        try:
            interval_ns = _interval_ns(request)
            ids = [self._node.share(reference).id for reference in request.shares]
        except ShareError as error:
            await context.abort(grpc.StatusCode[error.code], str(error))
        due = asyncio.get_running_loop().time()
        while True:
            status = self._node.status()
            shares = [held for held in status.shares if not ids or held.share.id in ids]
            if len(shares) < len(ids):
                return
            yield self._usage(status, shares)
            due += interval_ns / 1e9
            await asyncio.sleep(max(0.0, due - asyncio.get_running_loop().time()))

    def _usage(self, status: NodeStatus, shares: list[ShareStatus]) -> pb.WatchUsageResponse:
        """Return one message of the stream: these shares and all devices."""
        return pb.WatchUsageResponse(
            now_ns=status.now_ns,
            shares=[self._share(held) for held in shares],
            devices=[_device(device) for device in status.devices],
        )

    def _share(self, status: ShareStatus) -> pb.Share:
        """Return a share and its usage as a message. The owner's token is left out."""
        share = status.share
        indices = {device.info.uuid: device.info.index for device in self._node.published.devices}
        devices = [
            _device_share(usage, held.terms, indices[held.device])
            for held, usage in zip(share.devices, status.usages, strict=True)
        ]
        processes = [
            pb.Process(pid=p.pid, slot=p.slot, launches=p.launches, memory_used_bytes=p.memory_used_bytes)
            for p in status.processes
        ]
        return pb.Share(
            id=share.id,
            name=share.name,
            share_class=_CLASSES_OUT[share.share_class],
            devices=devices,
            processes=processes,
            owner_pid=share.owner_pid,
            labels=share.labels,
            paused=share.paused,
            directory=share.directory,
            registered_unix_ns=share.registered_unix_ns,
            yielding=share.yielding,
            gang=share.gang,
        )


def _share_class(value: pb.ShareClass.ValueType) -> ShareClass | None:
    """Return the class; None when it is not given. Raises InvalidInput for a number of another version."""
    if value == pb.SHARE_CLASS_UNSPECIFIED:
        return None
    if value not in _CLASSES:
        raise InvalidInput(f"class {value} is unknown here: use latency, standard or batch")
    return _CLASSES[value]


def _device_ask(item: pb.DeviceAsk) -> DeviceAsk:
    """Read what is asked of one device. Limit 0 means that none is given: 100 %. Raises InvalidInput."""
    limit = item.limit_millipercent or WHOLE_MILLIPERCENT
    terms = Terms(item.request_millipercent, limit, item.memory_limit_bytes)
    return DeviceAsk(item.device, terms, item.memory_in_proportion)


def _change(item: pb.DeviceChange) -> TermsChange:
    """Read new terms of one device. A value that is not given becomes None: it stays."""
    return TermsChange(
        device=item.device,
        request_millipercent=item.request_millipercent if item.HasField("request_millipercent") else None,
        limit_millipercent=item.limit_millipercent if item.HasField("limit_millipercent") else None,
        memory_limit_bytes=item.memory_limit_bytes if item.HasField("memory_limit_bytes") else None,
    )


def _interval_ns(request: pb.WatchUsageRequest) -> int:
    """Return the time between two messages of a stream: 1 s unless the request has another. Raises InvalidInput."""
    if not request.HasField("interval"):
        return _INTERVAL_DEFAULT_NS
    interval_ns = request.interval.seconds * 1_000_000_000 + request.interval.nanos
    if not _INTERVAL_MIN_NS <= interval_ns <= _INTERVAL_MAX_NS:
        raise InvalidInput(f"interval {interval_ns / 1e9:g} s is outside 0.1 s–1 h: choose one between")
    return interval_ns


def _device_share(held: DeviceUsage, terms: Terms, index: int) -> pb.DeviceShare:
    """Return what a share holds and uses of one device as a message; `index` is the device's."""
    usage = held.usage
    return pb.DeviceShare(
        device_uuid=held.device,
        device_index=index,
        request_millipercent=terms.request_millipercent,
        limit_millipercent=terms.limit_millipercent,
        memory_limit_bytes=terms.memory_limit_bytes,
        state=_STATES_OUT[usage.state],
        usage=pb.Usage(
            **{name: getattr(usage, name) for name in NUMBERS},
            used_1s_millipercent=held.used_1s_millipercent,
            used_1m_millipercent=held.used_1m_millipercent,
            used_15m_millipercent=held.used_15m_millipercent,
            waited_1m_millipercent=held.waited_1m_millipercent,
        ),
    )


def _device(status: DeviceStatus) -> pb.Device:
    """Return a device as a message."""
    return pb.Device(
        uuid=status.info.uuid,
        index=status.info.index,
        name=status.info.name,
        memory_total_bytes=status.info.memory_total_bytes,
        memory_used_bytes=status.memory_used_bytes,
        healthy=status.healthy,
        health_reason=status.health_reason,
        requested_millipercent=status.requested_millipercent,
        memory_promised_bytes=status.memory_promised_bytes,
        charged_ns=status.counters.charged_ns,
        decisions=status.counters.decisions,
        decision_ns=status.counters.decision_ns,
        foreign_processes=[
            pb.ForeignProcess(
                pid=p.pid, name=p.name, memory_used_bytes=p.memory_used_bytes, unmetered_cause=p.unmetered_cause
            )
            for p in status.unmanaged
        ],
    )


def _turn(turn: Turn, share: Share | None, device: DeviceUuid) -> pb.Turn:
    """Return a turn as a message. Without a share, which has been forgotten, it has no id and no name."""
    return pb.Turn(
        sequence=turn.sequence,
        share_id=share.id if share else "",
        share_name=share.name if share else "",
        device_uuid=device,
        requested_ns=turn.requested_ns,
        granted_ns=turn.granted_ns,
        closed_ns=turn.closed_ns,
        drained_ns=turn.drained_ns,
        charged_ns=turn.charged_ns,
        end=_ENDS_OUT[turn.end] if turn.end < len(_ENDS_OUT) else pb.TURN_END_UNSPECIFIED,
        cogranted=turn.cogranted,
    )
