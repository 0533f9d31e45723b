"""Speaks gRPC to the node's agent, in the messages of proto/v1.proto.

In the command only this module imports grpc. It is itself imported late: `sharepod --help` and a mistyped flag need not
wait for it.
"""

from __future__ import annotations

import errno
import socket
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Final, Self, TypeVar, cast

import grpc

from sharepod.agent.devices import lock, processes
from sharepod.agent.settings import SOCKET_NAME, TICKET_KEY
from sharepod.cli import errors
from sharepod.cli.connection import hello, token
from sharepod.cli.render.messages import word
from sharepod.cli.render.turns import Turn
from sharepod.proto import v1_pb2 as pb
from sharepod.proto import v1_pb2_grpc as rpc

Response = TypeVar("Response")

_TIMEOUT_S: Final = 10.0
_RELEASE_S: Final = 30.0
"""The timeout for the release of a device: the agent may first end a look at the device, which takes up to 10 s."""
_TURNS_A_CALL: Final = 16384
"""The most turns in one answer."""
_EXIT_CODES: Final = {
    grpc.StatusCode.INVALID_ARGUMENT: errors.EXIT_USAGE,
    grpc.StatusCode.RESOURCE_EXHAUSTED: errors.EXIT_REFUSED,
    grpc.StatusCode.UNAVAILABLE: errors.EXIT_NO_AGENT,
    grpc.StatusCode.DEADLINE_EXCEEDED: errors.EXIT_NO_AGENT,
}


_SESSIONS: Final = "/run/user/"
"""Where a user's runtime directory is. It is removed when the user logs out."""


def no_agent(socket_path: str, cause: str, elsewhere: Sequence[str] = (), other: str = "") -> errors.CliError:
    """Return the error for an agent that was not found at the socket, nor in the directories `elsewhere`.

    `other`: the socket of another agent, which does listen; empty: there is none.
    """
    use = f"use the one that listens at {other} (--socket), or " if other else ""
    if starting := _starting(Path(socket_path)):
        return errors.CliError(
            f"no agent at {socket_path}: {cause}, though pid {starting} is one there: it awaits the driver, or stops",
            errors.EXIT_NO_AGENT,
            f"{use}try again; if that lasts, look at dmesg for XID, and at whether `nvidia-smi` answers",
        )
    nor = f", nor in {' or '.join(elsewhere)}" if elsewhere else ""
    lingers = " that outlives the login (`loginctl enable-linger`)" if socket_path.startswith(_SESSIONS) else ""
    remedy = (
        f"{use}start one{lingers} with `sharepod agent` (no GPU here: `sharepod agent --simulate 1xH200`), "
        "or let `sharepod run --private` start one"
    )
    return errors.CliError(f"no agent at {socket_path}{nor}: {cause}", errors.EXIT_NO_AGENT, remedy)


def _starting(path: Path) -> int:
    """Return the pid of an agent that has locked the directory of this operators' socket.

    0: none has, it cannot be seen, or `path` is no operators' socket.
    """
    if path.name != SOCKET_NAME:
        return 0
    try:
        return next(iter(processes.holders(path.with_name(lock.NAME).stat())), 0)
    except OSError:  # no agent has ever locked it
        return 0


def check_agent(socket_path: str, elsewhere: Sequence[str] = (), other: str = "") -> None:
    """Raise CliError unless a process listens on the agent's socket. The other parameters are as in `no_agent`."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC) as probe:
        probe.settimeout(_TIMEOUT_S)
        try:
            probe.connect(socket_path)
        except OSError as error:
            if error.errno in (errno.EACCES, errno.EPERM):
                raise errors.CliError(
                    f"no access to the agent at {socket_path}: permission denied",
                    errors.EXIT_NO_AGENT,
                    "ask its operator to let this user in (`--users-socket-mode`)",
                ) from None
            cause = {errno.ENOENT: "there is no such socket", errno.ECONNREFUSED: "nobody listens (it has stopped)"}
            text = cause.get(error.errno or 0, error.strerror or str(error))
            raise no_agent(socket_path, text, elsewhere, other) from None


class Client:
    """A connection to the agent. Every method raises CliError with the agent's one-line text when the agent refuses."""

    def __init__(self, socket_path: str, elsewhere: Sequence[str] = (), other: str = "") -> None:
        """Connect. `elsewhere` are directories in which no agent listens, `other` is the socket of one that does."""
        check_agent(socket_path, elsewhere, other)
        self._socket_path = socket_path
        # A proxy from the environment must not be used for a unix socket.
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

    def register(self, request: pb.RegisterShareRequest) -> pb.RegisterShareResponse:
        """Create a share. If the request names this process as the owner, a ticket proves to the agent that it is."""
        if not request.owner_pid:
            return self._call(self._stub.RegisterShare, request, gang=request.gang)
        with hello.ticket(self._socket_path) as ticket:
            return self._call(self._stub.RegisterShare, request, gang=request.gang, ticket=ticket)

    def update(self, request: pb.UpdateShareRequest) -> pb.Share:
        """Change the terms that the request gives. The share's programs go on."""
        return self._call(self._stub.UpdateShare, request).share

    def release(self, share: str) -> pb.Share:
        """End a share; return its last account."""
        return self._call(self._stub.ReleaseShare, pb.ReleaseShareRequest(share=share)).share

    def pause(self, share: str) -> pb.Share:
        """Close a share's gates until it is resumed."""
        return self._call(self._stub.PauseShare, pb.PauseShareRequest(share=share)).share

    def resume(self, share: str) -> pb.Share:
        """Let a paused share run again."""
        return self._call(self._stub.ResumeShare, pb.ResumeShareRequest(share=share)).share

    def release_device(self, device: str) -> pb.ReleaseDeviceResponse:
        """Let go of a device; return it with the shares on it."""
        return self._call(self._stub.ReleaseDevice, pb.ReleaseDeviceRequest(device=device), timeout_s=_RELEASE_S)

    def resume_device(self, device: str) -> pb.Device:
        """Take a released device back."""
        return self._call(self._stub.ResumeDevice, pb.ResumeDeviceRequest(device=device)).device

    def list_shares(self) -> pb.ListSharesResponse:
        """Return all shares."""
        return self._call(self._stub.ListShares, pb.ListSharesRequest())

    def snapshot(self) -> pb.WatchUsageResponse:
        """Return all shares and devices, read at one instant."""
        stream = self._stub.WatchUsage(pb.WatchUsageRequest(), timeout=_TIMEOUT_S)
        try:
            return next(stream)
        except grpc.RpcError as error:
            raise self._refusal(error) from None
        finally:
            stream.cancel()

    def turns_after(self, sequence: int) -> list[Turn]:
        """Return every finished turn with a higher sequence that the agent still keeps, oldest first."""
        turns: list[Turn] = []
        while True:
            request = pb.ListTurnsRequest(after_sequence=sequence, max_turns=_TURNS_A_CALL)
            answer = self._call(self._stub.ListTurns, request)
            turns.extend(map(_turn, answer.turns))
            if len(answer.turns) < _TURNS_A_CALL:
                return turns
            sequence = answer.turns[-1].sequence

    def explain(self, share: str) -> pb.ExplainShareResponse:
        """Return the share and, by device, why it runs or waits."""
        return self._call(self._stub.ExplainShare, pb.ExplainShareRequest(share=share))

    def node(self) -> pb.GetNodeResponse:
        """Return the node: devices, versions, features."""
        return self._call(self._stub.GetNode, pb.GetNodeRequest())

    def node_for_owner(self) -> pb.GetNodeResponse:
        """Return the node. If this process could own no share, the node's troubles say why.

        Raises CliError, too, if the agent cannot be told which process this is.
        """
        with hello.ticket(self._socket_path) as ticket:
            return self._call(self._stub.GetNode, pb.GetNodeRequest(), ticket=ticket)

    def _call(
        self,
        method: Callable[..., Response],
        request: object,
        gang: str = "",
        timeout_s: float = _TIMEOUT_S,
        ticket: str = "",
    ) -> Response:
        """Make a call with this user's token. Raises CliError.

        `gang` is the gang of a registration: all of its programs need the same token. `ticket` tells the agent which
        process calls; empty: it need not know.
        """
        metadata = token.metadata(self._socket_path, gang=gang)
        if ticket:
            metadata += ((TICKET_KEY, ticket),)
        try:
            return method(request, timeout=timeout_s, metadata=metadata)
        except grpc.RpcError as error:
            raise self._refusal(error, timeout_s) from None

    def _refusal(self, error: grpc.RpcError, timeout_s: float = _TIMEOUT_S) -> errors.CliError:
        """Return the error for a failed call, with the agent's text if there is one. The status sets its exit code.

        `timeout_s`: how long the call waited for an answer.
        """
        # grpc raises an error that is also the call, but its type does not say so.
        call = cast("grpc.Call", error)
        code, details = call.code(), call.details() or ""
        if code is grpc.StatusCode.DEADLINE_EXCEEDED:
            text = f"the agent at {self._socket_path} has not answered for {timeout_s:.0f} s: look at its log"
        elif code is grpc.StatusCode.UNAVAILABLE and ("connect" in details.lower() or not details):  # gRPC's own words
            return no_agent(self._socket_path, "the connection broke")
        elif code is grpc.StatusCode.UNIMPLEMENTED:
            text = "the agent does not know this request: it is of another version: upgrade the older of the two"
        else:
            text = details or f"the agent answered {code.name}: look at its log"
        return errors.CliError(" ".join(text.split()), _EXIT_CODES.get(code, errors.EXIT_FAILURE))


def _turn(turn: pb.Turn) -> Turn:
    """Return a turn of the agent's answer as a value to draw."""
    return Turn(
        sequence=turn.sequence,
        share=turn.share_name or turn.share_id,
        device=turn.device_uuid,
        requested_ns=turn.requested_ns,
        granted_ns=turn.granted_ns,
        closed_ns=turn.closed_ns,
        drained_ns=turn.drained_ns,
        charged_ns=turn.charged_ns,
        reason=word(turn, "end"),
        cogranted=turn.cogranted,
    )
