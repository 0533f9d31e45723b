"""Writes turns as a Chrome trace, which Perfetto (ui.perfetto.dev) and chrome://tracing open. Pure.

The trace has one process per device and two rows per share: one with its turns, and under it one with the waits before
them. The rows are separate because a share begins to wait for its next turn before the last one has drained.
docs/trace.md documents the fields.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sharepod.cli.render.turns import Turn

Event = dict[str, object]


def _name(kind: str, process: int, thread: int, name: str) -> Event:
    """Return the event that names a device or a row. `kind` is process_name (the device) or thread_name (the row).

    `process` and `thread` are the numbers that stand for the two in the trace.
    """
    return {"ph": "M", "name": kind, "pid": process, "tid": thread, "args": {"name": name}}


def _slice(name: str, category: str, process: int, thread: int, start_ns: int, end_ns: int) -> Event:
    """Return the event of something that lasts, in row `thread` of `process`. Times count from the trace's begin."""
    # The format counts in microseconds. The nanoseconds become their fraction.
    return {
        "ph": "X",
        "name": name,
        "cat": category,
        "pid": process,
        "tid": thread,
        "ts": start_ns / 1000,
        "dur": max(0, end_ns - start_ns) / 1000,
    }


def chrome_trace(turns: Sequence[Turn], origin_ns: int | None = None) -> dict[str, object]:
    """Return the trace as an object for json.dump. Times count from `origin_ns` (default: the first event)."""
    if origin_ns is None:
        origin_ns = min((_wait_start(turn) for turn in turns), default=0)
    devices = {device: index + 1 for index, device in enumerate(dict.fromkeys(turn.device for turn in turns))}
    rows: dict[tuple[str, str], int] = {}  # by device and share: the number of the row with its turns
    events: list[Event] = [_name("process_name", process, 0, f"device {device}") for device, process in devices.items()]
    for turn in turns:
        process = devices[turn.device]
        key = (turn.device, turn.share)
        if key not in rows:
            rows[key] = 2 * len(rows) + 1
            events.append(_name("thread_name", process, rows[key], turn.share))
            events.append(_name("thread_name", process, rows[key] + 1, f"{turn.share} waits"))
        events.extend(_turn_events(turn, process, rows[key], origin_ns))
    return {
        "traceEvents": events,
        "displayTimeUnit": "ms",
        "otherData": {"clock": "CLOCK_MONOTONIC", "origin_ns": origin_ns, "turns": len(turns)},
    }


def _wait_start(turn: Turn) -> int:
    """Return when the wait for a turn began; without a wait this is the grant."""
    return min(turn.requested_ns, turn.granted_ns) if turn.requested_ns else turn.granted_ns


def _turn_events(turn: Turn, process: int, row: int, origin_ns: int) -> Iterable[Event]:
    """Yield a turn and its drain for row number `row`, and the wait before the turn for the next row.

    A drain or a wait that took no time is left out.
    """
    granted, drained = turn.granted_ns - origin_ns, turn.drained_ns - origin_ns
    held = _slice(f"turn ({turn.reason})", "turn", process, row, granted, drained)
    held["args"] = {
        "sequence": turn.sequence,
        "reason": turn.reason,
        "charged_ns": turn.charged_ns,
        "waited_ns": turn.granted_ns - _wait_start(turn),
        "cogranted": turn.cogranted,
    }
    yield held
    if turn.granted_ns < turn.closed_ns < turn.drained_ns:
        yield _slice("drain", "drain", process, row, turn.closed_ns - origin_ns, drained)
    if _wait_start(turn) < turn.granted_ns:
        yield _slice("wait", "wait", process, row + 1, _wait_start(turn) - origin_ns, granted)
