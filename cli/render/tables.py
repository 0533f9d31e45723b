"""Draws the agent's answers as tables. Values in, rich renderables out; this module prints nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

from rich.box import SIMPLE_HEAD
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from sharepod.cli.commands.checks import FAIL, OK, WARN, Check
from sharepod.cli.render.messages import label, word
from sharepod.cli.render.quantities import MILLIPERCENT, format_bytes, format_duration, format_percent

if TYPE_CHECKING:
    from sharepod.cli.demo.account import Result
    from sharepod.proto import v1_pb2 as pb

_STATE_STYLES: Final = {
    "holding": "green", "draining": "cyan", "waiting": "yellow", "paused": "magenta", "yielding": "magenta",
    "idle": "dim",
}  # fmt: skip
_STATUS_STYLES: Final = {OK: "green", WARN: "yellow", FAIL: "bold red"}
_SHARE_COLUMNS: Final = (
    "~SHARE", "CLASS", "DEVICE", ">ASKED", ">LIMIT", ">GOT 1 s", ">GOT 1 min", ">MEMORY", ">PROCESSES", "STATE",
    ">WAITED",
)  # fmt: skip
_POD_COLUMN: Final = "~POD"
_SHARE_DISPENSABLE: Final = (
    ">PROCESSES", "CLASS", ">WAITED", ">GOT 1 min", ">LIMIT", ">MEMORY", "DEVICE", ">ASKED",
)  # fmt: skip
"""The columns to leave out if the terminal is narrow, the first one first. Always shown: share, GOT 1 s and state."""
_DEVICE_COLUMNS: Final = ("DEVICE", "NAME", ">ASKED", ">GOT 1 s", ">MEMORY", "~HEALTH")
_DEVICE_DISPENSABLE: Final = (">MEMORY", "NAME", ">ASKED")
_UNBOUNDED: Final = 10_000
"""A width in which every table fits."""
_FOLDED_WIDTH: Final = 16
"""A folding column gets at least this width: else another column is left out for it."""


def table(*columns: str) -> Table:
    """Return an empty table in the command's look.

    A column with a name that begins with `>` is aligned to the right. One that begins with `~` folds if space is short.
    """
    result = Table(box=SIMPLE_HEAD, pad_edge=False, show_edge=False, header_style="bold")
    for column in columns:
        right, folds = column.startswith(">"), column.startswith("~")
        result.add_column(
            column.lstrip(">~"),
            justify="right" if right else "left",
            no_wrap=not folds,
            overflow="fold" if folds else "ellipsis",
        )
    return result


class Fitting:
    """A table that leaves out its least important columns if the terminal is too narrow for all."""

    def __init__(
        self, columns: Sequence[str], dispensable: Sequence[str], rows: Sequence[Sequence[str | Text]]
    ) -> None:
        """Take the columns as in `table`. `dispensable` are the columns that may go, the first one first."""
        self._columns = tuple(columns)
        self._dispensable = tuple(dispensable)
        self._rows = tuple(tuple(row) for row in rows)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Yield the table with as many columns as fit."""
        for count in range(len(self._dispensable) + 1):
            left_out = self._dispensable[:count]
            narrowest = self._without(left_out, _FOLDED_WIDTH)
            if Measurement.get(console, options.update_width(_UNBOUNDED), narrowest).maximum <= options.max_width:
                break
        yield self._without(left_out, _UNBOUNDED)

    def _without(self, left_out: Sequence[str], folded_width: int) -> Table:
        """Return the table without these columns. The text of a folding column is cut to `folded_width` characters."""
        kept = [at for at, column in enumerate(self._columns) if column not in left_out]
        result = table(*(self._columns[at] for at in kept))
        for row in self._rows:
            result.add_row(*(row[at][:folded_width] if self._columns[at][0] == "~" else row[at] for at in kept))
        return result


def state_text(state: str) -> Text:
    """Return the state in its colour."""
    return Text(state, style=_STATE_STYLES.get(state, ""))


def measured(millipercent: int) -> str:
    """Write a measured percentage with one digit after the point, so that columns keep their width."""
    return f"{millipercent / MILLIPERCENT:.1f} %"


def _memory(term: pb.DeviceShare) -> str:
    """Return the memory in use and, if there is a cap, the cap."""
    used = format_bytes(term.usage.memory_used_bytes)
    return f"{used} / {format_bytes(term.memory_limit_bytes)}" if term.memory_limit_bytes else used


def _holder(share: pb.Share) -> str:
    """Return the container that a share was made for, from its labels; empty: it has no such labels."""
    return "/".join(share.labels[key] for key in ("namespace", "pod", "container") if share.labels.get(key))


def share_table(shares: Sequence[pb.Share]) -> Fitting:
    """Return one row per share and device. If any share belongs to a pod, a column names the pods."""
    has_pods = any(share.labels.get("pod") for share in shares)
    rows = [
        (
            label(share),
            *((_holder(share),) if has_pods else ()),
            word(share, "share_class"),
            str(term.device_index),
            format_percent(term.request_millipercent),
            format_percent(term.limit_millipercent),
            measured(term.usage.used_1s_millipercent),
            measured(term.usage.used_1m_millipercent),
            _memory(term),
            str(term.usage.processes),
            state_text("yielding" if share.yielding else "paused" if share.paused else word(term, "state")),
            format_duration(term.usage.waited_ns),
        )
        for share in shares
        for term in share.devices
    ]
    columns = (*_SHARE_COLUMNS[:1], *((_POD_COLUMN,) if has_pods else ()), *_SHARE_COLUMNS[1:])
    return Fitting(columns, _SHARE_DISPENSABLE, rows)


def device_table(devices: Sequence[pb.Device], shares: Sequence[pb.Share]) -> Fitting:
    """Return one row per device, with its promised and its used part."""
    rows: list[tuple[str | Text, ...]] = []
    for device in devices:
        terms = [term for share in shares for term in share.devices if term.device_uuid == device.uuid]
        # A share younger than a second is measured since its registration, so the sum may exceed the whole.
        got = min(100 * MILLIPERCENT, sum(term.usage.used_1s_millipercent for term in terms))
        health = Text("healthy", style="green") if device.healthy else Text(device.health_reason, style="bold red")
        for process in device.foreign_processes:
            finding = "runs unmetered in its share" if process.unmetered_cause else "runs without a share"
            health.append(f"; {process.name} ({process.pid}) {finding}", style="yellow")
        rows.append(
            (
                str(device.index),
                device.name,
                format_percent(device.requested_millipercent),
                measured(got),
                f"{format_bytes(device.memory_used_bytes)} / {format_bytes(device.memory_total_bytes)}",
                health,
            )
        )
    return Fitting(_DEVICE_COLUMNS, _DEVICE_DISPENSABLE, rows)


def overview(snapshot: pb.WatchUsageResponse) -> RenderableType:
    """Return the devices and, below them, their shares."""
    shares: RenderableType = Text("no shares: start one with `sharepod run --gpu 30 -- PROGRAM`", style="dim")
    if snapshot.shares:
        shares = share_table(snapshot.shares)
    return Group(device_table(snapshot.devices, snapshot.shares), Text(), shares)


def explanation(answer: pb.ExplainShareResponse, labels: Mapping[str, str]) -> RenderableType:
    """Return why the share runs or waits on each device; `labels` gives the names of other shares by id."""
    share = answer.share
    indices = {term.device_uuid: str(term.device_index) for term in share.devices}
    lines: list[RenderableType] = []
    for part in answer.devices:
        where = f" on device {indices.get(part.device_uuid, part.device_uuid)}: "
        # The agent's sentence starts with the state.
        lines.append(
            Text.assemble((label(share), "bold"), where, (part.reason, _STATE_STYLES.get(word(part, "state"), "")))
        )
        lines.extend(Text(f"  {fact}") for fact in part.facts)
        others = [labels.get(share_id, share_id) for share_id in part.holder_share_ids if share_id != share.id]
        if others:
            lines.append(Text(f"  device held by {', '.join(others)}"))
    return Group(*lines)


def check_table(checks: Sequence[Check]) -> RenderableType:
    """Return the findings of `doctor`, each with its remedy below it."""
    result = Table(box=None, pad_edge=False, show_header=False)
    result.add_column(no_wrap=True)
    result.add_column(no_wrap=True)
    result.add_column(overflow="fold")
    for check in checks:
        text = Text(check.text)
        if check.remedy:
            text.append(f"\n→ {check.remedy}", style="bold")
        result.add_row(Text(check.status, style=_STATUS_STYLES[check.status]), check.name, text)
    return result


def result_table(results: Sequence[Result]) -> Table:
    """Return, for each share of the demo, what it asked for, was due and got, and the error."""
    result = table("SHARE", ">ASKED", ">DUE", ">GOT", ">ERROR")
    for row in results:
        result.add_row(
            row.share, f"{row.asked:.0f} %", f"{row.expected:.2f} %", f"{row.got:.2f} %", f"{row.error:+.2f} pp"
        )
    return result
