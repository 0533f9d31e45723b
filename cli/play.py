"""`sharepod simulate --times` and `--week`: pods that come, wait, yield and go, by the rounds of a live cluster."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Final

from sharepod.cli.console import note, show, show_json, write_bytes
from sharepod.cli.ending import end_in_order
from sharepod.cli.errors import CliError
from sharepod.cli.workers import side_by_side

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from rich.console import Group

    from sharepod.scheduler.ask import NodeSpec
    from sharepod.scheduler.course import Task
    from sharepod.scheduler.courses import Curves, Result
    from sharepod.scheduler.queues import Queues

DAY_S: Final = 86_400.0
TOLD_S: Final = 10.0
"""Between two lines about how far a play is."""
MISSING: Final = "{} is missing: pip install 'sharepod[scheduler,curves]'"


@dataclass(frozen=True, slots=True)
class _Play:
    nodes: Sequence[NodeSpec]
    tasks: Sequence[Task]
    queues: Queues
    policy: str
    seed: int


@dataclass(frozen=True, slots=True)
class Played:
    """What one play came to."""

    policy: str
    seed: int
    rounds: int
    result: Result
    curves: Curves


def play(
    nodes: Path | None,
    pods: Path | None,
    queues: Path | None,
    policies: Sequence[str],
    seeds: int,
    jobs: int,
    picture: Path | None,
    *,
    as_json: bool,
) -> None:
    """Play a list of pods that come and go (a synthetic week if there is none) under each policy; print and draw it."""
    draw = _drawing() if picture is not None else None
    plays = _plays(nodes, pods, queues, policies, seeds)
    end_in_order()
    done: list[Played] = []
    for played in side_by_side(_play, plays, jobs):
        done.append(played)
        note(f"{len(done)} of {len(plays)}: {_name(played)}: {100 * played.result.used:.2f} % used")
    if as_json:
        show_json({"plays": [_plain(one) for one in done]})
    else:
        show(_tables(done))
    if picture is not None and draw is not None:
        write_bytes(picture, draw({_name(one): one.curves for one in done}))


def _plays(
    nodes: Path | None, pods: Path | None, queues: Path | None, policies: Sequence[str], seeds: int
) -> list[_Play]:
    try:
        from sharepod.scheduler.errors import PlacementError
        from sharepod.scheduler.listing import read_nodes
        from sharepod.scheduler.queues import KEY, Queues, read_queues
        from sharepod.scheduler.replay import check_nodes
        from sharepod.scheduler.trace import load
        from sharepod.scheduler.week import DEVICE_MIB, NODES, week_nodes, week_tasks
    except ImportError as error:
        raise CliError(MISSING.format(error.name)) from None
    try:
        rules = read_queues({KEY: load(queues)}) if queues is not None else Queues()
        specs = read_nodes(nodes) if nodes is not None else week_nodes(NODES)
        check_nodes(specs)
        if pods is None:
            specs = [spec if spec.device_mib else replace(spec, device_mib=DEVICE_MIB) for spec in specs]
        by_seed = [listed(pods)] if pods is not None else [week_tasks(specs, seed) for seed in range(seeds)]
    except PlacementError as error:
        raise CliError(str(error)) from None
    return [_Play(specs, tasks, rules, name, seed) for name in policies for seed, tasks in enumerate(by_seed)]


def listed(path: Path) -> list[Task]:
    """Return a list's pods as tasks; time begins when the first one comes. Raises TraceError."""
    from sharepod.scheduler.course import Task
    from sharepod.scheduler.trace import read_timed_pods

    timed = read_timed_pods(path)
    first_s = min(item.came_s for item in timed)
    last_s = max(max(item.came_s, item.ended_s or 0) for item in timed)
    return [
        Task(
            # Names may be there twice; each line is a task of its own.
            f"{item.pod.name}#{number}", item.user or "default", item.priority, item.pod.ask, item.came_s - first_s,
            max(1.0, (last_s if item.ended_s is None else item.ended_s) - item.came_s), item.size, item.least,
        )
        for number, item in enumerate(timed)
        if item.pod.ask.shares
    ]  # fmt: skip


def _play(given: _Play) -> Played:
    from sharepod.scheduler.courses import curves, judge
    from sharepod.scheduler.timeline import Timeline

    line = Timeline(given.nodes, given.queues, given.policy)
    line.expect(given.tasks)
    comes_s = max(task.arrive_s for task in given.tasks)
    told_s = time.monotonic()

    def tell(now_s: float) -> None:
        nonlocal told_s
        if time.monotonic() - told_s > TOLD_S:
            told_s = time.monotonic()
            ended = sum(course.ended_s is not None for course in line.courses.values())
            note(
                f"{given.policy}, seed {given.seed}: day {now_s / DAY_S:.1f} of {comes_s / DAY_S:.1f}, "
                f"{len(line.courses)} of {len(given.tasks)} have come, {ended} have ended"
            )

    courses = line.play(given.tasks, float("inf"), tell)
    fits = {course.task.name: line.fits(course.task) for course in courses}
    if not any(fits.values()):
        raise CliError("no pod of the list would fit into the empty cluster: are the nodes the right ones?")
    devices = sum(node.devices for node in given.nodes)
    return Played(
        given.policy, given.seed, line.rounds,
        judge(courses, lambda one: fits[one.task.name], devices, given.queues, line.now_s),
        curves(courses, lambda one: fits[one.task.name], line.now_s),
    )  # fmt: skip


def _name(played: Played) -> str:
    return f"{played.policy}, seed {played.seed}"


def _plain(played: Played) -> dict[str, object]:
    result = asdict(played.result)
    result["longest"]["bound_s"] = played.result.longest.bound_s
    return {"policy": played.policy, "seed": played.seed, "rounds": played.rounds, **result}


def _tables(done: Sequence[Played]) -> Group:
    from rich.console import Group

    from sharepod.cli.tables import table

    totals = table(
        "POLICY", ">SEED", ">USED", ">LOW USES", ">OF PACKED", ">JAIN", ">LONGEST", ">BOUND", ">LATE", ">UNFIT"
    )
    waits = table(
        "POLICY", ">SEED", ">PRIORITY", ">JOBS", ">MEDIAN", ">P95", ">P99", ">LONGEST", ">PAUSED", ">EVICTED", ">LOST"
    )
    users = table("POLICY", ">SEED", "~USER", ">JOBS", ">DEVICE DAYS", ">WANTED MORE", ">GOT THEN")
    for one in done:
        result, name, seed = one.result, one.policy, str(one.seed)
        totals.add_row(
            name, seed, f"{100 * result.used:.2f} %", _percent(result.low_use), _percent(result.low_packed),
            _index(result.jain), _time(result.longest.waited_s), _time(result.longest.bound_s), str(result.over_bound),
            str(result.unfit),
        )  # fmt: skip
        for some in result.waits:
            waits.add_row(
                name, seed, str(some.priority), str(some.tasks),
                *(_time(value) for value in (some.median_s, some.p95_s, some.p99_s, some.longest_s)),
                str(some.paused), str(some.evicted), f"{some.lost_device_s / DAY_S:.2f} d",
            )  # fmt: skip
        for user in result.users:
            users.add_row(
                name, seed, user.name, str(user.tasks), f"{user.device_s / DAY_S:.2f}", _time(user.wanted_s),
                f"{user.got:.2f}" if user.wanted_s else "–",
            )  # fmt: skip
    waited = "How long jobs waited, what yielded, and the work that was lost with it, in days of a device:"
    had = "Devices that users had on average while they wanted more, by their weight:"
    return Group(totals, "", waited, waits, "", had, users)


def _percent(value: float | None) -> str:
    return "–" if value is None else f"{100 * value:.2f} %"


def _index(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}"


def _time(seconds: float) -> str:
    """Return a time as people say it."""
    for unit_s, unit in ((DAY_S, "d"), (3600.0, "h"), (60.0, "min")):
        if seconds >= unit_s:
            return f"{seconds / unit_s:.1f} {unit}"
    return f"{seconds:.1f} s"


def _drawing() -> Callable[[dict[str, Curves]], bytes]:
    try:
        from sharepod.cli.curve import timed_png
    except ImportError as error:
        raise CliError(MISSING.format(error.name)) from None
    return timed_png
