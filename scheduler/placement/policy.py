"""Defines the policies by name: which of the nodes with room is best. Each row names one rule in C.

`worth` leaves the nodes as valuable as possible to the expected pods. The worth of a device is what it would hold if
pods of the expected mix were offered to it one by one. A pod is taken if it is worth more than its room is worth to the
pods after it (a stochastic knapsack). A share counts with its size in effect (`cutting_stock.py`), less the price of
its processors. Several prices of a processor are tried; the price counts that makes the whole node, its processors and
its devices, worth least (`expected_value.c`). So a share goes where it fills a hole that little else fills, and a pod
that needs many processors goes where processors are not what runs out. Two more prices belong to the cluster, not to a
node: for room for pods that take several devices, and for devices of models that some pods insist on. They grow with a
power of the scarcity of both.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Self

from sharepod.scheduler.errors import PlacementError
from sharepod.scheduler.placement.cutting_stock import effective_sizes
from sharepod.scheduler.placement.models import Models
from sharepod.scheduler.placement.request import DEVICE_MILLI
from sharepod.scheduler.placement.tables import PRICES, NativePolicy, Rule, worth_tables

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from sharepod.scheduler.placement.mix import Kind, Mix
    from sharepod.scheduler.placement.native import Snapshot

OFFERS: Final = 60
"""Pods that are offered to a device to compute its worth. With fewer, holes for rare shares are kept too little; with
many more, every hole seems to be filled in the end."""
GRAIN_MILLI: Final = 20.0
"""The steps in which losses are counted. Of nodes with equal losses the earlier one gets the pod. So nodes are filled
one after another with pods that go together, and no node is preferred for a small difference."""
CROWDING_WEIGHT: Final = 1.0
"""What a taken milli of a model costs at a load of 1 (`_crowding`), in milli; below that the power makes it less."""
CROWDING_POWER: Final = 4
WIDE_WEIGHT: Final = 0.1
"""What a lost milli of room for a kind on several devices costs at a scarcity of 1 (`_scarcities`), in milli."""
DEAREST: Final = 7.0
"""The highest price of processors: in devices, for as many processors as the cluster has for each device."""
TYPICAL: Final = 0.95
"""The part of the mix that FGD looks at: its most frequent kinds, those without devices among them, as its authors'
simulator does. With all kinds it misses the published figures where there are many kinds (gpuspec25, +0.8 pp)."""
PRICE_STEP: Final = 0.8
"""The ratio of a price of processors to the next higher one (`_prices`)."""
_ROOM_LEAST: Final = DEVICE_MILLI
"""The least room that is counted, so that nothing is infinitely scarce."""

WEIGHTS: Final = {
    "busy": 0.5,
    "waited_latency": 0.5,
    "waited": 0.25,
    "latency": 0.5,
    "promised": 0.01,
    "promised_most": 2000.0,
    "apart": 100.0,
    "numa": 30.0,
}
"""What a place costs for measured use, promises and links, in milli of a device (`struct sp_weights`).

A share that breaks an empty device loses some 100 to 300 milli of worth. It is worth as much to keep a latency share
off a device that works half of its time or more, or that others wait for already: `busy`, `waited_latency`. Other
classes wait without harm, so for them it is half: `waited`. A share that may use all of a device, beside latency shares
that hold half of it, costs as much: `latency`. Limits are meant to be over-promised, so they decide among equals only,
with a grain at most: `promised`. A job on several devices without links gets about a tenth less done on each, and less
still over two memory nodes: `apart`, `numa`."""

ROWS: Final = {
    "worth": Rule.WORTH,
    "fgd": Rule.FGD,
    "binpack": Rule.BINPACK,
    "consolidate": Rule.CONSOLIDATE,
    "spread": Rule.SPREAD,
}
DEFAULT: Final = "worth"


@dataclass(frozen=True, slots=True)
class Outline:
    """The part of a snapshot on which a policy's numbers depend: a value, so that another thread can compute them."""

    models: tuple[str, ...]
    devices: int
    cpu_milli: int
    """Processors of the nodes that have devices."""

    @classmethod
    def of(cls, snapshot: Snapshot) -> Self:
        """Return the outline of the nodes in the snapshot that have devices."""
        nodes = [node for node in snapshot.nodes if node.devices]
        return cls(snapshot.models.names, sum(node.devices for node in nodes), sum(node.cpu_milli for node in nodes))


@dataclass(frozen=True, slots=True, eq=False)
class Numbers:
    """The numbers of a policy that take long to compute: pure values, made of pure values in any thread or process."""

    name: str
    models: tuple[str, ...]
    kinds: tuple[tuple[Kind, float, float], ...]
    """Each kind with its part of the mix and its worth in milli: its size in effect; 0 where the rule needs none."""
    prices: tuple[float, ...]
    """The prices of a processor, as `_prices` returns them; empty for a rule that needs none."""
    tables: NDArray[np.float32] | None
    """What `worth_tables` returns; None for a rule that needs none."""

    @classmethod
    def of(cls, name: str, outline: Outline, mix: Mix) -> Self:
        """Compute the numbers of the policy `name` of ROWS. Raises PlacementError for an unknown name.

        It takes up to half a second for the rule WORTH. It needs no snapshot, so it may run in another thread.
        """
        if name not in ROWS:
            raise PlacementError(f"policy {name!r} is not known: choose one of {', '.join(ROWS)}")
        if ROWS[name] is not Rule.WORTH:
            kinds = tuple((kind, part, 0.0) for kind, part in mix.most_frequent(TYPICAL).parts)
            return cls(name, outline.models, kinds, (), None)
        counted = mix.with_devices()
        sizes = effective_sizes(counted.demand())
        kinds = tuple((kind, part, DEVICE_MILLI * sizes.get(kind.milli, 0.0)) for kind, part in counted.parts)
        prices = _prices(outline)
        return cls(name, outline.models, kinds, prices, worth_tables(Models(outline.models), kinds, prices, OFFERS))


class Policy:
    """A policy of ROWS for one snapshot and one mix."""

    def __init__(self, name: str, snapshot: Snapshot, mix: Mix) -> None:
        """Compute the numbers of the policy `name`. Raises PlacementError for an unknown name."""
        self._adopt(Numbers.of(name, Outline.of(snapshot), mix), snapshot)

    @classmethod
    def made_of(cls, numbers: Numbers, snapshot: Snapshot) -> Self:
        """Return the policy with numbers that were computed elsewhere. Raises PlacementError for another snapshot's."""
        policy = cls.__new__(cls)
        policy._adopt(numbers, snapshot)  # noqa: SLF001 - its own
        return policy

    def _adopt(self, numbers: Numbers, snapshot: Snapshot) -> None:
        """Take the numbers for a snapshot and hand them to C. Raises PlacementError for another snapshot's."""
        if numbers.models != snapshot.models.names:
            raise PlacementError("the numbers are another snapshot's: make them of this snapshot's outline")
        self.name = numbers.name
        self._snapshot = snapshot
        self._kinds = [kind for kind, _, _ in numbers.kinds]
        self._loads = [part * kind.milli * kind.devices for kind, part, _ in numbers.kinds]
        """Of each kind: its part of the mix times the device time that it asks for."""
        self._as_wide = [
            sum(load for other, load in zip(self._kinds, self._loads, strict=True) if other.devices >= devices)
            for devices in range(1 + max((kind.devices for kind in self._kinds), default=0))
        ]
        """By a number of devices: the load of all kinds that take at least that many."""
        self.native = NativePolicy(ROWS[self.name], snapshot.models, numbers.kinds, GRAIN_MILLI, WEIGHTS)
        if numbers.tables is not None:
            self.native.set_worth(numbers.prices, numbers.tables)
        self.refresh()

    def refresh(self) -> None:
        """Compute anew what is scarce in the cluster, by what is left of it now, and give it to C.

        To be called when the snapshot has changed. Only the rule WORTH needs it; under others nothing happens.
        """
        if ROWS[self.name] is not Rule.WORTH:
            return
        self.native.set_crowding(self._crowding())
        self.native.set_wanted({index: WIDE_WEIGHT * scarcity for index, scarcity in self._scarcities().items()})

    def _crowding(self) -> dict[str, float]:
        """Return for each model what a taken milli costs the pods that insist on it, 0 to CROWDING_WEIGHT milli.

        Suppose that pods of the mix come until they have asked for all that is left in the cluster. If a kind insists
        on models, the load on each of these models grows by: what the kind has asked for / what is left of all of
        them. At a load of 1 the pods that insist on a model need all of it, so that every other pod there takes a place
        from them. Below 1 the cost falls steeply (CROWDING_POWER).
        """
        free, devices_of = self._snapshot.free_milli, self._snapshot.devices
        load_on = dict.fromkeys(free, 0.0)
        total = sum(self._loads)
        left = sum(free.values())
        for kind, load in zip(self._kinds, self._loads, strict=True):
            models = [model for model in kind.models if model in free]
            room = sum(free[model] for model in models) + _ROOM_LEAST
            # A kind insists on its models only where there are devices of others.
            insists = any(devices and model not in models for model, devices in devices_of.items())
            for model in models if insists else ():
                load_on[model] += load / total * left / room  # what the kind has asked for / what is left for it
        return {model: CROWDING_WEIGHT * min(1.0, load) ** CROWDING_POWER for model, load in load_on.items()}

    def _scarcities(self) -> dict[int, float]:
        """Return for each kind that takes several devices, by index, how scarce room for it is.

        A kind is as wide as the number of devices that it takes. Two quotients are compared. The first is the load of
        all kinds that are at least as wide, divided by the room for this kind. The second is the load of all kinds,
        divided by all that is left. The scarcity is (first / second)², times this kind's part of the load of the kinds
        that are at least as wide.
        """
        total = sum(self._loads)
        left = sum(self._snapshot.free_milli.values())
        rooms = self._snapshot.rooms(self.native)
        scarcities = {}
        for index, kind in enumerate(self._kinds):
            if kind.devices < 2:
                continue
            as_wide = self._as_wide[kind.devices]
            room = rooms[index] * kind.devices * kind.milli + _ROOM_LEAST
            scarcities[index] = (as_wide / total * left / room) ** 2 * self._loads[index] / as_wide
        return scarcities


def _prices(outline: Outline) -> tuple[float, ...]:
    """Return the PRICES prices of a milli of a processor, in milli of a device, the lowest first.

    At the even price all processors of the cluster would cost as much as all its devices. The first price is 0, the
    last one DEAREST times the even price; from the second one on the ratios are equal.
    """
    even = outline.devices * DEVICE_MILLI / outline.cpu_milli if outline.cpu_milli else 0.0
    return (0.0, *(even * DEAREST * PRICE_STEP ** (PRICES - 2 - step) for step in range(PRICES - 1)))
