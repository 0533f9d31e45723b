"""Reads a pod's gang from its annotations. A gang is a set of pods that start together or not at all. Pure values.

A pod without a gang is treated like a gang of size 1 (job.py): the code that releases pods knows only jobs.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from sharepod.deviceplugin.core.terms import GANG_NAME, PREFIX, shown
from sharepod.scheduler.controller.duration import seconds
from sharepod.scheduler.errors import PlacementError

if TYPE_CHECKING:
    from collections.abc import Mapping

GANG: Final = PREFIX + "gang"
SIZE: Final = PREFIX + "gang-size"
LEAST: Final = PREFIX + "gang-min"
TIMEOUT: Final = PREFIX + "gang-timeout"
RESTART: Final = PREFIX + "gang-restart"
SIZE_MAX: Final = 4096
TIMEOUT_S: Final = 600
RESTARTS: Final = ("never", "whole")
_NUMBER: Final = re.compile(r"[0-9]{1,9}")


@dataclass(frozen=True, slots=True)
class Gang:
    """A pod's gang, as that pod describes it. All members have to say the same."""

    name: str
    """Unique within the namespace."""
    size: int
    """1..SIZE_MAX: how many members run when there is room for all."""
    least: int
    """1..size: how many members start together; below `size` the gang is elastic."""
    timeout_s: int = TIMEOUT_S
    """How long released members may take until all of them run."""
    restart: str = "never"
    """`whole`: when a member fails, all members start anew."""


def read_gang(annotations: Mapping[str, str]) -> Gang | None:
    """Return the gang of a pod with these annotations; None: it belongs to none.

    Raises PlacementError, with a text for the user, for annotations that are impossible or incomplete.
    """
    given = {key: annotations[key] for key in (SIZE, LEAST, TIMEOUT, RESTART) if key in annotations}
    name = annotations.get(GANG)
    if name is None:
        if given:
            raise PlacementError(f"{next(iter(given))} is given without {GANG}: name the gang")
        return None
    if not GANG_NAME.fullmatch(name):
        raise PlacementError(f"{GANG} is {shown(name)}: give one word of letters, digits, -, _ and ., at most 63")
    if SIZE not in given:
        raise PlacementError(f"{GANG} is given without {SIZE}: say how many pods the gang has")
    size = _number(given, SIZE, SIZE_MAX)
    least = _number(given, LEAST, SIZE_MAX) if LEAST in given else size
    if least > size:
        raise PlacementError(f"{LEAST} is {least}, {SIZE} is {size}: the least is at most the size")
    timeout = seconds(given[TIMEOUT]) if TIMEOUT in given else TIMEOUT_S
    if timeout is None:
        raise PlacementError(f"{TIMEOUT} is {shown(given[TIMEOUT])}: give a time such as 90s, 10m or 2h")
    restart = given.get(RESTART, RESTARTS[0])
    if restart not in RESTARTS:
        raise PlacementError(f"{RESTART} is {shown(restart)}: give {' or '.join(RESTARTS)}")
    return Gang(name, size, least, timeout, restart)


def _number(given: Mapping[str, str], key: str, most: int) -> int:
    """Return the number in the annotation `key`, from 1 to `most`. Raises PlacementError if it is no such number."""
    text = given[key]
    if not _NUMBER.fullmatch(text) or not 1 <= int(text) <= most:
        raise PlacementError(f"{key} is {shown(text)}: give a whole number from 1 to {most}")
    return int(text)
