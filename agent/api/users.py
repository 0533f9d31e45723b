"""The users' socket: any caller may register, list and watch shares, but change only its own.

A share belongs to the callers that have its token: the registration carried it in the metadata ("sharepod-token"). The
caller draws the token and keeps it; the agent keeps its digest with the share. The process that owns a share is the
caller itself, as the kernel tells it (hello.py).
"""

from __future__ import annotations

import hashlib
import hmac
from typing import TYPE_CHECKING, Any, Final, Never

from sharepod.agent.api.service import Context, NodeService, answer
from sharepod.agent.errors import InvalidInput, NotYours
from sharepod.agent.settings import HELLO_SOCKET_NAME, SOCKET_NAME

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from sharepod.proto import v1_pb2 as pb

TOKEN_KEY: Final = "sharepod-token"  # noqa: S105 - its name
READS: Final = frozenset({"ListShares", "WatchUsage", "ListTurns", "ExplainShare", "GetNode"})
_TOKEN_LENGTHS: Final = range(32, 257)
_LABELS_OF_PODS: Final = ("namespace", "pod", "container", "pod_uid")
_OPERATORS: Final = f"ask an operator: they may on {SOCKET_NAME}"


def _owner(metadata: Iterable[Sequence[Any]] | None) -> str:
    """Return the digest of the token in a call's metadata; empty when there is none. Raises InvalidInput."""
    token = next((item[1] for item in metadata or () if item[0] == TOKEN_KEY), "")
    if token and len(token) not in _TOKEN_LENGTHS:
        raise InvalidInput(f"the token has {len(token)} characters, outside 32–256: draw a new one at random")
    return hashlib.sha256(str(token).encode()).hexdigest() if token else ""


def _check_labels(labels: Iterable[str]) -> None:
    """Raise NotYours if a label says which pod the share is for: only operators may set these."""
    for label in labels:
        if label in _LABELS_OF_PODS:
            raise NotYours(f"label {label} says which pod a share is for: leave it out, or {_OPERATORS}")


class UsersService(NodeService):
    """The rpcs that a user may call. An rpc that is not in READS is overridden here, or any user could call it."""

    async def RegisterShare(  # noqa: N802 - proto
        self, request: pb.RegisterShareRequest, context: Context
    ) -> pb.RegisterShareResponse:
        """Create a share that belongs to the caller."""

        def register() -> pb.RegisterShareResponse:
            """Check what a user may ask for, and create the share. Raises a ShareError."""
            if request.id:
                raise NotYours(f"an id is given to shares of pods alone: leave it out, or {_OPERATORS}")
            _check_labels(request.labels)
            owner = _owner(context.invocation_metadata())
            if not owner:
                raise InvalidInput(f"a share needs its owner's token: send 32–256 random characters as {TOKEN_KEY}")
            peer = self._hello.peer(context.invocation_metadata())
            if request.owner_pid and peer is None:
                raise NotYours(
                    f"a share is owned by the process that registers it: say hello on {HELLO_SOCKET_NAME} first"
                )
            return self.register(request, owner, peer)

        return await answer(context, "RegisterShare", register)

    async def UpdateShare(self, request: pb.UpdateShareRequest, context: Context) -> pb.UpdateShareResponse:  # noqa: N802
        """Change the terms of the caller's share."""
        await self._check(request.share, context, request.labels)
        return await super().UpdateShare(request, context)

    async def ReleaseShare(self, request: pb.ReleaseShareRequest, context: Context) -> pb.ReleaseShareResponse:  # noqa: N802
        """End the caller's share."""
        await self._check(request.share, context)
        return await super().ReleaseShare(request, context)

    async def PauseShare(self, request: pb.PauseShareRequest, context: Context) -> pb.PauseShareResponse:  # noqa: N802
        """Close the gates of the caller's share."""
        await self._check(request.share, context)
        return await super().PauseShare(request, context)

    async def ResumeShare(self, request: pb.ResumeShareRequest, context: Context) -> pb.ResumeShareResponse:  # noqa: N802
        """Let the caller's paused share run again."""
        await self._check(request.share, context)
        return await super().ResumeShare(request, context)

    async def _check(self, reference: str, context: Context, labels: Iterable[str] = ()) -> None:
        """Abort the call unless the share belongs to the caller, and the caller may set these labels."""

        def check() -> None:
            """Raise NotYours if the call lacks the share's token, or if only operators may set one of the labels."""
            share, owner = self._node.share(reference), _owner(context.invocation_metadata())
            if not (owner and share.owner and hmac.compare_digest(owner, share.owner)):
                raise NotYours(
                    f"share {share.title} is not yours: whoever registered it has the token that changes it, "
                    f"or {_OPERATORS}"
                )
            _check_labels(labels)

        await answer(context, "check", check)

    async def ReleaseDevice(self, request: pb.ReleaseDeviceRequest, context: Context) -> pb.ReleaseDeviceResponse:  # noqa: N802
        """Refuse: all users share the device."""
        await _refuse(context, "ReleaseDevice", "takes a device from everybody")

    async def ResumeDevice(self, request: pb.ResumeDeviceRequest, context: Context) -> pb.ResumeDeviceResponse:  # noqa: N802
        """Refuse, like ReleaseDevice."""
        await _refuse(context, "ResumeDevice", "takes a device out of an operator's hands")

    async def ReportPlugin(self, request: pb.ReportPluginRequest, context: Context) -> pb.ReportPluginResponse:  # noqa: N802
        """Refuse: only the device plugin calls this."""
        await _refuse(context, "ReportPlugin", "is the device plugin's")


async def _refuse(context: Context, name: str, why: str) -> Never:
    """End the rpc with NotYours. `why` is what follows its name in the error."""

    def refuse() -> Never:
        """Raise NotYours."""
        raise NotYours(f"{name} {why}: {_OPERATORS}")

    await answer(context, name, refuse)
