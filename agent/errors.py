"""The errors a client of the agent can see: one tree, one map to gRPC codes.

Every text is one line: what is wrong, the limit, the remedy. Pure values; no grpc here: `code` is the name of the gRPC
status code, which the service (and the CLI, going back) looks up.
"""

from __future__ import annotations

from typing import ClassVar, Final

NOT_SIMULATED: Final = "cannot be simulated"
"""Part of the error for simulated devices that do not exist; `sharepod run --private` looks for it."""


class ShareError(Exception):
    """An error about a share, device or agent that the client can correct."""

    code: ClassVar[str] = "UNKNOWN"


class InvalidInput(ShareError):
    """A value is outside its range or contradicts another."""

    code = "INVALID_ARGUMENT"


class UnknownShare(ShareError):
    """No share of that id or name."""

    code = "NOT_FOUND"


class UnknownDevice(ShareError):
    """No device of that UUID or index."""

    code = "NOT_FOUND"


class NameTaken(ShareError):
    """Another share has the name."""

    code = "ALREADY_EXISTS"


class DoesNotFit(ShareError):
    """The request or memory cap no longer fits on the device."""

    code = "RESOURCE_EXHAUSTED"


class WrongState(ShareError):
    """The share, device or region is not in a state that allows this."""

    code = "FAILED_PRECONDITION"


class NotYours(ShareError):
    """The caller may not change this: it belongs to another user, or only an operator may change it."""

    code = "PERMISSION_DENIED"


class AgentUnavailable(ShareError):
    """No agent runs, it is starting or stopping, or another agent serves this host."""

    code = "UNAVAILABLE"
