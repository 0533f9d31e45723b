"""Writes what the gate controller says about a pod that waits or yields, for a human reader."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from sharepod.cli.render.quantities import format_duration

if TYPE_CHECKING:
    from collections.abc import Iterator

    Object = dict[str, Any]

_NS: Final = 10**9


def lines(turn: Object) -> Iterator[str]:
    """Yield the lines about a pod that waits for devices, or makes room for others.

    `turn` is a Turn of scheduler/explain/pending_status.py, as JSON. Raises KeyError, TypeError or ValueError if it has
    another form.
    """
    if not turn["decides"]:
        yield "This replica does not decide: of its turn another one knows, ask each pod of the Deployment."
        return
    yield from _waits(turn) if turn["waits"] else _yields(turn)


def _waits(turn: Object) -> Iterator[str]:
    """Yield why a pod waits: its job's place in the line, its queue, its gang, possible victims, and closed nodes."""
    waited = f"{turn['job']} has waited for {_time(turn['waited_s'] or 0)}, with priority {turn['priority']}"
    if turn["position"] is None:
        yield f"  its turn: it is not in the line; {waited}"
    else:
        yield (
            f"  its turn: {turn['position']} of {turn['in_line']} jobs in the line, {turn['in_queue']} of its queue; "
            f"{waited}"
        )
    for before in turn["before"]:
        yield f"      before it {before['job']}, {before['devices']:g} devices: {before['why']}"
    more = (turn["position"] or 1) - 1 - len(turn["before"])
    if more > 0:
        yield f"      and {more} more"
    standing, gang = turn["standing"], turn["gang"]
    cap = "" if standing["cap_devices"] is None else f" of at most {standing['cap_devices']:g}"
    yield (
        f"  queue {standing['queue']}: holds {standing['held_devices']:g}{cap} devices, {standing['share']:.3f} of the "
        f"cluster by its weight {standing['weight']:g}; after {_time(standing['longest_wait_s'])} of waiting it goes "
        "before all others"
    )
    if gang is not None:
        there = gang["waiting"] + gang["released"]
        yield (
            f"  gang: {there} of {gang['size']} members are there, {gang['released']} of them released; "
            f"{gang['least']} start together"
            + (f", and {gang['missing']} of these have still to come" if gang["missing"] else "")
        )
    if turn["yields"]:
        yield f"  nobody makes room: {turn['yields']}"
    for way in turn["ways"]:
        yield f"  on {way['node']} a pod of it would fit {_way(way)}"
    for barred in turn["barred"]:
        names = ", ".join(barred["examples"]) + (", ..." if barred["nodes"] > len(barred["examples"]) else "")
        yield f"  {barred['nodes']} node{'' if barred['nodes'] == 1 else 's'} ({names}): {barred['why']}"


def _yields(turn: Object) -> Iterator[str]:
    """Yield why a pod makes room, and when it goes on."""
    since = "since before this replica looked" if turn["waited_s"] is None else f"for {_time(turn['waited_s'])}"
    yield f"  it makes room {since}: {turn['why'] or 'another replica has decided it; see its Events'}"
    if turn["position"] is not None:
        yield f"  to go on: {turn['position']} of {turn['in_line']} jobs in the line"
    for before in turn["before"]:
        yield f"      before it {before['job']}, {before['devices']:g} devices: {before['why']}"


def _way(way: Object) -> str:
    """Say which victims would have to go or pause on a node, and what work is lost with them; "as it is": none."""
    words = (("paused", "were paused"), ("evicted", "were evicted"))
    parts = [f"if {', '.join(way[kind])} {word}" for kind, word in words if way[kind]]
    more = f" and {way['more']} more" if way["more"] else ""
    lost = f", which loses {_time(way['lost_s'])} of a device's work" if way["evicted"] else ""
    return (" and ".join(parts) + more + lost) or "as it is"


def _time(seconds: float) -> str:
    """Write a time roughly, in a unit that suits its length."""
    if seconds >= 2 * 86_400:
        return f"{seconds / 86_400:.0f} days"
    if seconds >= 3600:
        return f"{seconds / 3600:.3g} h"
    return format_duration(round(seconds) * _NS) if seconds >= 1 else "less than 1 s"
