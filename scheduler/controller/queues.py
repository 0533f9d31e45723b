"""Reads the rules of queues: which queue goes first, how much it may hold, how long its jobs may wait and run. Pure.

A queue is a namespace. Its rules are in a ConfigMap, key `queues.yaml`; a queue that is not named there has the rules
of `default`. A text that cannot be read changes nothing: the rules stay as they were.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import yaml

from sharepod.deviceplugin.core.terms import shown
from sharepod.scheduler.controller.duration import seconds
from sharepod.scheduler.errors import PlacementError
from sharepod.scheduler.placement.request import DEVICE_MILLI

if TYPE_CHECKING:
    from collections.abc import Mapping

KEY: Final = "queues.yaml"
DEFAULT: Final = "default"
"""The entry for queues that have none of their own; a namespace of this name has these rules, too."""
OVERRUNS: Final = ("yield", "end")
_TEXT_MAX: Final = 2**20
_WEIGHT_MAX: Final = 1000.0
_DEVICES_MAX: Final = 1_000_000


@dataclass(frozen=True, slots=True)
class Queue:
    """The rules of one queue."""

    weight: float = 1.0
    """How much of the cluster it is due, relative to other queues that wait; above 0, at most 1000."""
    cap_milli: int | None = None
    """The most that its pods may be promised of all devices together, in thousandths of a device; None: no cap."""
    longest_wait_s: float = 86_400.0
    """A job that has waited for longer goes before all others, whatever their priority."""
    longest_run_s: float | None = None
    """A job that has run for longer yields to any job that waits; None: it may run for ever."""
    overrun: str = "yield"
    """`end`: a job that has run for longer than `longest_run_s` is evicted."""
    idle_s: float | None = None
    """A share that has used nothing for this time yields to any job that waits; None: it keeps what it holds."""


@dataclass(frozen=True, slots=True)
class Queues:
    """The rules of all queues."""

    default: Queue = Queue()
    by_name: Mapping[str, Queue] = field(default_factory=dict)

    def of(self, name: str) -> Queue:
        """Return the rules of a queue."""
        return self.by_name.get(name, self.default)


def read_queues(data: Mapping[str, object]) -> Queues:
    """Return the rules in a ConfigMap's data; without any text all queues have the built-in ones.

    Raises PlacementError, with a text for the operator, if any rule cannot be read.
    """
    text = data.get(KEY, "")
    if not isinstance(text, str) or len(text) > _TEXT_MAX:
        raise PlacementError(f"{KEY} is no text of at most {_TEXT_MAX} characters")
    try:
        found = yaml.safe_load(text)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f", line {mark.line + 1}" if mark else ""
        raise PlacementError(f"{KEY}{where}: no YAML: {getattr(error, 'problem', None) or 'see its syntax'}") from None
    if found is None:
        return Queues()
    if not isinstance(found, dict):
        raise PlacementError(f"{KEY}: give a queue's name and its rules: `team: {{weight: 2}}`")
    default = _queue(DEFAULT, found.get(DEFAULT), Queue())
    others = {str(name): rules for name, rules in found.items() if name != DEFAULT}
    return Queues(default, {name: _queue(name, rules, default) for name, rules in others.items()})


def _queue(name: str, rules: object, default: Queue) -> Queue:
    """Return the rules of a queue, made of its entry in the YAML, `rules`. Missing rules are taken from `default`.

    Raises PlacementError for an unknown rule and for an impossible value.
    """
    if rules is None:
        return default
    if not isinstance(rules, dict):
        raise PlacementError(f"{KEY}: {shown(name)}: give rules: {', '.join(_RULES)}")
    given: dict[str, Any] = {}
    for key, value in rules.items():
        if key not in _RULES:
            raise PlacementError(f"{KEY}: {shown(name)}: {shown(str(key))} is no rule: give {', '.join(_RULES)}")
        field_name, read = _RULES[key]
        try:
            given[field_name] = read(value)
        except ValueError as error:
            raise PlacementError(f"{KEY}: {shown(name)}: {key} is {shown(str(value))}: {error}") from None
    values = {one: getattr(default, one) for one in Queue.__slots__}
    return Queue(**(values | given))


def _weight(value: object) -> float:
    """Return the weight in a value of the YAML. Raises ValueError, with what to give."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= _WEIGHT_MAX:
        raise ValueError("give a number above 0, at most 1000")
    return float(value)


def _devices(value: object) -> int | None:
    """Return in milli the number of devices in a value of the YAML; None for "none": there is no cap.

    Raises ValueError, with what to give.
    """
    if value == "none":
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= _DEVICES_MAX:
        raise ValueError(f"give a number of devices from 0 to {_DEVICES_MAX}, such as 12.5, or none")
    return math.floor(value * DEVICE_MILLI)


def _time(value: object) -> float:
    """Return a time in seconds. Raises ValueError, with what to give."""
    found = seconds(str(value))
    if found is None:
        raise ValueError("give a time such as 90s, 10m, 2h or 7d")
    return float(found)


def _time_or_none(value: object) -> float | None:
    """Return a time in seconds; None for "none": there is no limit. Raises ValueError, with what to give."""
    return None if value == "none" else _time(value)


def _overrun(value: object) -> str:
    """Return what happens to jobs that run for too long. Raises ValueError, with what to give."""
    if value not in OVERRUNS:
        raise ValueError(f"give {' or '.join(OVERRUNS)}")
    return str(value)


_RULES: Final[dict[str, Any]] = {
    "weight": ("weight", _weight),
    "cap": ("cap_milli", _devices),
    "longest-wait": ("longest_wait_s", _time),
    "longest-run": ("longest_run_s", _time_or_none),
    "overrun": ("overrun", _overrun),
    "idle": ("idle_s", _time_or_none),
}
"""By the name of a rule in the YAML: its field of Queue, and the function that reads its value."""
