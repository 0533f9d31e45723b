"""Speaks gRPC to the node's agent. The only module that sees protobuf messages; everything it returns is from `model`.

grpc is imported here and nowhere else in the command, and this module is imported late: `sharepod --help` and a
mistyped flag do not pay for it.
"""

from __future__ import annotations

import errno
import socket
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self, TypeVar, cast

import grpc

from sharepod.cli import errors, model
from sharepod.cli.turns import Turn
from sharepod.proto import v1_pb2 as pb
from sharepod.proto import v1_pb2_grpc as rpc

if TYPE_CHECKING:
    from google.protobuf.descriptor import EnumDescriptor

Response = TypeVar("Response")

_TIMEOUT_S: Final = 10.0
_TURNS_A_CALL: Final = 16384
_EXIT_CODES: Final = {
    grpc.StatusCode.INVALID_ARGUMENT: errors.EXIT_USAGE,
    grpc.StatusCode.RESOURCE_EXHAUSTED: errors.EXIT_REFUSED,
    grpc.StatusCode.UNAVAILABLE: errors.EXIT_NO_AGENT,
    grpc.StatusCode.DEADLINE_EXCEEDED: errors.EXIT_NO_AGENT,
}
_CLASSES: Final = {
    "latency": pb.SHARE_CLASS_LATENCY,
    "standard": pb.SHARE_CLASS_STANDARD,
    "batch": pb.SHARE_CLASS_BATCH,
}


def no_agent(socket_path: str, cause: str) -> errors.CliError:
    """Return the error for an agent that is not there."""
    return errors.CliError(
        f"no agent at {socket_path}: {cause}: start one with `sharepod agent` (no GPU here: `sharepod agent --simulate "
        "1xH200`), or let `sharepod run --private` start one",
        errors.EXIT_NO_AGENT,
    )


def check_agent(socket_path: str) -> None:
    """Raise CliError, with the cause and the cure, unless something listens on the agent's socket."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC) as probe:
        probe.settimeout(_TIMEOUT_S)
        try:
            probe.connect(socket_path)
        except OSError as error:
            if error.errno in (errno.EACCES, errno.EPERM):
                raise errors.CliError(
                    f"no access to the agent at {socket_path}: permission denied: ask its operator to let this user in",
                    errors.EXIT_NO_AGENT,
                ) from None
            cause = {errno.ENOENT: "there is no such socket", errno.ECONNREFUSED: "nobody listens (it has stopped)"}
            raise no_agent(socket_path, cause.get(error.errno or 0, error.strerror or str(error))) from None


class Client:
    """A connection to the agent. Every method raises CliError with the agent's one-line text when it refuses."""

    def __init__(self, socket_path: str) -> None:
        check_agent(socket_path)
        self._socket_path = socket_path
        # A proxy from the environment has no business on a unix socket.
        self._channel = grpc.insecure_channel(f"unix:{socket_path}", options=[("grpc.enable_http_proxy", 0)])
        self._stub = rpc.NodeServiceStub(self._channel)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection."""
        self._channel.close()

    def register(self, ask: model.Ask) -> model.Registration:
        """Create a share."""
        devices = [
            pb.DeviceAsk(
                device=device,
                request_millipercent=ask.request_millipercent,
                limit_millipercent=ask.limit_millipercent,
                memory_limit_bytes=ask.memory_limit_bytes,
            )
            for device in ask.devices
        ]
        request = pb.RegisterShareRequest(
            name=ask.name,
            devices=devices,
            share_class=_CLASSES[ask.share_class],
            owner_pid=ask.owner_pid,
            gang=ask.gang,
        )
        answer = self._call(self._stub.RegisterShare, request)
        return model.Registration(_share(answer.share), dict(answer.environment), answer.hook_path)

    def update(
        self,
        share: str,
        *,
        device: str,
        request_millipercent: int | None,
        limit_millipercent: int | None,
        memory_limit_bytes: int | None,
        share_class: str | None,
    ) -> model.Share:
        """Change what is not None; the share's programs go on."""
        change = pb.DeviceChange(
            device=device,
            request_millipercent=request_millipercent,
            limit_millipercent=limit_millipercent,
            memory_limit_bytes=memory_limit_bytes,
        )
        wanted = pb.SHARE_CLASS_UNSPECIFIED if share_class is None else _CLASSES[share_class]
        request = pb.UpdateShareRequest(share=share, devices=[change], share_class=wanted)
        return _share(self._call(self._stub.UpdateShare, request).share)

    def release(self, share: str) -> model.Share:
        """End a share; return its last account."""
        return _share(self._call(self._stub.ReleaseShare, pb.ReleaseShareRequest(share=share)).share)

    def pause(self, share: str) -> model.Share:
        """Close a share's gates until it is resumed."""
        return _share(self._call(self._stub.PauseShare, pb.PauseShareRequest(share=share)).share)

    def resume(self, share: str) -> model.Share:
        """Let a paused share run again."""
        return _share(self._call(self._stub.ResumeShare, pb.ResumeShareRequest(share=share)).share)

    def list_shares(self, shares: Sequence[str] = ()) -> model.Snapshot:
        """Return the shares of these ids or names; all when none is given."""
        answer = self._call(self._stub.ListShares, pb.ListSharesRequest(shares=shares))
        return model.Snapshot(answer.now_ns, tuple(map(_share, answer.shares)))

    def snapshot(self) -> model.Snapshot:
        """Return all shares and devices, read at one instant."""
        stream = self._stub.WatchUsage(pb.WatchUsageRequest(), timeout=_TIMEOUT_S)
        try:
            answer = next(stream)
        except grpc.RpcError as error:
            raise self._refusal(error) from None
        finally:
            stream.cancel()
        shares, devices = map(_share, answer.shares), map(_device, answer.devices)
        return model.Snapshot(answer.now_ns, tuple(shares), tuple(devices))

    def turns_after(self, sequence: int) -> list[Turn]:
        """Return every finished turn that the agent still keeps with a higher sequence, oldest first."""
        turns: list[Turn] = []
        while True:
            request = pb.ListTurnsRequest(after_sequence=sequence, max_turns=_TURNS_A_CALL)
            answer = self._call(self._stub.ListTurns, request)
            turns.extend(map(_turn, answer.turns))
            if len(answer.turns) < _TURNS_A_CALL:
                return turns
            sequence = answer.turns[-1].sequence

    def explain(self, share: str) -> tuple[model.Share, tuple[model.Explanation, ...]]:
        """Return the share and, per device, why it runs or waits."""
        answer = self._call(self._stub.ExplainShare, pb.ExplainShareRequest(share=share))
        explanations = (
            model.Explanation(e.device_uuid, _state(e.state), e.reason, tuple(e.facts), tuple(e.holder_share_ids))
            for e in answer.devices
        )
        return _share(answer.share), tuple(explanations)

    def node(self) -> model.Node:
        """Return the node: devices, versions, features."""
        answer = self._call(self._stub.GetNode, pb.GetNodeRequest())
        return model.Node(
            node_name=answer.node_name,
            version=answer.version,
            region_abi_version=answer.region_abi_version,
            features=tuple(answer.features),
            agent_pid=answer.agent_pid,
            devices=tuple(map(_device, answer.devices)),
            driver_version=answer.driver_version,
            runtime_directory=answer.runtime_directory,
            policy=answer.policy,
            environment=dict(answer.environment),
            hook_path=answer.hook_path,
        )

    def _call(self, method: Callable[..., Response], request: object) -> Response:
        try:
            return method(request, timeout=_TIMEOUT_S)
        except grpc.RpcError as error:
            raise self._refusal(error) from None

    def _refusal(self, error: grpc.RpcError) -> errors.CliError:
        # What the library raises for a call is the call itself too; only its types do not say so.
        call = cast("grpc.Call", error)
        code, details = call.code(), call.details() or ""
        if code is grpc.StatusCode.DEADLINE_EXCEEDED:
            text = f"the agent at {self._socket_path} has not answered for {_TIMEOUT_S:.0f} s: look at its log"
        elif code is grpc.StatusCode.UNAVAILABLE and ("connect" in details.lower() or not details):
            return no_agent(self._socket_path, "the connection broke")
        elif code is grpc.StatusCode.UNIMPLEMENTED:
            text = "the agent does not know this request: it is of another version: upgrade the older of the two"
        else:
            text = details or f"the agent answered {code.name}: look at its log"
        return errors.CliError(" ".join(text.split()), _EXIT_CODES.get(code, errors.EXIT_FAILURE))


def _word(enum: EnumDescriptor, number: int, prefix: str) -> str:
    value = enum.values_by_number.get(number)  # a newer agent knows more words
    return value.name.removeprefix(prefix).lower() if value else f"unknown ({number})"


def _state(state: int) -> str:
    return _word(pb.ShareState.DESCRIPTOR, state, "SHARE_STATE_")


def _device_share(term: pb.DeviceShare) -> model.DeviceShare:
    usage = term.usage
    return model.DeviceShare(
        device_uuid=term.device_uuid,
        device_index=term.device_index,
        request_millipercent=term.request_millipercent,
        limit_millipercent=term.limit_millipercent,
        memory_limit_bytes=term.memory_limit_bytes,
        state=_state(term.state),
        used_ns=usage.used_ns,
        charged_ns=usage.charged_ns,
        estimated_ns=usage.estimated_ns,
        waited_ns=usage.waited_ns,
        overrun_ns=usage.overrun_ns,
        turns=usage.turns,
        launches=usage.launches,
        passed=usage.passed,
        cogrants=usage.cogrants,
        faults=usage.faults,
        memory_used_bytes=usage.memory_used_bytes,
        memory_overhead_bytes=usage.memory_overhead_bytes,
        memory_refusals=usage.memory_refusals,
        memory_refused_bytes=usage.memory_refused_bytes,
        host_to_device_bytes=usage.host_to_device_bytes,
        device_to_host_bytes=usage.device_to_host_bytes,
        host_to_device_copies=usage.host_to_device_copies,
        device_to_host_copies=usage.device_to_host_copies,
        processes=usage.processes,
        used_1s_millipercent=usage.used_1s_millipercent,
        used_1m_millipercent=usage.used_1m_millipercent,
    )


def _share(share: pb.Share) -> model.Share:
    return model.Share(
        id=share.id,
        name=share.name,
        share_class=_word(pb.ShareClass.DESCRIPTOR, share.share_class, "SHARE_CLASS_"),
        devices=tuple(map(_device_share, share.devices)),
        processes=tuple(model.Process(p.pid, p.slot, p.launches, p.memory_used_bytes) for p in share.processes),
        owner_pid=share.owner_pid,
        labels=dict(share.labels),
        paused=share.paused,
        directory=share.directory,
        yielding=share.yielding,
        gang=share.gang,
    )


def _device(device: pb.Device) -> model.Device:
    return model.Device(
        uuid=device.uuid,
        index=device.index,
        name=device.name,
        memory_total_bytes=device.memory_total_bytes,
        memory_used_bytes=device.memory_used_bytes,
        healthy=device.healthy,
        health_reason=device.health_reason,
        requested_millipercent=device.requested_millipercent,
        charged_ns=device.charged_ns,
        foreign_processes=tuple(
            model.ForeignProcess(p.pid, p.name, p.memory_used_bytes) for p in device.foreign_processes
        ),
    )


def _turn(turn: pb.Turn) -> Turn:
    return Turn(
        sequence=turn.sequence,
        share=turn.share_name or turn.share_id,
        device=turn.device_uuid,
        requested_ns=turn.requested_ns,
        granted_ns=turn.granted_ns,
        closed_ns=turn.closed_ns,
        drained_ns=turn.drained_ns,
        charged_ns=turn.charged_ns,
        reason=_word(pb.TurnEnd.DESCRIPTOR, turn.end, "TURN_END_"),
        cogranted=turn.cogranted,
    )
