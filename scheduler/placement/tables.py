"""Builds in C what `placement.c` judges by: a policy's rule, its numbers and its tables of worth.

No other module imports `sharepod.scheduler._native`.
"""

from __future__ import annotations

import importlib
from contextlib import contextmanager
from enum import IntEnum
from typing import TYPE_CHECKING, Any, Final

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from sharepod.scheduler.placement.mix import Kind
    from sharepod.scheduler.placement.models import Models

_native: Any = importlib.import_module("sharepod.scheduler._native")
ffi: Final[Any] = _native.ffi
lib: Final[Any] = _native.lib
PRICES: Final[int] = lib.SP_PRICES
STEPS: Final[int] = lib.SP_STEPS


class Rule(IntEnum):
    """What a policy minimises (placement.h)."""

    BINPACK = lib.SP_BINPACK
    CONSOLIDATE = lib.SP_CONSOLIDATE
    SPREAD = lib.SP_SPREAD
    FGD = lib.SP_FGD
    WORTH = lib.SP_WORTH


def worth_tables(
    models: Models, kinds: Sequence[tuple[Kind, float, float]], prices: Sequence[float], offers: int
) -> NDArray[np.float32]:
    """Return the worth of a device, in milli, by model, step of what is left (10 milli each), and price of processors.

    It is what the device holds when `offers` pods of these kinds were offered to it one by one (policy.py). `prices`:
    PRICES of them. Kinds are given as to `NativePolicy`. This takes long, but C runs without the GIL, so that other
    threads go on.
    """
    tables = np.empty((max(1, len(models)), STEPS, PRICES), np.float32)
    into = ffi.from_buffer("float[]", tables, require_writable=True)
    lib.sp_fill_worth(into, ffi.new("double[]", list(prices)), len(tables), _kinds(models, kinds), len(kinds), offers)
    return tables


def _kinds(models: Models, kinds: Sequence[tuple[Kind, float, float]]) -> Any:
    """Return kinds, given as to `NativePolicy`, as C reads them: an array of `struct sp_kind`."""
    found = ffi.new("struct sp_kind[]", max(1, len(kinds)))
    for native, (kind, part, worth) in zip(found, kinds, strict=False):
        native.part, native.worth, native.wanted = part, worth, 0.0
        native.cpu_milli, native.milli, native.devices = kind.cpu_milli, kind.milli, kind.devices
        native.models = models.mask(kind.models)
    return found


class NativePolicy:
    """A rule with its numbers, in C; `Policy` (policy.py) makes it."""

    def __init__(
        self,
        rule: Rule,
        models: Models,
        kinds: Sequence[tuple[Kind, float, float]],
        grain_milli: float,
        weights: Mapping[str, float],
    ) -> None:
        """Make `struct sp_policy`. `kinds`: each with its part of the mix and its worth in milli.

        `grain_milli`: the step in which losses are counted. `weights`: the fields of `struct sp_weights` by name.
        Devices are worth nothing until `set_worth`.
        """
        self.models = models
        self._kinds = _kinds(models, kinds)
        rows = max(1, len(kinds) * len(models))
        self._wide, self._widths = ffi.new("struct sp_wide[]", rows), ffi.new("struct sp_width[]", rows)
        self._tables = np.zeros((max(1, len(models)), STEPS, PRICES), np.float32)
        self.native = ffi.new("struct sp_policy *")
        self.native.rule, self.native.grain_milli = int(rule), grain_milli
        self.native.kind, self.native.kinds = self._kinds, len(kinds)
        self.set_worth([0.0] * PRICES, self._tables)
        for name, weight in weights.items():
            setattr(self.native.weights, name, weight)

    def set_worth(self, prices: Sequence[float], tables: NDArray[np.float32]) -> None:
        """Set the `prices` of a processor, and what devices are worth at each: what `worth_tables` returned."""
        self.native.price = list(prices)
        self._tables = tables  # C reads it as long as this policy lives
        self.native.worth = ffi.from_buffer("float[]", tables)

    @contextmanager
    def unweighted(self) -> Iterator[None]:
        """Judge by room only, without measured use, promises and links, inside the `with` block."""
        kept, nothing = ffi.new("struct sp_weights *", self.native.weights), ffi.new("struct sp_weights *")
        self.native.weights = nothing[0]
        try:
            yield
        finally:
            self.native.weights = kept[0]

    def set_crowding(self, milli_per_milli: Mapping[str, float]) -> None:
        """Set by model what a taken milli of its devices costs on top of the worth that is lost, in milli."""
        for name, cost in milli_per_milli.items():
            self.native.crowding[self.models.index(name)] = cost

    def set_wanted(self, milli_per_milli: Mapping[int, float]) -> None:
        """Set by a kind's index what a lost milli of room for it costs, in milli; others stay as they were.

        Then C gathers these kinds by model (expected_value.c).
        """
        for index, wanted in milli_per_milli.items():
            self._kinds[index].wanted = wanted
        lib.sp_gather_wide(self.native, len(self.models), self._wide, self._widths)
