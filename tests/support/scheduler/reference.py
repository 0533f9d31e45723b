"""The rules of placement in plain Python: slow, and independent of the code under test."""

from dataclasses import dataclass, field
from itertools import combinations

from sharepod.scheduler.placement.request import DEVICE_MILLI, NodeSpec, PodRequest, ShareRequest
from sharepod.scheduler.simulation.replay import Placed
from sharepod.scheduler.state.trace import NamedPod


@dataclass
class Node:
    """What is left of a node."""

    spec: NodeSpec
    cpu_milli: int = 0
    memory_mib: int = 0
    milli: list[int] = field(default_factory=list)
    mib: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.cpu_milli, self.memory_mib = self.spec.cpu_milli, self.spec.memory_mib
        self.milli = [DEVICE_MILLI] * self.spec.devices
        self.mib = [self.spec.device_mib] * self.spec.devices

    def share_mib(self, share: ShareRequest) -> int:
        if not self.spec.device_mib:
            return 0
        if share.mib is None:
            return self.spec.device_mib * share.milli // DEVICE_MILLI
        return max(share.mib, self.spec.device_mib * share.memory_milli // DEVICE_MILLI)

    def fits(self, request: PodRequest) -> bool:
        """Tell whether there is any way to place a pod."""
        if self.cpu_milli < request.cpu_milli or self.memory_mib < request.memory_mib:
            return False
        if request.shares and request.models and self.spec.model not in request.models:
            return False
        return self._fits_rest(request, [])

    def _fits_rest(self, request: PodRequest, chosen: list[tuple[int, ...]]) -> bool:
        if len(chosen) == len(request.shares):
            return True
        share = request.shares[len(chosen)]
        allowed = range(self.spec.devices) if share.beside is None else chosen[share.beside]
        for devices in combinations(allowed, share.devices):
            one = PodRequest(
                shares=(ShareRequest(share.milli, share.devices, share.mib, memory_milli=share.memory_milli),)
            )
            self.take(one, (devices,))
            fits = all(milli >= 0 for milli in self.milli) and all(mib >= 0 for mib in self.mib)
            fits = fits and self._fits_rest(request, [*chosen, devices])
            self.take(one, (devices,), -1)
            if fits:
                return True
        return False

    def take(self, request: PodRequest, devices: tuple[tuple[int, ...], ...], sign: int = 1) -> None:
        self.cpu_milli -= sign * request.cpu_milli
        self.memory_mib -= sign * request.memory_mib
        for share, on in zip(request.shares, devices, strict=True):
            assert len(set(on)) == share.devices
            assert share.beside is None or set(on) <= set(devices[share.beside])
            for device in on:
                self.milli[device] -= sign * share.milli
                self.mib[device] -= sign * self.share_mib(share)

    def validate(self) -> None:
        assert self.cpu_milli >= 0
        assert self.memory_mib >= 0
        assert all(0 <= milli <= DEVICE_MILLI for milli in self.milli)
        assert all(0 <= mib <= self.spec.device_mib for mib in self.mib)


def check_placements(nodes: list[NodeSpec], pods: list[NamedPod], placed: list[Placed]) -> None:
    """Check placements pod by pod: nothing is given twice, and no pod that fits somewhere was refused."""
    state = {node.name: Node(node) for node in nodes}
    requests = {pod.name: pod.request for pod in pods}
    for one in placed:
        request = requests[one.pod]
        if not one.node:
            assert not any(node.fits(request) for node in state.values()), f"{one.pod} fits and was refused"
            continue
        node = state[one.node]
        assert not request.models or not request.shares or node.spec.model in request.models
        assert one.milli == (request.shares[0].milli if request.shares else 0)
        node.take(request, (one.devices,) if request.shares else ())
        node.validate()
