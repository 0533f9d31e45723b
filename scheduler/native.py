"""The cluster's nodes and what is left of them, in C: the only importer of `sharepod.scheduler._native`.

A board and its policies belong to one thread.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Any, Final

from sharepod.scheduler.ask import DEVICE_MILLI, NODE_DEVICES_MAX, SHARES_MAX, STEP_MILLI
from sharepod.scheduler.errors import PlacementError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from sharepod.scheduler.ask import NodeSpec, PodAsk
    from sharepod.scheduler.mix import Kind

_native: Any = importlib.import_module("sharepod.scheduler._native")
_ffi: Final[Any] = _native.ffi
_lib: Final[Any] = _native.lib
MODELS_MAX: Final[int] = _lib.SP_MODELS
PRICES: Final[int] = _lib.SP_PRICES
STEPS: Final[int] = _lib.SP_STEPS
_ANY_MODEL: Final = 2**MODELS_MAX - 1
_ASKS_MAX: Final = 4096
"""Pods of a few kinds come again and again; what is kept of them is bounded all the same."""


class Rule(IntEnum):
    """What a policy minimises (placement.h)."""

    BINPACK = _lib.SP_BINPACK
    CONSOLIDATE = _lib.SP_CONSOLIDATE
    SPREAD = _lib.SP_SPREAD
    FGD = _lib.SP_FGD
    WORTH = _lib.SP_WORTH


class Verdict(IntEnum):
    """Whether a node can take a pod, and why not."""

    FITS = _lib.SP_FITS
    NO_CPU = _lib.SP_NO_CPU
    NO_MEMORY = _lib.SP_NO_MEMORY
    NO_MODEL = _lib.SP_NO_MODEL
    FEW_DEVICES = _lib.SP_FEW_DEVICES
    NO_TIME = _lib.SP_NO_TIME
    NO_DEVICE_MEMORY = _lib.SP_NO_DEVICE_MEMORY


@dataclass(frozen=True, slots=True)
class Place:
    """Where a pod goes."""

    node: int
    """The index of the node."""
    devices: tuple[tuple[int, ...], ...]
    """Of each share, the indices of its devices on that node, ascending."""


@dataclass(frozen=True, slots=True)
class Judged:
    """One node for one pod."""

    node: int
    verdict: Verdict
    cost: int
    """The least is the best; comparable within one ranking only."""
    devices: tuple[tuple[int, ...], ...]


for _ours, _theirs in (
    (DEVICE_MILLI, _lib.SP_DEVICE_MILLI),
    (NODE_DEVICES_MAX, _lib.SP_NODE_DEVICES),
    (SHARES_MAX, _lib.SP_ASK_SHARES),
    (STEP_MILLI, _lib.SP_STEP_MILLI),
):
    if _ours != _theirs:
        raise ImportError("sharepod.scheduler._native was built from other sources: build it again")


class Models:
    """Names of device models and their bits."""

    def __init__(self, names: Iterable[str]) -> None:
        self.names = tuple(sorted(set(names)))
        self._index = {name: index for index, name in enumerate(self.names)}
        if len(self.names) > MODELS_MAX:
            raise PlacementError(f"{len(self.names)} models of devices, {MODELS_MAX} are the limit: split the cluster")

    def __len__(self) -> int:
        return len(self.names)

    def index(self, name: str) -> int:
        """Return the index of a model of the cluster."""
        return self._index[name]

    def mask(self, names: Iterable[str]) -> int:
        """Return the bits of models, of those that the cluster has; all bits for no name."""
        wanted = tuple(names)
        return sum(1 << self._index[name] for name in wanted if name in self._index) if wanted else _ANY_MODEL


class NativePolicy:
    """A rule with its numbers, in C; `Policy` (policy.py) makes it."""

    def __init__(
        self, rule: Rule, models: Models, kinds: Sequence[tuple[Kind, float, float]], grain_milli: float
    ) -> None:
        """Take kinds with their part and their worth in milli."""
        self.models = models
        self._kinds = _ffi.new("struct sp_kind[]", max(1, len(kinds)))
        for native, (kind, part, worth) in zip(self._kinds, kinds, strict=False):
            native.part, native.worth, native.wanted = part, worth, 0.0
            native.cpu_milli, native.milli, native.devices = kind.cpu_milli, kind.milli, kind.devices
            native.models = models.mask(kind.models)
        self._tables = _ffi.new("float[]", max(1, len(models)) * PRICES * STEPS)
        self.native = _ffi.new("struct sp_policy *")
        self.native.rule, self.native.grain_milli = int(rule), grain_milli
        self.native.kind, self.native.kinds, self.native.worth = self._kinds, len(kinds), self._tables

    def fill_worth(self, prices: Sequence[float], offers: int) -> None:
        """Compute what devices are worth that so many offers come to, at each price of a processor."""
        for index, price in enumerate(prices):
            self.native.price[index] = price
        _lib.sp_fill_worth(
            self._tables, self.native.price, max(1, len(self.models)), self._kinds, self.native.kinds, offers
        )

    def set_crowding(self, milli_per_milli: Mapping[str, float]) -> None:
        """Set what a milli of a device of each model costs beside what it is worth."""
        for name, cost in milli_per_milli.items():
            self.native.crowding[self.models.index(name)] = cost

    def set_wanted(self, index: int, milli_per_milli: float) -> None:
        """Set what a lost milli of room for a kind costs."""
        self._kinds[index].wanted = milli_per_milli


class Board:
    """What is left of each node. Changes only by `take` and `give_back`."""

    def __init__(self, nodes: Sequence[NodeSpec]) -> None:
        self.nodes = tuple(nodes)
        self.models = Models(node.model for node in nodes if node.devices)
        self._nodes = _ffi.new("struct sp_node[]", max(1, len(nodes)))
        self._all = _ffi.new("int32_t[]", [*range(len(nodes))])
        self._choices = _ffi.new("struct sp_choice[]", max(1, len(nodes)))
        self._asks: dict[PodAsk, Any] = {}
        self.free_milli = dict.fromkeys(self.models.names, 0)
        """Left of the devices of each model, in all."""
        for native, node in zip(self._nodes, nodes, strict=False):
            native.cpu_milli, native.memory_mib = node.cpu_milli, node.memory_mib
            native.devices, native.device_mib = node.devices, node.device_mib
            if not node.devices:
                continue
            native.model = self.models.index(node.model)
            for index in range(node.devices):
                native.free_milli[index], native.free_mib[index] = DEVICE_MILLI, node.device_mib
            self.free_milli[node.model] += node.devices * DEVICE_MILLI

    def best(self, ask: PodAsk, policy: NativePolicy) -> Place | None:
        """Return where a pod goes among all nodes, the first of equal ones; None: it fits nowhere."""
        self._check_policy(policy)
        _lib.sp_rank(self._nodes, self._all, _ffi.NULL, len(self.nodes), self._ask(ask), policy.native, self._choices)
        best = _lib.sp_best(self._choices, len(self.nodes))
        return Place(best, self._devices(self._choices[best], ask)) if best >= 0 else None

    def rank(
        self, ask: PodAsk, policy: NativePolicy, candidates: Sequence[int], allowed: Sequence[int] | None = None
    ) -> list[Judged]:
        """Judge nodes, in their order; `allowed` has for each the bits of the devices that the pod may have."""
        self._check_policy(policy)
        outside = [node for node in candidates if not 0 <= node < len(self.nodes)]
        if outside:
            raise PlacementError(f"node {outside[0]} is not of this board: it has {len(self.nodes)}")
        if allowed is not None and len(allowed) != len(candidates):
            raise PlacementError(f"{len(allowed)} sets of devices for {len(candidates)} nodes: give one for each")
        indices = _ffi.new("int32_t[]", list(candidates))
        masks = _ffi.NULL if allowed is None else _ffi.new("uint16_t[]", list(allowed))
        choices = _ffi.new("struct sp_choice[]", len(candidates))
        _lib.sp_rank(self._nodes, indices, masks, len(candidates), self._ask(ask), policy.native, choices)
        return [
            Judged(node, Verdict(choice.verdict), choice.cost, self._devices(choice, ask))
            for node, choice in zip(candidates, choices, strict=True)
        ]

    def take(self, ask: PodAsk, place: Place) -> None:
        """Take what a pod asks for from its place. Raises PlacementError, and takes nothing, when it is not there."""
        self._check_place(ask, place)
        if not _lib.sp_take(self._nodes + place.node, self._ask(ask), _masks(place)):
            raise PlacementError(f"{self.nodes[place.node].name} has not what the pod was placed for: place it again")
        self._count(place, -ask.milli)

    def give_back(self, ask: PodAsk, place: Place) -> None:
        """Undo `take`. Raises PlacementError, and gives nothing back, when more would be left than there is."""
        self._check_place(ask, place)
        if not _lib.sp_give_back(self._nodes + place.node, self._ask(ask), _masks(place)):
            raise PlacementError(f"{self.nodes[place.node].name} had not given that to the pod: look at it again")
        self._count(place, ask.milli)

    def left(self, node: int) -> tuple[int, int, tuple[int, ...]]:
        """Return what is left of a node: processors in milli, memory in MiB, and the milli of each device."""
        native = self._nodes[node]
        return native.cpu_milli, native.memory_mib, tuple(native.free_milli[0 : native.devices])

    def fragmentation(self, policy: NativePolicy) -> float:
        """Return what the expected pods could not use of what is left, in milli (placement.c)."""
        return float(_lib.sp_fragmentation(self._nodes, len(self.nodes), policy.native.kind, policy.native.kinds))

    def room(self, policy: NativePolicy, index: int) -> int:
        """Return how many pods of the policy's kind of that index would fit, were they alone."""
        return int(_lib.sp_room(self._nodes, len(self.nodes), policy.native.kind + index))

    def _count(self, place: Place, milli: int) -> None:
        if milli:
            self.free_milli[self.nodes[place.node].model] += milli

    def _check_policy(self, policy: NativePolicy) -> None:
        if policy.models.names != self.models.names:
            raise PlacementError("the policy is another board's: make one for this board")

    def _check_place(self, ask: PodAsk, place: Place) -> None:
        """Raise PlacementError for what C would take on trust."""
        node = self.nodes[place.node] if 0 <= place.node < len(self.nodes) else None
        counts = [len(set(devices)) for devices in place.devices]
        if node is None or counts != [share.devices for share in ask.shares]:
            raise PlacementError(f"{place} is no place for {ask}: it has another number of shares or devices")
        if not all(0 <= device < node.devices for devices in place.devices for device in devices):
            raise PlacementError(f"{place} is no place: {node.name} has {node.devices} devices")

    def _ask(self, ask: PodAsk) -> Any:
        native = self._asks.get(ask)
        if native is None:
            if len(self._asks) >= _ASKS_MAX:
                self._asks.clear()
            native = self._asks[ask] = _ffi.new("struct sp_ask *")
            native.cpu_milli, native.memory_mib = ask.cpu_milli, ask.memory_mib
            native.models, native.shares = self.models.mask(ask.models), len(ask.shares)
            for slot, share in zip(native.share, ask.shares, strict=False):
                slot.milli, slot.devices = share.milli, share.devices
                slot.mib = -1 if share.mib is None else share.mib
                slot.beside = -1 if share.beside is None else share.beside
        return native

    def _devices(self, choice: Any, ask: PodAsk) -> tuple[tuple[int, ...], ...]:
        return tuple(_bits(choice.devices[index]) for index in range(len(ask.shares)))


def _bits(mask: int) -> tuple[int, ...]:
    return tuple(index for index in range(mask.bit_length()) if mask >> index & 1)


def _masks(place: Place) -> Any:
    return _ffi.new("uint16_t[]", [sum(1 << device for device in devices) for devices in place.devices] or [0])
