"""Draws what the agent says as tables for people. Values in, rich renderables out; nothing is printed here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

from rich.box import SIMPLE_HEAD
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from sharepod.cli.checks import FAIL, OK, WARN, Check
from sharepod.cli.quantities import MILLIPERCENT, format_bytes, format_duration, format_percent

if TYPE_CHECKING:
    from sharepod.cli.account import Result
    from sharepod.cli.model import Device, DeviceShare, Explanation, Share, Snapshot

_STATE_STYLES: Final = {"holding": "green", "draining": "cyan", "waiting": "yellow", "paused": "magenta", "idle": "dim"}
_STATUS_STYLES: Final = {OK: "green", WARN: "yellow", FAIL: "bold red"}


def table(*columns: str) -> Table:
    """Return an empty table in the command's look; a column whose name begins with `>` is aligned to the right."""
    result = Table(box=SIMPLE_HEAD, pad_edge=False, show_edge=False, header_style="bold")
    for column in columns:
        right = column.startswith(">")
        result.add_column(column.removeprefix(">"), justify="right" if right else "left", no_wrap=True)
    return result


def state_text(state: str) -> Text:
    """Return the state in its colour."""
    return Text(state, style=_STATE_STYLES.get(state, ""))


def measured(millipercent: int) -> str:
    """Write a measured percentage with one digit after the point, so that columns stand still."""
    return f"{millipercent / MILLIPERCENT:.1f} %"


def _memory(term: DeviceShare) -> str:
    used = format_bytes(term.memory_used_bytes)
    return f"{used} / {format_bytes(term.memory_limit_bytes)}" if term.memory_limit_bytes else used


def share_table(shares: Sequence[Share]) -> Table:
    """Return one row per share and device."""
    result = table(
        "SHARE",
        "CLASS",
        "DEVICE",
        ">ASKED",
        ">LIMIT",
        ">GOT 1 s",
        ">GOT 1 min",
        ">MEMORY",
        ">PROCESSES",
        "STATE",
        ">WAITED",
    )
    for share in shares:
        for term in share.devices:
            result.add_row(
                share.label,
                share.share_class,
                str(term.device_index),
                format_percent(term.request_millipercent),
                format_percent(term.limit_millipercent),
                measured(term.used_1s_millipercent),
                measured(term.used_1m_millipercent),
                _memory(term),
                str(term.processes),
                state_text("paused" if share.paused else term.state),
                format_duration(term.waited_ns),
            )
    return result


def device_table(devices: Sequence[Device], shares: Sequence[Share]) -> Table:
    """Return one row per device, with what is promised and used of it."""
    result = table("DEVICE", "NAME", ">ASKED", ">GOT 1 s", ">MEMORY", "HEALTH")
    for device in devices:
        terms = [term for share in shares for term in share.devices if term.device_uuid == device.uuid]
        # A share younger than a second is measured since it was registered, so the sum may be above the whole.
        got = min(100 * MILLIPERCENT, sum(term.used_1s_millipercent for term in terms))
        health = Text("healthy", style="green") if device.healthy else Text(device.health_reason, style="bold red")
        for process in device.foreign_processes:
            health.append(f"; {process.name} ({process.pid}) runs without a share", style="yellow")
        result.add_row(
            str(device.index),
            device.name,
            format_percent(device.requested_millipercent),
            measured(got),
            f"{format_bytes(device.memory_used_bytes)} / {format_bytes(device.memory_total_bytes)}",
            health,
        )
    return result


def overview(snapshot: Snapshot) -> RenderableType:
    """Return the devices and, below them, their shares."""
    shares: RenderableType = Text("no shares: start one with `sharepod run --gpu 30 -- PROGRAM`", style="dim")
    if snapshot.shares:
        shares = share_table(snapshot.shares)
    return Group(device_table(snapshot.devices, snapshot.shares), Text(), shares)


def explanation(share: Share, devices: Sequence[Explanation], labels: Mapping[str, str]) -> RenderableType:
    """Return why the share runs or waits on each device; `labels` gives the names of other shares by id."""
    indices = {term.device_uuid: str(term.device_index) for term in share.devices}
    lines: list[RenderableType] = []
    for part in devices:
        where = f" on device {indices.get(part.device_uuid, part.device_uuid)}: "
        # The agent's sentence begins with the state.
        lines.append(Text.assemble((share.label, "bold"), where, (part.reason, _STATE_STYLES.get(part.state, ""))))
        lines.extend(Text(f"  {fact}") for fact in part.facts)
        others = [labels.get(share_id, share_id) for share_id in part.holder_share_ids if share_id != share.id]
        if others:
            lines.append(Text(f"  device held by {', '.join(others)}"))
    return Group(*lines)


def check_table(checks: Sequence[Check]) -> RenderableType:
    """Return what `doctor` found, each remedy below its finding."""
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
    """Return what each share of the demo asked for, was due, got, and how far off that is."""
    result = table("SHARE", ">ASKED", ">DUE", ">GOT", ">ERROR")
    for row in results:
        result.add_row(
            row.share, f"{row.asked:.0f} %", f"{row.expected:.2f} %", f"{row.got:.2f} %", f"{row.error:+.2f} pp"
        )
    return result
