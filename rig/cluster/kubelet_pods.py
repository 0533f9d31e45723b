"""Pods and containers as kubelet sees them, and their failures; for the double."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from sharepod.proto import deviceplugin_pb2 as pb


class AdmissionFailed(Exception):
    """UnexpectedAdmissionError: the pod is Failed for good."""


class StartFailed(Exception):
    """CreateContainerConfigError: the container waits, and kubelet tries again."""


Kind = Literal["init", "sidecar", "app"]


@dataclass
class FakeContainer:
    """A container that asks for units."""

    name: str
    kind: Kind
    size: int
    ids: list[str] = field(default_factory=list)
    response: pb.ContainerAllocateResponse | None = None
    """The answer of Allocate, as in the checkpoint."""
    running: bool = False
    starts: int = 0
    pre_started: bool = False
    """Whether PreStartContainer was called before its last start."""
    message: str = ""
    """Why it waits."""


@dataclass
class FakePod:
    """A pod of the node."""

    namespace: str
    name: str
    uid: str
    containers: dict[str, FakeContainer]
    phase: Literal["Pending", "Running", "Succeeded", "Failed"] = "Pending"
    reason: str = ""
    message: str = ""
    admitted: bool = False

    @property
    def active(self) -> bool:
        return self.phase in ("Pending", "Running")
