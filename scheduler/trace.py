"""Reads lists of nodes and pods: CSV as openb has it, plain or gzip'ed. A line that cannot be is named, none is used.

Nodes: `sn, cpu_milli, memory_mib, gpu, model`. Pods: `name, cpu_milli, memory_mib, num_gpu, gpu_milli` and, if there,
`gpu_spec` (models, `|` between them; empty: any). Further columns are passed over.
"""

from __future__ import annotations

import csv
import gzip
import io
import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from sharepod.scheduler.ask import NodeSpec, PodAsk, ShareAsk
from sharepod.scheduler.errors import PlacementError, TraceError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path
    from typing import TypeVar

    Item = TypeVar("Item")

_NODE_COLUMNS: Final = ("sn", "cpu_milli", "memory_mib", "gpu", "model")
_POD_COLUMNS: Final = ("name", "cpu_milli", "memory_mib", "num_gpu", "gpu_milli")
_GZIP: Final = b"\x1f\x8b"
_DIGITS_MAX: Final = 12


@dataclass(frozen=True, slots=True)
class NamedPod:
    """A pod of a list."""

    name: str
    ask: PodAsk


def read_nodes(path: Path) -> list[NodeSpec]:
    """Return the nodes of a file. Raises TraceError."""
    nodes = list(_read(path, _NODE_COLUMNS, _node))
    names = [node.name for node in nodes]
    if len(set(names)) < len(names):
        twice = next(name for index, name in enumerate(names) if name in names[:index])
        raise TraceError(f"{path}: node {twice} is there twice: give each its own name")
    return nodes


def read_pods(path: Path) -> list[NamedPod]:
    """Return the pods of a file. Raises TraceError."""
    return list(_read(path, _POD_COLUMNS, _pod))


def _node(row: Mapping[str, str]) -> NodeSpec:
    return NodeSpec(
        row["sn"], _number(row, "cpu_milli"), _number(row, "memory_mib"), _number(row, "gpu"), row["model"].strip()
    )


def _pod(row: Mapping[str, str]) -> NamedPod:
    devices, milli = _number(row, "num_gpu"), _number(row, "gpu_milli")
    # The lists count no memory of devices.
    shares = (ShareAsk(milli, devices, mib=0),) if devices else ()
    models = frozenset(name.strip() for name in (row.get("gpu_spec") or "").split("|") if name.strip())
    return NamedPod(row["name"], PodAsk(_number(row, "cpu_milli"), _number(row, "memory_mib"), shares, models))


def _number(row: Mapping[str, str], column: str) -> int:
    text = row[column].strip()
    if not text.isascii() or not text.isdecimal() or len(text) > _DIGITS_MAX:
        raise PlacementError(f"{column} is {text[:_DIGITS_MAX]!r}: a whole number from 0 is needed")
    return int(text)


def _read(path: Path, columns: tuple[str, ...], item: Callable[[Mapping[str, str]], Item]) -> Iterator[Item]:
    try:
        content = path.read_bytes()  # once: it may be a pipe
        text = (gzip.decompress(content) if content.startswith(_GZIP) else content).decode("utf-8-sig")
        rows = csv.DictReader(io.StringIO(text, newline=""), strict=True)
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
                yield item(_whole(row, rows.fieldnames))
            except PlacementError as error:
                raise TraceError(f"{path}: line {rows.line_num}: {error}") from None
        if empty:
            raise TraceError(f"{path}: nothing but its first line: is it the right file?")
    except (OSError, EOFError, zlib.error, UnicodeDecodeError, csv.Error) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise TraceError(f"{path}: {reason}: give a CSV file, plain or gzip'ed") from None


def _whole(row: Mapping[str | None, Any], columns: Sequence[str]) -> dict[str, str]:
    if None in row or any(row[column] is None for column in columns):
        raise PlacementError(f"{len(columns)} columns are in line 1, not so many here")
    return {column: row[column] for column in columns}
