"""The policies by name: which of the nodes that have room is best. One row, one rule in C.

`worth` keeps what is left worth the most to the pods that are expected. A device is worth what it would hold if pods
of the expected mix were offered to it, one by one, and each taken when that is worth more than what its room is worth
after it (a stochastic knapsack); a share counts with its size in effect (`sizes.py`), less the price of its
processors. Of the prices that one counts which makes the whole node, its processors and its devices, worth least
(`worth.c`). So a share goes where it fills a hole that little else fills, and pods that need many processors go where
those are not what runs out. To that come two prices that are the cluster's, not the node's, and that grow with a
power of how scarce a thing is: room for pods that take several devices, and devices of models that some insist on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from sharepod.scheduler.ask import DEVICE_MILLI
from sharepod.scheduler.errors import PlacementError
from sharepod.scheduler.native import PRICES, NativePolicy, Rule
from sharepod.scheduler.sizes import effective_sizes

if TYPE_CHECKING:
    from sharepod.scheduler.mix import Mix
    from sharepod.scheduler.native import Board

OFFERS: Final = 60
"""Pods that come to a device before it is judged. Fewer, and holes for rare shares are kept too little; many more, and
every hole seems to be filled in the end."""
GRAIN_MILLI: Final = 20.0
"""Losses are counted in these, and of equal ones the earlier node gets the pod: nodes are filled one after another,
with what goes together, and none is preferred for a little."""
CROWDING_WEIGHT: Final = 1.0
CROWDING_POWER: Final = 4
WIDE_WEIGHT: Final = 0.1
DEAREST: Final = 7.0
"""The highest price of a processor, in devices for as many processors as the cluster has for one."""
TYPICAL: Final = 0.95
"""FGD looks at the most frequent kinds that make up so much of the mix, those without devices among them, as its
authors' simulator does: with all kinds it is off the published figures where there are many (gpuspec25, +0.8 pp)."""
PRICE_STEP: Final = 0.8
_ROOM_LEAST: Final = DEVICE_MILLI
"""Nothing is infinitely scarce."""


ROWS: Final = {
    "worth": Rule.WORTH,
    "fgd": Rule.FGD,
    "binpack": Rule.BINPACK,
    "consolidate": Rule.CONSOLIDATE,
    "spread": Rule.SPREAD,
}
DEFAULT: Final = "worth"


class Policy:
    """One of ROWS for one board and one mix."""

    def __init__(self, name: str, board: Board, mix: Mix) -> None:
        """Raises PlacementError for a name that is not there."""
        if name not in ROWS:
            raise PlacementError(f"policy {name!r} is not known: choose one of {', '.join(ROWS)}")
        self.name = name
        self._board = board
        rule = ROWS[name]
        counted = mix.with_devices() if rule is Rule.WORTH else mix.most_frequent(TYPICAL)
        worth = effective_sizes(counted.demand()) if rule is Rule.WORTH else {}
        self._kinds = [kind for kind, _ in counted.parts]
        self._loads = [part * kind.milli * kind.devices for kind, part in counted.parts]
        self.native = NativePolicy(
            rule,
            board.models,
            [(kind, part, DEVICE_MILLI * worth.get(kind.milli, 0.0)) for kind, part in counted.parts],
            GRAIN_MILLI,
        )
        if rule is Rule.WORTH:
            self.native.fill_worth(_prices(board), OFFERS)
        self.refresh()

    def refresh(self) -> None:
        """Look at what is scarce in the cluster: what is judged then depends on the board and the mix alone."""
        if ROWS[self.name] is not Rule.WORTH:
            return
        self.native.set_crowding(self._crowding())
        for index, scarcity in self._scarcities().items():
            self.native.set_wanted(index, WIDE_WEIGHT * scarcity)

    def _crowding(self) -> dict[str, float]:
        """Return for each model what a milli of it costs those who insist on it: the more, the surer they need it.

        Their load comes evenly to all that is left of the models that each takes; where it is as much as that, whoever
        could go elsewhere takes the place of one who cannot.
        """
        free = self._board.free_milli
        load_on = dict.fromkeys(free, 0.0)
        total = sum(self._loads)
        left = sum(free.values())
        for kind, load in zip(self._kinds, self._loads, strict=True):
            models = [model for model in kind.models if model in free]
            room = sum(free[model] for model in models) + _ROOM_LEAST
            for model in models if len(models) < len(free) else ():
                load_on[model] += load / total * left / room
        return {model: CROWDING_WEIGHT * min(1.0, load) ** CROWDING_POWER for model, load in load_on.items()}

    def _scarcities(self) -> dict[int, float]:
        """Return for each kind that takes several devices, by index, how scarce room for it is.

        The square of the load of all that is as wide, on the room for it, against the load of all on all that is left,
        divided among those kinds by their load.
        """
        total = sum(self._loads)
        left = sum(self._board.free_milli.values())
        scarcities = {}
        for index, kind in enumerate(self._kinds):
            if kind.devices < 2:
                continue
            as_wide = sum(
                load for other, load in zip(self._kinds, self._loads, strict=True) if other.devices >= kind.devices
            )
            room = self._board.room(self.native, index) * kind.devices * kind.milli + _ROOM_LEAST
            scarcities[index] = (as_wide / total * left / room) ** 2 * self._loads[index] / as_wide
        return scarcities


def _prices(board: Board) -> list[float]:
    """Return prices of a milli of a processor in milli of a device: none, then up to DEAREST, in equal ratios."""
    devices = sum(node.devices for node in board.nodes) * DEVICE_MILLI
    processors = sum(node.cpu_milli for node in board.nodes if node.devices)
    even = devices / processors if processors else 0.0
    return [0.0, *(even * DEAREST * PRICE_STEP ** (PRICES - 2 - step) for step in range(PRICES - 1))]
