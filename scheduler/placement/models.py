"""Maps the names of device models to the bits that C uses for them. Pure values."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from sharepod.scheduler.errors import PlacementError

if TYPE_CHECKING:
    from collections.abc import Iterable

MODELS_MAX: Final = 32
_ANY_MODEL: Final = 2**MODELS_MAX - 1


class Models:
    """Names of device models and their bits."""

    def __init__(self, names: Iterable[str]) -> None:
        """Number the models in the order of their names. Raises PlacementError for more than MODELS_MAX."""
        self.names = tuple(sorted(set(names)))
        self._index = {name: index for index, name in enumerate(self.names)}
        if len(self.names) > MODELS_MAX:
            raise PlacementError(f"{len(self.names)} models of devices, {MODELS_MAX} are the limit: split the cluster")

    def __len__(self) -> int:
        return len(self.names)

    def index(self, name: str) -> int:
        """Return the index of a model, which is its bit's number. Raises KeyError for one that the cluster has not."""
        return self._index[name]

    def mask(self, names: Iterable[str]) -> int:
        """Return the bits of those models that the cluster has; all bits if no name is given: any will do."""
        wanted = tuple(names)
        return sum(1 << self._index[name] for name in wanted if name in self._index) if wanted else _ANY_MODEL
