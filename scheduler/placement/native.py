"""Holds the cluster's nodes and what is left of them in C, and calls the C kernels on them.

A snapshot has an index for each node. Time is in thousandths of a device or a processor ("milli"), memory in MiB. A
set of devices of a node is an integer with bit i for device i. A snapshot and its policies belong to one thread.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from itertools import chain
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from sharepod.scheduler.errors import PlacementError
from sharepod.scheduler.placement.models import MODELS_MAX, Models
from sharepod.scheduler.placement.request import DEVICE_MILLI, NODE_DEVICES_MAX, SHARES_MAX, STEP_MILLI
from sharepod.scheduler.placement.tables import ffi, lib

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray

    from sharepod.scheduler.placement.request import NodeSpec, PodRequest
    from sharepod.scheduler.placement.tables import NativePolicy

_REQUESTS_MAX: Final = 4096
"""The most requests that are kept in C: pods of a few kinds come again and again, but their number has no bound."""


class Verdict(IntEnum):
    """Whether a node can take a pod, and why not."""

    FITS = lib.SP_FITS
    NO_NODE = lib.SP_NO_NODE
    NO_CPU = lib.SP_NO_CPU
    NO_MEMORY = lib.SP_NO_MEMORY
    NO_MODEL = lib.SP_NO_MODEL
    FEW_DEVICES = lib.SP_FEW_DEVICES
    NO_TIME = lib.SP_NO_TIME
    NO_DEVICE_MEMORY = lib.SP_NO_DEVICE_MEMORY


@dataclass(frozen=True, slots=True)
class Place:
    """Where a pod goes."""

    node: int
    """The index of the node."""
    devices: tuple[tuple[int, ...], ...]
    """Of each share, the indices of its devices on that node, ascending."""


@dataclass(frozen=True, slots=True)
class Judged:
    """The verdict on one node for one pod."""

    node: int
    verdict: Verdict
    cost: int
    """The least is the best; comparable within one ranking only."""
    devices: tuple[tuple[int, ...], ...]


_CHOICE: Final = np.dtype(
    [("cost", np.int64), ("verdict", np.int32), ("devices", np.uint16, (SHARES_MAX,))], align=True
)
"""`struct sp_choice` as a dtype, for views of what C wrote."""


@dataclass(frozen=True, slots=True, eq=False)
class Ranking:
    """The verdicts on many nodes for one pod, as arrays in the order of the candidates."""

    nodes: NDArray[np.int32]
    verdict: NDArray[np.int32]
    """Of each candidate, a `Verdict`."""
    cost: NDArray[np.int64]
    """The least is the best; comparable only within one ranking, among the candidates that fit."""
    _masks: NDArray[np.uint16]
    """Of each candidate and share, the set of devices."""
    _shares: int
    _best: int

    def __len__(self) -> int:
        return len(self.nodes)

    def best(self) -> int:
        """Return the position of the least cost, among equals that of the lowest node index; -1: no node fits."""
        return self._best

    def devices(self, position: int) -> tuple[tuple[int, ...], ...]:
        """Return for each share the indices of its devices, ascending, at the candidate in this position.

        They are empty where the pod does not fit.
        """
        return tuple(_bits(int(mask)) for mask in self._masks[position, : self._shares])

    def place(self, position: int) -> Place:
        """Return where the pod would go, at the candidate in this position, which fits."""
        return Place(int(self.nodes[position]), self.devices(position))


# The numbers and the layout that Python and C share must be the same in the module that was built.
for _ours, _theirs in (
    (DEVICE_MILLI, lib.SP_DEVICE_MILLI),
    (NODE_DEVICES_MAX, lib.SP_NODE_DEVICES),
    (SHARES_MAX, lib.SP_ASK_SHARES),
    (STEP_MILLI, lib.SP_STEP_MILLI),
    (MODELS_MAX, lib.SP_MODELS),
    (_CHOICE.itemsize, ffi.sizeof("struct sp_choice")),
    *((field[1], ffi.offsetof("struct sp_choice", name)) for name, field in (_CHOICE.fields or {}).items()),
):
    if _ours != _theirs:
        raise ImportError("sharepod.scheduler._native was built from other sources: build it again")


class Snapshot:
    """What is left of each node. Nodes may come, change and go while the snapshot lives; its models are fixed."""

    def __init__(self, nodes: Sequence[NodeSpec], capacity: int = 0, models: Iterable[str] = ()) -> None:
        """Put the first nodes at the indices from 0 on. Raises PlacementError for more than MODELS_MAX models.

        `capacity`: how many nodes there may be in all, if that is more than the first ones. `models`: those that later
        nodes may have beside the models of the first ones.
        """
        rows = max(len(nodes), capacity)
        self._specs: list[NodeSpec | None] = [None] * rows
        self.models = Models([*models, *(node.model for node in nodes if node.devices)])
        self._nodes = ffi.new("struct sp_node[]", max(1, rows))
        self._device_facts = ffi.new("struct sp_device_facts[]", max(1, rows))
        self._all = ffi.new("int32_t[]", [*range(rows)])
        self._choices = ffi.new("struct sp_choice[]", max(1, rows))
        """For `best`: all indices as candidates, and where C writes its verdicts."""
        self._requests: dict[PodRequest, Any] = {}
        self.free_milli = dict.fromkeys(self.models.names, 0)
        """By model: the time that is left of all its devices together."""
        self.devices = dict.fromkeys(self.models.names, 0)
        """By model: the number of devices."""
        for index, node in enumerate(nodes):
            self.set_node(index, node)

    @property
    def nodes(self) -> tuple[NodeSpec, ...]:
        """Return the nodes that are there, by index; in a snapshot with gaps, positions in it are not indices."""
        return tuple(spec for spec in self._specs if spec is not None)

    def set_node(self, index: int, spec: NodeSpec) -> None:
        """Put a node at an index below the capacity, with all of it left, in place of any other.

        Raises PlacementError, and changes nothing, for an index beyond the capacity and for a model that this snapshot
        does not have: build a new one, with new policies.
        """
        self._check_row(index)
        if spec.devices and spec.model not in self.free_milli:
            raise PlacementError(
                f"{spec.name} has devices of model {spec.model!r}, new to this snapshot: build a new one"
            )
        self.remove_node(index)
        self._specs[index] = spec
        native = self._nodes[index]
        native.there, native.cpu_milli, native.memory_mib = 1, spec.cpu_milli, spec.memory_mib
        native.devices, native.device_mib = spec.devices, spec.device_mib
        if spec.devices:
            native.model = self.models.index(spec.model)
            native.free_milli[0 : spec.devices] = [DEVICE_MILLI] * spec.devices
            native.free_mib[0 : spec.devices] = [spec.device_mib] * spec.devices
            self.devices[spec.model] += spec.devices
            self.free_milli[spec.model] += spec.devices * DEVICE_MILLI
            lib.sp_node_update_left(self._nodes + index)

    def remove_node(self, index: int) -> None:
        """Remove a node, so that nothing fits there. Raises PlacementError for an index beyond the capacity."""
        self._check_row(index)
        spec = self._specs[index]
        if spec is not None and spec.devices:
            self.devices[spec.model] -= spec.devices
            self.free_milli[spec.model] -= sum(self.left(index)[2])  # the milli of each device
        self._specs[index] = None
        self._nodes[index], self._device_facts[index] = (
            ffi.new("struct sp_node *")[0],
            ffi.new("struct sp_device_facts *")[0],
        )

    def set_left(
        self, index: int, cpu_milli: int, memory_mib: int, free_milli: Sequence[int], free_mib: Sequence[int]
    ) -> None:
        """Set what is left of a node and of each of its devices.

        A value below 0 counts as 0, a value above the capacity as the capacity: a cluster may be over-booked. Raises
        PlacementError, and changes nothing, where there is no node, or for another number of devices.
        """
        spec = self._spec(index)
        if not len(free_milli) == len(free_mib) == spec.devices:
            raise PlacementError(
                f"{len(free_milli)} devices' time and {len(free_mib)} devices' memory for {spec.name}, which has "
                f"{spec.devices} devices: give one of each for each"
            )
        native = self._nodes[index]
        native.cpu_milli = min(max(cpu_milli, 0), spec.cpu_milli)
        native.memory_mib = min(max(memory_mib, 0), spec.memory_mib)
        if spec.devices:
            milli = [min(max(value, 0), DEVICE_MILLI) for value in free_milli]
            self.free_milli[spec.model] += sum(milli) - sum(native.free_milli[0 : spec.devices])
            native.free_milli[0 : spec.devices] = milli
            native.free_mib[0 : spec.devices] = [min(max(value, 0), spec.device_mib) for value in free_mib]
            lib.sp_node_update_left(self._nodes + index)

    def set_use(
        self, index: int, device: int, *, busy_milli: int, waited_milli: int, latency_milli: int, limits_milli: int
    ) -> None:
        """Set what is measured on a device and promised of it, for all its shares together.

        `busy_milli`: its time in which work ran. `waited_milli`: milliseconds that shares waited for it, in a second.
        `latency_milli`: the requests of latency shares. `limits_milli`: the limits of all shares, added up. Values
        are clamped to 0 to 1000, limits to 32 devices. Raises PlacementError where there is no node or device.
        """
        self._check_device(index, device)
        use = self._device_facts[index].use[device]
        use.busy_milli, use.waited_milli = _clamp(busy_milli), _clamp(waited_milli)
        use.latency_milli, use.limits_milli = _clamp(latency_milli), _clamp(limits_milli, lib.SP_LIMITS_MILLI)
        self._nodes[index].known |= lib.SP_USE_KNOWN

    def set_uses(self, index: int, uses: Sequence[tuple[int, int, int, int]]) -> None:
        """Set for each device of a node what `set_use` sets, in the order of its arguments, at a sixth of the cost.

        Raises PlacementError, and changes nothing, where there is no node, or for another number of devices.
        """
        spec = self._spec(index)
        if len(uses) != spec.devices:
            raise PlacementError(f"uses of {len(uses)} devices for {spec.name}, which has {spec.devices}")
        values = ffi.new("int64_t[]", [*chain.from_iterable(uses)])
        lib.sp_set_uses(self._nodes + index, self._device_facts + index, values)

    def set_links(self, index: int, masks: Sequence[int], numa: Sequence[int] = ()) -> None:
        """Set for each device of a node which others it has a fast link to (`masks`), and its memory node (`numa`).

        A mask has a bit for each linked device. A memory node is -1 if it is not known. Without `numa` all devices are
        on one.

        Raises PlacementError, and changes nothing, where there is no node, for another number of devices, and for a
        link that only one of its two devices has.
        """
        spec = self._spec(index)
        if len(masks) != spec.devices or len(numa) not in {0, spec.devices}:
            raise PlacementError(
                f"links of {len(masks)} devices, memory nodes of {len(numa)}: {spec.name} has {spec.devices}"
            )
        for device, mask in enumerate(masks):
            one_sided = ((mask >> other ^ masks[other] >> device) & 1 for other in range(spec.devices))
            if mask >> spec.devices or any(one_sided):
                raise PlacementError(
                    f"{spec.name}: device {device} has links {mask:#x} that others have not: give both ends"
                )
        facts = self._device_facts[index]
        facts.linked[0 : spec.devices] = list(masks)
        # C only compares the low eight bits; -1 (not known) becomes 255.
        facts.numa[0 : spec.devices] = [node & 0xFF for node in numa or [0] * spec.devices]
        self._nodes[index].known |= lib.SP_LINKS_KNOWN

    def best(self, request: PodRequest, policy: NativePolicy) -> Place | None:
        """Return where a pod goes among all nodes, the first of equal ones; None: it fits nowhere.

        It takes nothing from what is left. Raises PlacementError for a policy that was made for other models.
        """
        self._check_policy(policy)
        rows = len(self._specs)
        lib.sp_rank(
            self._nodes,
            self._device_facts,
            self._all,
            ffi.NULL,
            rows,
            self._request(request),
            policy.native,
            self._choices,
        )
        best = lib.sp_best(self._choices, self._all, rows)
        return Place(best, self._devices(self._choices[best], request)) if best >= 0 else None

    def rank(
        self, request: PodRequest, policy: NativePolicy, candidates: Sequence[int], allowed: Sequence[int] | None = None
    ) -> list[Judged]:
        """Return the verdicts on the nodes at the indices `candidates`, in that order.

        `allowed`: for each of them the bits of the devices that the pod may have; None: all. Raises PlacementError as
        `rank_array` does.
        """
        ranking = self.rank_array(request, policy, candidates, allowed)
        return [
            Judged(node, Verdict(verdict), cost, ranking.devices(position))
            for position, (node, verdict, cost) in enumerate(
                zip(ranking.nodes.tolist(), ranking.verdict.tolist(), ranking.cost.tolist(), strict=True)
            )
        ]

    def rank_array(
        self,
        request: PodRequest,
        policy: NativePolicy,
        candidates: NDArray[np.int32] | Sequence[int],
        allowed: NDArray[np.uint16] | Sequence[int] | None = None,
    ) -> Ranking:
        """Judge nodes as `rank` does, without work in Python for each; `allowed` and `candidates` are only read.

        An index without a node is judged NO_NODE. Raises PlacementError for an index beyond the capacity, and for a
        policy that was made for other models.
        """
        self._check_policy(policy)
        nodes, masks = self._candidates(candidates, allowed)
        choices = np.empty(len(nodes), _CHOICE)
        indices = ffi.from_buffer("int32_t[]", nodes)
        into = ffi.from_buffer("struct sp_choice[]", choices, require_writable=True)
        lib.sp_rank(
            self._nodes, self._device_facts, indices, masks, len(nodes), self._request(request), policy.native, into
        )
        best = lib.sp_best(into, indices, len(nodes))
        return Ranking(nodes, choices["verdict"], choices["cost"], choices["devices"], len(request.shares), best)

    def fit_array(
        self,
        request: PodRequest,
        candidates: NDArray[np.int32] | Sequence[int],
        allowed: NDArray[np.uint16] | Sequence[int] | None = None,
    ) -> NDArray[np.int32]:
        """Return a Verdict for each candidate, the same as `rank_array` under any policy, for a small part of its cost.

        Raises PlacementError for an index beyond the capacity.
        """
        nodes, masks = self._candidates(candidates, allowed)
        verdicts = np.empty(len(nodes), np.int32)
        indices = ffi.from_buffer("int32_t[]", nodes)
        into = ffi.from_buffer("int32_t[]", verdicts, require_writable=True)
        lib.sp_fit(self._nodes, indices, masks, len(nodes), self._request(request), into)
        return verdicts

    def copies_array(
        self,
        request: PodRequest,
        candidates: NDArray[np.int32] | Sequence[int],
        allowed: NDArray[np.uint16] | Sequence[int] | None = None,
    ) -> NDArray[np.int32]:
        """Return how many pods with this request each node takes, by what is left; `allowed` as in `rank`.

        For pods of several shares it is an upper bound (copies.c).
        """
        nodes, masks = self._candidates(candidates, allowed)
        copies = np.empty(len(nodes), np.int32)
        indices = ffi.from_buffer("int32_t[]", nodes)
        into = ffi.from_buffer("int32_t[]", copies, require_writable=True)
        lib.sp_copies(self._nodes, indices, masks, len(nodes), self._request(request), into)
        return copies

    def take(self, request: PodRequest, place: Place) -> None:
        """Take a pod's request from its place. Raises PlacementError, and takes nothing, if not all of it is there."""
        self._check_place(request, place)
        if not lib.sp_take(self._nodes + place.node, self._request(request), _masks(place)):
            raise PlacementError(f"{self._spec(place.node).name} has not what the pod was placed for: place it again")
        self._add_free(place, -request.milli)

    def give_back(self, request: PodRequest, place: Place) -> None:
        """Undo `take`. Raises PlacementError, and gives nothing back, if a device would have more left than it has."""
        self._check_place(request, place)
        if not lib.sp_give_back(self._nodes + place.node, self._request(request), _masks(place)):
            raise PlacementError(f"{self._spec(place.node).name} had not given that to the pod: look at it again")
        self._add_free(place, request.milli)

    def left(self, node: int) -> tuple[int, int, tuple[int, ...]]:
        """Return what is left of a node: processors in milli, memory in MiB, and the milli of each device.

        Raises PlacementError where there is no node.
        """
        self._spec(node)
        native = self._nodes[node]
        return native.cpu_milli, native.memory_mib, tuple(native.free_milli[0 : native.devices])

    def fragmentation(self, policy: NativePolicy) -> float:
        """Return how much of the time left on all nodes the policy's expected pods could not use, in milli (rule.c)."""
        return float(lib.sp_fragmentation(self._nodes, len(self._specs), policy.native.kind, policy.native.kinds))

    def rooms(self, policy: NativePolicy) -> list[int]:
        """Return how many pods of each of the policy's kinds would fit if no other kind came.

        It is 0 for kinds that take one device or none.
        """
        rooms = ffi.new("int64_t[]", max(1, policy.native.kinds))
        lib.sp_rooms(self._nodes, len(self._specs), policy.native.kind, policy.native.kinds, rooms)
        return list(rooms)

    def _add_free(self, place: Place, milli: int) -> None:
        """Add `milli` to the time that is left of all devices of the model of a place's node (`free_milli`)."""
        if milli:  # 0 for a pod without shares: its node may have no model
            self.free_milli[self._spec(place.node).model] += milli

    def _candidates(
        self, candidates: NDArray[np.int32] | Sequence[int], allowed: NDArray[np.uint16] | Sequence[int] | None
    ) -> tuple[NDArray[np.int32], Any]:
        """Return candidates and `allowed` (NULL: all) as C takes them; C does not check them. Raises PlacementError."""
        nodes = np.array(candidates, np.int32)
        if len(nodes) and not 0 <= nodes.min() <= nodes.max() < len(self._specs):
            outside = nodes[(nodes < 0) | (nodes >= len(self._specs))]
            raise PlacementError(f"node {outside[0]} is not of this snapshot: it has {len(self._specs)}")
        if allowed is None:
            return nodes, ffi.NULL
        if len(allowed) != len(nodes):
            raise PlacementError(f"{len(allowed)} sets of devices for {len(nodes)} nodes: give one for each")
        return nodes, ffi.from_buffer("uint16_t[]", np.ascontiguousarray(allowed, np.uint16))

    def _check_row(self, index: int) -> None:
        """Raise PlacementError for an index beyond the capacity."""
        if not 0 <= index < len(self._specs):
            raise PlacementError(f"node {index} is not of this snapshot: it has room for {len(self._specs)}")

    def _spec(self, index: int) -> NodeSpec:
        """Return the node at an index. Raises PlacementError if there is none."""
        self._check_row(index)
        spec = self._specs[index]
        if spec is None:
            raise PlacementError(f"no node is at {index} of this snapshot: set it first")
        return spec

    def _check_device(self, index: int, device: int) -> None:
        """Raise PlacementError where there is no node, or no such device of it."""
        spec = self._spec(index)
        if not 0 <= device < spec.devices:
            raise PlacementError(f"{spec.name} has no device {device}: it has {spec.devices}")

    def _check_policy(self, policy: NativePolicy) -> None:
        """Raise PlacementError for a policy that numbers the models in another way."""
        if policy.models.names != self.models.names:
            raise PlacementError("the policy is another snapshot's: make one for this snapshot")

    def _check_place(self, request: PodRequest, place: Place) -> None:
        """Raise PlacementError if a place has no node, another number of shares or devices, or an unknown device.

        C checks none of this.
        """
        node = self._specs[place.node] if 0 <= place.node < len(self._specs) else None
        counts = [len(set(devices)) for devices in place.devices]
        if node is None or counts != [share.devices for share in request.shares]:
            raise PlacementError(f"{place} is no place for {request}: it has another number of shares or devices")
        if not all(0 <= device < node.devices for devices in place.devices for device in devices):
            raise PlacementError(f"{place} is no place: {node.name} has {node.devices} devices")

    def _request(self, request: PodRequest) -> Any:
        """Return a request as C reads it (`struct sp_request`); it is made once and kept."""
        native = self._requests.get(request)
        if native is None:
            if len(self._requests) >= _REQUESTS_MAX:
                self._requests.clear()
            native = self._requests[request] = ffi.new("struct sp_request *")
            native.cpu_milli, native.memory_mib = request.cpu_milli, request.memory_mib
            native.models, native.shares = self.models.mask(request.models), len(request.shares)
            for slot, share in zip(native.share, request.shares, strict=False):
                slot.milli, slot.devices = share.milli, share.devices
                slot.mib, slot.memory_milli = share.mib or 0, share.part_milli
                slot.beside = -1 if share.beside is None else share.beside
                slot.limit_milli = share.milli if share.limit_milli is None else share.limit_milli
                slot.latency = share.share_class == "latency"
        return native

    def _devices(self, choice: Any, request: PodRequest) -> tuple[tuple[int, ...], ...]:
        """Return for each share of the request the indices of its devices in `choice` (`struct sp_choice`)."""
        return tuple(_bits(choice.devices[index]) for index in range(len(request.shares)))


def _clamp(value: int, most: int = DEVICE_MILLI) -> int:
    """Return the value, or the nearest one from 0 to `most`."""
    return min(max(value, 0), most)


def _bits(mask: int) -> tuple[int, ...]:
    """Return the indices of the bits that are set, ascending."""
    return tuple(index for index in range(mask.bit_length()) if mask >> index & 1)


def _masks(place: Place) -> Any:
    """Return for each share of a place a bit for each of its devices, as C reads it."""
    return ffi.new("uint16_t[]", [sum(1 << device for device in devices) for devices in place.devices] or [0])
