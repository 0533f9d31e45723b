"""The pods of a bench's node: shares with the labels that the device plugin gives them, and programs in them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import grpc

from rig.node import Node
from rig.programs import Program
from sharepod.cli.commands.launch import program_environment
from sharepod.proto import v1_pb2 as pb
from sharepod.proto import v1_pb2_grpc as rpc

TIMEOUT_S = 10.0


@dataclass(frozen=True, slots=True)
class Pod:
    """The ask of a pod with one container, in percent and bytes (0: no cap)."""

    name: str
    request: int
    limit: int = 100
    share_class: str = "standard"
    memory_bytes: int = 0
    device: str = "0"
    namespace: str = "team-a"

    @property
    def labels(self) -> dict[str, str]:
        """Return the labels of its share."""
        uid = f"00000000-0000-4000-8000-{sum(self.name.encode()):012x}"
        return {"namespace": self.namespace, "pod": self.name, "container": "main", "pod_uid": uid}


class Pods:
    """The pods of a node. This only stands in for the device plugin: agent, hook and programs are real."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._answers: dict[str, pb.RegisterShareResponse] = {}

    def admit(self, pod: Pod) -> None:
        """Register a pod's share."""
        ask = pb.DeviceAsk(
            device=pod.device,
            request_millipercent=pod.request * 1000,
            limit_millipercent=pod.limit * 1000,
            memory_limit_bytes=pod.memory_bytes,
        )
        share_class = pb.ShareClass.Value(f"SHARE_CLASS_{pod.share_class.upper()}")
        request = pb.RegisterShareRequest(devices=[ask], share_class=share_class, labels=pod.labels)
        self._answers[pod.name] = self._ask("RegisterShare", request)

    def start(self, pod: Pod, command: Sequence[str]) -> Program:
        """Start a program in a pod. It waits for its `go`."""
        answer = self._answers[pod.name]
        environment = program_environment(self._node.environment, answer.environment, answer.hook_path)
        return self._node.add(pod.name, command, environment)

    def pause(self, pod: Pod, *, paused: bool = True) -> None:
        """Pause a pod, or let it go on."""
        share = self._answers[pod.name].share.id
        if paused:
            self._ask("PauseShare", pb.PauseShareRequest(share=share))
        else:
            self._ask("ResumeShare", pb.ResumeShareRequest(share=share))

    def release(self, pod: Pod) -> float:
        """End a pod's share, of one device. Return the device time that it has used, in seconds."""
        request = pb.ReleaseShareRequest(share=self._answers.pop(pod.name).share.id)
        [held] = self._ask("ReleaseShare", request).share.devices
        return float(held.usage.used_ns / 1e9)

    def _ask(self, method: str, request: Any) -> Any:
        with grpc.insecure_channel(f"unix:{self._node.socket}", options=[("grpc.enable_http_proxy", 0)]) as channel:
            return getattr(rpc.NodeServiceStub(channel), method)(request, timeout=TIMEOUT_S)
