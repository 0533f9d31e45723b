"""`sharepod simulate --times`: pods come, wait, yield and go. The scheduling cycles are those of a live cluster."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Final

from sharepod.cli.console import note, show, show_json
from sharepod.cli.ending import end_in_order
from sharepod.cli.errors import CliError
from sharepod.cli.workers import side_by_side

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from rich.console import Group

    from sharepod.scheduler.controller.queues import Queues
    from sharepod.scheduler.placement.request import NodeSpec
    from sharepod.scheduler.simulation.job_run import Task
    from sharepod.scheduler.simulation.waits import Waits

DAY_S: Final = 86_400.0
TOLD_S: Final = 10.0
"""The least time between two lines about the progress of a play."""
MISSING: Final = "{} is missing: pip install 'sharepod[scheduler]'"


@dataclass(frozen=True, slots=True)
class _Play:
    """All that a process needs to run one play."""

    nodes: Sequence[NodeSpec]
    tasks: Sequence[Task]
    queues: Queues
    policy: str


@dataclass(frozen=True, slots=True)
class Played:
    """The result of one play.

    Attributes:
        policy: its name.
        rounds: the number of scheduling cycles.
        devices: the devices of all nodes.
        used: the part of all devices' time that was used, from the first task's arrival to the last one's, 0..1.
        unfit: the number of tasks that would not fit into the empty cluster; the other figures leave them out.
        unended: the number of tasks that had not ended when nothing happened any more.
        waits: the waits by priority, highest first.
    """

    policy: str
    rounds: int
    devices: int
    used: float
    unfit: int
    unended: int
    waits: Sequence[Waits]


def play(nodes: Path, pods: Path, queues: Path | None, policies: Sequence[str], jobs: int, *, as_json: bool) -> None:
    """Play a list of pods under each policy, `jobs` plays at a time, and print the results. Raises CliError."""
    plays = _read_plays(nodes, pods, queues, policies)
    end_in_order()
    done: list[Played] = []
    for played in side_by_side(_run_play, plays, jobs):
        done.append(played)
        note(f"{len(done)} of {len(plays)}: {played.policy}: {100 * played.used:.2f} % used")
    if as_json:
        show_json({"plays": [asdict(one) for one in done]})
    else:
        show(_tables(done))


def _read_plays(nodes: Path, pods: Path, queues: Path | None, policies: Sequence[str]) -> list[_Play]:
    """Read the lists, and return a play for each policy. Raises CliError."""
    try:
        from sharepod.scheduler.controller.queues import KEY, Queues, read_queues
        from sharepod.scheduler.errors import PlacementError
        from sharepod.scheduler.simulation.replay import check_nodes
        from sharepod.scheduler.state.listing import read_nodes
        from sharepod.scheduler.state.trace import load
    except ImportError as error:
        raise CliError(MISSING.format(error.name)) from None
    try:
        rules = read_queues({KEY: load(queues)}) if queues is not None else Queues()
        specs = read_nodes(nodes)
        check_nodes(specs)
        tasks = listed(pods)
    except PlacementError as error:
        raise CliError(str(error)) from None
    return [_Play(specs, tasks, rules, name) for name in policies]


def listed(path: Path) -> list[Task]:
    """Return a list's pods as tasks, without the pods that ask for no share. Raises TraceError.

    Time begins when the first pod of the list arrives. A pod runs for 1 s at least. If the list gives it no end, it
    runs until the last moment of the list.
    """
    from sharepod.scheduler.simulation.job_run import Task
    from sharepod.scheduler.state.trace import read_timed_pods

    timed = read_timed_pods(path)
    first_s = min(item.came_s for item in timed)
    last_s = max(max(item.came_s, item.ended_s or 0) for item in timed)
    return [
        Task(
            # A name may occur twice: each line is a task of its own.
            f"{item.pod.name}#{number}", item.user or "default", item.priority, item.pod.request, item.came_s - first_s,
            max(1.0, (last_s if item.ended_s is None else item.ended_s) - item.came_s), item.size, item.least,
        )
        for number, item in enumerate(timed)
        if item.pod.request.shares
    ]  # fmt: skip


def _run_play(one: _Play) -> Played:
    """Run one play to its end, and note from time to time how far it is. Raises CliError if no pod would ever fit."""
    from sharepod.scheduler.simulation.timeline import Timeline
    from sharepod.scheduler.simulation.waits import used_part, waits

    timeline = Timeline(one.nodes, one.queues, one.policy)
    timeline.expect(one.tasks)
    last_arrival_s = max(task.arrive_s for task in one.tasks)
    told_s = time.monotonic()

    def tell(now_s: float) -> None:
        """Note how far the play is, at most every TOLD_S. `now_s` is its virtual time."""
        nonlocal told_s
        if time.monotonic() - told_s > TOLD_S:
            told_s = time.monotonic()
            ended = sum(run.ended_s is not None for run in timeline.job_runs.values())
            note(
                f"{one.policy}: day {now_s / DAY_S:.1f} of {last_arrival_s / DAY_S:.1f}, "
                f"{len(timeline.job_runs)} of {len(one.tasks)} have come, {ended} have ended"
            )

    played = timeline.play(one.tasks, float("inf"), tell)
    runs = [run for run in played if timeline.fits(run.task)]
    if not runs:
        raise CliError("no pod of the list would fit into the empty cluster: are the nodes the right ones?")
    devices = sum(node.devices for node in one.nodes)
    return Played(
        one.policy, timeline.rounds, devices, used=used_part(runs, devices, timeline.now_s),
        unfit=len(played) - len(runs), unended=sum(run.ended_s is None for run in runs),
        waits=waits(runs, timeline.now_s),
    )  # fmt: skip


def _tables(done: Sequence[Played]) -> Group:
    """Return two tables: each policy's use of the devices, and how long its jobs waited, by priority."""
    from rich.console import Group

    from sharepod.cli.render.tables import table

    totals = table("POLICY", ">DEVICES", ">USED", ">UNENDED", ">UNFIT")
    times = table("POLICY", ">PRIORITY", ">JOBS", ">MEDIAN", ">P95", ">P99", ">LONGEST", ">PAUSED", ">EVICTED", ">LOST")
    for one in done:
        totals.add_row(one.policy, str(one.devices), f"{100 * one.used:.2f} %", str(one.unended), str(one.unfit))
        for row in one.waits:
            times.add_row(
                one.policy, str(row.priority), str(row.tasks),
                *(_time(value) for value in (row.median_s, row.p95_s, row.p99_s, row.longest_s)),
                str(row.paused), str(row.evicted), f"{row.lost_device_s / DAY_S:.2f} d",
            )  # fmt: skip
    waited = "How long jobs waited, what yielded, and the work that was lost with it, in days of a device:"
    return Group(totals, "", waited, times)


def _time(seconds: float) -> str:
    """Return a time in days, hours, minutes or seconds: the largest unit of which it has one."""
    for unit_s, unit in ((DAY_S, "d"), (3600.0, "h"), (60.0, "min")):
        if seconds >= unit_s:
            return f"{seconds / unit_s:.1f} {unit}"
    return f"{seconds:.1f} s"
