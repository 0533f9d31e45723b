"""Reads lists of nodes and pods: CSV as openb has it, plain or gzip'ed. One impossible line refuses the whole file.

Nodes: `sn, cpu_milli, memory_mib, gpu, model`. Pods: `name, cpu_milli, memory_mib, num_gpu, gpu_milli` and, if there,
`gpu_spec` (models, `|` between them; empty: any) and `gpu_limit_milli` (empty: no more than `gpu_milli`). Pods that
come and go: also `creation_time, deletion_time` in seconds (no deletion: it stays) and, if there, `user`, `priority`,
`qos`, `gang_size`, `gang_min` (a gang's members are one line). Further columns are ignored.
"""

from __future__ import annotations

import csv
import gzip
import io
import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from sharepod.scheduler.errors import PlacementError, TraceError
from sharepod.scheduler.placement.request import NodeSpec, PodRequest, ShareRequest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path
    from typing import TypeVar

    Item = TypeVar("Item")

_NODE_COLUMNS: Final = ("sn", "cpu_milli", "memory_mib", "gpu", "model")
_POD_COLUMNS: Final = ("name", "cpu_milli", "memory_mib", "num_gpu", "gpu_milli")
_TIMED_COLUMNS: Final = (*_POD_COLUMNS, "creation_time", "deletion_time")
_PRIORITIES: Final = {"LS": 1000, "Guaranteed": 100, "Burstable": 100, "BE": 0}
"""By openb's class of service, for pods without a priority. LS: latency-sensitive, BE: best effort."""
_PRIORITY_MAX: Final = 2**31 - 1
_GANG_MAX: Final = 4096
_GZIP: Final = b"\x1f\x8b"
_DIGITS_MAX: Final = 12


@dataclass(frozen=True, slots=True)
class NamedPod:
    """A pod of a list."""

    name: str
    request: PodRequest


@dataclass(frozen=True, slots=True)
class TimedPod:
    """A pod of a list, or a gang of pods that are alike, that comes and goes."""

    pod: NamedPod
    user: str
    """Its queue; empty: none in particular."""
    priority: int
    came_s: float
    ended_s: float | None
    """None: it stays."""
    size: int
    """How many such pods the gang has; 1: it is a pod by itself."""
    least: int
    """How many of them start together."""


def load(path: Path) -> str:
    """Return the text of a file, plain or gzip'ed. Raises TraceError."""
    try:
        content = path.read_bytes()  # once: it may be a pipe
        return (gzip.decompress(content) if content.startswith(_GZIP) else content).decode("utf-8-sig")
    except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
        raise _unreadable(path, error) from None


def read_nodes(path: Path, text: str | None = None) -> list[NodeSpec]:
    """Return the nodes of a CSV file. `text`: its content; None: it is still to be read. Raises TraceError."""
    nodes = list(_read(path, text, _NODE_COLUMNS, _node))
    check_names(path, [node.name for node in nodes])
    return nodes


def check_names(path: Path, names: Sequence[str]) -> None:
    """Raise TraceError if two nodes of the file at `path` have the same name."""
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise TraceError(f"{path}: node {name} is there twice: give each its own name")
        seen.add(name)


def read_pods(path: Path, text: str | None = None) -> list[NamedPod]:
    """Return the pods of a CSV file. `text`: its content; None: it is still to be read. Raises TraceError."""
    return list(_read(path, text, _POD_COLUMNS, _pod))


def read_timed_pods(path: Path, text: str | None = None) -> list[TimedPod]:
    """Return the pods of a CSV file with their times. `text`: its content; None: it is still to be read.

    Raises TraceError.
    """
    return list(_read(path, text, _TIMED_COLUMNS, _timed_pod))


def _node(row: Mapping[str, str]) -> NodeSpec:
    """Return the node of a line (`row`: text by column). Raises PlacementError for an impossible value."""
    return NodeSpec(
        row["sn"], _number(row, "cpu_milli"), _number(row, "memory_mib"), _number(row, "gpu"), row["model"].strip()
    )


def _pod(row: Mapping[str, str]) -> NamedPod:
    """Return the pod of a line (`row`: text by column). Raises PlacementError for an impossible value."""
    devices, milli = _number(row, "num_gpu"), _number(row, "gpu_milli")
    limit = _number(row, "gpu_limit_milli") if (row.get("gpu_limit_milli") or "").strip() else None
    # The lists count no memory of devices.
    shares = (ShareRequest(milli, devices, mib=0, limit_milli=limit),) if devices else ()
    models = frozenset(name.strip() for name in (row.get("gpu_spec") or "").split("|") if name.strip())
    return NamedPod(row["name"], PodRequest(_number(row, "cpu_milli"), _number(row, "memory_mib"), shares, models))


def _timed_pod(row: Mapping[str, str]) -> TimedPod:
    """Return the pod, or the gang, of a line (`row`: text by column), with its times. Raises PlacementError.

    Without a priority, `qos` decides it. Without a user, `qos` is the name of the queue.
    """
    came_s = _number(row, "creation_time")
    ended_s = _number(row, "deletion_time") if row["deletion_time"].strip() else None
    if ended_s is not None and ended_s < came_s:
        raise PlacementError(f"deletion_time {ended_s} is before creation_time {came_s}: were the columns mixed up?")
    qos = (row.get("qos") or "").strip()
    priority = _number(row, "priority") if (row.get("priority") or "").strip() else _PRIORITIES.get(qos, 0)
    if priority > _PRIORITY_MAX:
        raise PlacementError(f"priority is {priority}: at most {_PRIORITY_MAX} is possible")
    size = _number(row, "gang_size") if (row.get("gang_size") or "").strip() else 1
    least = _number(row, "gang_min") if (row.get("gang_min") or "").strip() else size
    if not 1 <= least <= size <= _GANG_MAX:
        raise PlacementError(
            f"gang_size {size}, gang_min {least}: give 1 to {_GANG_MAX}, and a least of at most the size"
        )
    return TimedPod(_pod(row), (row.get("user") or "").strip() or qos, priority, came_s, ended_s, size, least)


def _number(row: Mapping[str, str], column: str) -> int:
    """Return the whole number in a column of a line (`row`). Raises PlacementError if it is none, or too long."""
    text = row[column].strip()
    if not text.isascii() or not text.isdecimal() or len(text) > _DIGITS_MAX:
        raise PlacementError(f"{column} is {text[:_DIGITS_MAX]!r}: a whole number from 0 is needed")
    return int(text)


def _read(
    path: Path, text: str | None, columns: tuple[str, ...], make: Callable[[Mapping[str, str]], Item]
) -> Iterator[Item]:
    """Yield what `make` makes of each line of a CSV file. `text`: its content; None: it is still to be read.

    `columns`: those that the first line has to name. Raises TraceError, with the number of the line, for the first line
    that `make` refuses with PlacementError, and for a file without these columns or without lines.
    """
    try:
        rows = csv.DictReader(io.StringIO(load(path) if text is None else text, newline=""), strict=True)
        rows.fieldnames = [name.strip() for name in rows.fieldnames or ()]
        missing = [column for column in columns if column not in rows.fieldnames]
        if not rows.fieldnames:
            raise TraceError(f"{path}: it is empty: line 1 names the columns {', '.join(columns)}")
        if missing:
            raise TraceError(f"{path}: line 1: column {missing[0]} is missing: {', '.join(columns)} are needed")
        empty = True
        for row in rows:
            empty = False
            try:
                yield make(_by_column(row, rows.fieldnames))
            except PlacementError as error:
                raise TraceError(f"{path}: line {rows.line_num}: {error}") from None
        if empty:
            raise TraceError(f"{path}: nothing but its first line: is it the right file?")
    except csv.Error as error:
        raise _unreadable(path, error) from None


def _unreadable(path: Path, error: Exception) -> TraceError:
    """Return the error to raise for a file that cannot be read, because of `error`."""
    reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return TraceError(f"{path}: {reason}: give a CSV file, plain or gzip'ed, or what kubectl get -o json prints")


def _by_column(row: Mapping[str | None, Any], columns: Sequence[str]) -> dict[str, str]:
    """Return a line, as csv.DictReader gives it, as text by column.

    Raises PlacementError if it has not as many columns as the first line.
    """
    # DictReader puts surplus values under the key None, and the value None in place of missing ones.
    if None in row or any(row[column] is None for column in columns):
        raise PlacementError(f"{len(columns)} columns are in line 1, not so many here")
    return {column: row[column] for column in columns}
