"""`sharepod simulate`: runs a placement policy on a list of nodes and a list of pods, in virtual time."""

from __future__ import annotations

import csv
import io
import os
import statistics
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from sharepod.cli.commands.play import play
from sharepod.cli.console import check_writable, note, show, show_json, write_bytes, write_file
from sharepod.cli.ending import end_in_order
from sharepod.cli.errors import CliError, UsageError
from sharepod.cli.options import Output, OutputOption
from sharepod.cli.workers import side_by_side

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from rich.console import Group

    from sharepod.scheduler.placement.request import NodeSpec
    from sharepod.scheduler.simulation.replay import Outcome, Placed
    from sharepod.scheduler.state.trace import NamedPod

POLICIES: Final = ("worth", "fgd", "binpack", "consolidate", "spread")
"""As in `sharepod.scheduler.placement.policy`, which is imported only when needed. A test compares the two."""
SEEDS_MAX: Final = 1000
SEEDS: Final = 10
ARRIVE: Final = 1.3
"""The default of --arrive, as a part of the time of all devices."""
ARRIVE_MAX: Final = 10.0
WHOLE: Final = 1.0
"""The time of all devices, in this unit."""
PLACEMENT_COLUMNS: Final = ("seed", "pod", "node", "device_indices", "milli")


@dataclass(frozen=True, slots=True)
class _Task:
    """All that a process needs for one replay: under one policy, in the order of one seed."""

    nodes: Sequence[NodeSpec]
    pods: Sequence[NamedPod]
    policy: str
    arrive: float | None
    """Pods come until so much is asked for, as a part of all devices; None: each pod comes once."""
    seed: int
    keeps_places: bool
    """Whether the replay also returns where each pod went."""


def simulate(
    nodes: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="CSV with sn, cpu_milli, memory_mib, gpu, model; or a cluster's, as JSON."),
    ] = None,
    pods: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="CSV with name, cpu_milli, memory_mib, num_gpu, gpu_milli, perhaps gpu_spec; or a cluster's, as JSON.",
        ),
    ] = None,
    policy: Annotated[
        str,
        typer.Option(metavar="POLICY[,POLICY]", help=f"Which to compare, of {', '.join(POLICIES)}."),
    ] = POLICIES[0],
    arrive: Annotated[
        float | None,
        typer.Option(
            metavar="RATIO",
            help="Stop when so much has been asked for; 1 is the time of all devices.",
            show_default=f"{ARRIVE:g}",
        ),
    ] = None,
    once: Annotated[bool, typer.Option("--once", help="Each pod of the list comes once, instead of --arrive.")] = False,
    times: Annotated[
        bool,
        typer.Option(
            "--times", help="Pods come and go at creation_time and deletion_time, and wait where none is free."
        ),
    ] = False,
    queues: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Rules of queues (queues.yaml of daemonset/gates), with --times."),
    ] = None,
    seeds: Annotated[
        int | None,
        typer.Option(metavar="N", help="Repeat with N orders of pods and of nodes.", show_default=f"{SEEDS}"),
    ] = None,
    jobs: Annotated[int, typer.Option(metavar="N", help="Run so many at a time.", show_default="all processors")] = 0,
    placements: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write where each pod went, as CSV; one policy only.")
    ] = None,
    picture: Annotated[
        Path | None,
        typer.Option(metavar="FILE.png", help="Draw what is allocated against what was asked for."),
    ] = None,
    output: OutputOption = Output.table,
) -> None:
    """Replay a list of pods against placement, with the code that places pods in a cluster.

    Pods come one by one, in an order shuffled by the seed and then drawn from the list; each is placed at once or
    fails for good, and stays. With --times they come when they came, wait in queues where there is no room, have
    others of lower priority yield, and go. The lists are CSV or what kubectl prints, and may be gzip'ed. Examples:

      sharepod simulate --nodes nodes.csv --pods pods.csv --policy worth,fgd --picture curve.png

      kubectl get nodes -o json > nodes.json; kubectl get pods -A -o json > pods.json

      sharepod simulate --nodes nodes.json --pods pods.json --policy worth,binpack --once

      sharepod simulate --nodes nodes.csv --pods pods.csv --times --queues queues.yaml
    """
    names = _policies(policy)
    modes = (("--times", times), ("--once", once), ("--arrive", arrive is not None))
    given = [flag for flag, is_given in modes if is_given]
    if len(given) > 1:
        raise UsageError(f"{given[0]} and {given[1]} exclude each other: give one of them")
    count = (1 if times else SEEDS) if seeds is None else seeds
    until = None if once or times else ARRIVE if arrive is None else arrive
    _check(until, count, jobs, names, placements, picture)
    files = {
        "--nodes": nodes, "--pods": pods, "--queues": queues, "--placements": placements, "--picture": picture,
    }  # fmt: skip
    _check_files(files)
    if nodes is None or pods is None:
        raise UsageError(f"{'--nodes' if nodes is None else '--pods'} is missing: give both lists")
    if times:
        _check_play(placements, picture, count)
        play(nodes, pods, queues, names, jobs or os.cpu_count() or 1, as_json=output is Output.json)
        return
    if queues is not None:
        raise UsageError("--queues is for pods that wait: give it with --times")
    tasks = _read_tasks(nodes, pods, names, until, count, keeps_places=placements is not None)
    results = _run(tasks, jobs or os.cpu_count() or 1)
    outcomes = [outcome for outcome, _ in results]
    if output is Output.json:
        show_json({"arrive": until, "outcomes": [_plain(outcome) for outcome in outcomes]})
    else:
        show(_table(outcomes, names, until))
    # Last, so that a full disk costs only the file and not the results.
    if placements is not None:
        write_file(placements, _rows([(outcome.seed, placed) for outcome, placed in results]))
    if picture is not None:
        _draw(picture, outcomes, names)


def _policies(text: str) -> list[str]:
    """Return the policies that `text` names. Raises UsageError for an unknown name, and for one that is there twice."""
    names = [name.strip() for name in text.split(",")]
    for name in names:
        if name not in POLICIES:
            raise UsageError(f"policy {name!r} is not known: choose of {', '.join(POLICIES)}")
    if len(set(names)) < len(names):
        raise UsageError(f"--policy {text} names one twice: name each once")
    return names


def _check(
    arrive: float | None, seeds: int, jobs: int, names: Sequence[str], placements: Path | None, picture: Path | None
) -> None:
    """Raise UsageError for a flag that is out of its range or does not go with the others.

    Raises CliError if a file cannot be written, or if what draws the picture is not installed.
    """
    if arrive is not None and not 0 < arrive <= ARRIVE_MAX:
        raise UsageError(
            f"--arrive {arrive:g} cannot be: above 0 and at most {ARRIVE_MAX:g}, 1 is the time of all devices"
        )
    if not 1 <= seeds <= SEEDS_MAX:
        raise UsageError(f"--seeds {seeds} cannot be: 1 to {SEEDS_MAX} are possible")
    if jobs < 0:
        raise UsageError(f"--jobs {jobs} cannot be: 1 or more, or leave it out")
    if placements is not None and len(names) > 1:
        raise UsageError(f"--placements is for one policy, --policy names {len(names)}: run them one by one")
    if picture is not None and picture.suffix != ".png":
        raise UsageError(f"--picture {picture} is no PNG: give a name that ends in .png")
    if picture is not None:
        _curve()
    for path in (placements, picture):
        if path is not None:
            check_writable(path)


def _check_play(placements: Path | None, picture: Path | None, seeds: int) -> None:
    """Raise UsageError for flags that do not go with --times."""
    for flag, path in (("--placements", placements), ("--picture", picture)):
        if path is not None:
            raise UsageError(f"{flag} is of pods that stay: leave it out with --times")
    if seeds > 1:
        raise UsageError(f"--seeds {seeds} cannot be: with --times there is one order, that of the list")


def _check_files(named: Mapping[str, Path | None]) -> None:
    """Raise UsageError if two flags name the same file. `named`: the files by their flags."""
    given = [(flag, path.resolve()) for flag, path in named.items() if path is not None]
    for flag, path in given:
        twin = next((other for other, same in given if same == path and other != flag), None)
        if twin is not None:
            raise UsageError(f"{flag} and {twin} are the same file: give each its own")


def _read_tasks(
    nodes: Path, pods: Path, names: Sequence[str], arrive: float | None, seeds: int, *, keeps_places: bool
) -> list[_Task]:
    """Read the lists, and return a task for each policy and seed. Raises CliError.

    It notes on stderr which pods are left out or will fail, and which nodes have more devices than are counted.
    """
    try:
        from sharepod.scheduler.errors import PlacementError
        from sharepod.scheduler.simulation.replay import check_lists, unknown_models
        from sharepod.scheduler.state.listing import read_nodes, read_pods
    except ImportError as error:
        raise CliError(f"{error.name} is missing: pip install 'sharepod[scheduler,curves]'") from None
    try:
        large: list[str] = []
        refused: list[str] = []
        specs, named = read_nodes(nodes, large.append), read_pods(pods, refused.append)
        check_lists(specs, named, arrive)
    except PlacementError as error:
        raise CliError(str(error)) from None
    if large:
        note(large[0] + _others(large, "node"))
    if refused:
        note(f"left out, as it can be placed nowhere: {refused[0]}{_others(refused, 'pod')}")
    if unknown := unknown_models(specs, named):
        note(f"pods insist on models that no node has and will fail: {', '.join(unknown)}")
    return [_Task(specs, named, name, arrive, seed, keeps_places) for name in names for seed in range(seeds)]


def _others(told: Sequence[str], kind: str) -> str:
    """Return the end of a note that names the first of `told`: how many more there are; empty: there are no others."""
    return f"; and {len(told) - 1} more {kind}{'s' if len(told) > 2 else ''}" if len(told) > 1 else ""


def _run(tasks: Sequence[_Task], jobs: int) -> list[tuple[Outcome, list[Placed]]]:
    """Run the tasks, `jobs` at a time, and note each result. Return for each its outcome and its pods' places."""
    end_in_order()
    results = []
    for number, result in enumerate(side_by_side(_replay, tasks, jobs), start=1):
        results.append(result)
        outcome = result[0]
        allocated = 100 * outcome.points[-1].allocated
        note(f"{number} of {len(tasks)}: {outcome.policy}, seed {outcome.seed}: {allocated:.2f} % allocated")
    return results


def _replay(task: _Task) -> tuple[Outcome, list[Placed]]:
    """Run one task. Return its outcome, and where each pod went if the task keeps that."""
    from sharepod.scheduler.simulation.replay import replay

    placed: list[Placed] = []
    tell = placed.append if task.keeps_places else lambda _: None
    outcome = replay(task.nodes, task.pods, task.policy, arrive=task.arrive, seed=task.seed, tell=tell)
    return outcome, placed


def _rows(placed: Sequence[tuple[int, list[Placed]]]) -> str:
    """Return the file of --placements: the pods in the order of their arrival. A pod that failed has no node."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(PLACEMENT_COLUMNS)
    for seed, pods in placed:
        for pod in pods:
            writer.writerow((seed, pod.pod, pod.node, "|".join(map(str, pod.devices)), pod.milli))
    return text.getvalue()


def _plain(outcome: Outcome) -> dict[str, object]:
    """Return an outcome in the form of the JSON output."""
    points = [
        asdict(point) | {"failed": _counts_by_size(point.failed), "insisting": _counts(*point.insisting)}
        for point in outcome.points
    ]
    return {"policy": outcome.policy, "seed": outcome.seed, "points": points}


def _counts_by_size(counts: Sequence[tuple[str, int, int]]) -> dict[str, dict[str, int]]:
    """Return the counts by size. `counts` has, for each size, how many pods failed and how many came."""
    return {size: _counts(failed, came) for size, failed, came in counts}


def _counts(failed: int, came: int) -> dict[str, int]:
    """Return how many pods failed and how many came, by the names of the JSON output."""
    return {"failed": failed, "arrived": came}


def _table(outcomes: Sequence[Outcome], names: Sequence[str], arrive: float | None) -> Group:
    """Return what was allocated and what failed under each policy, as means over its seeds.

    Each policy has a row for the end of its replays. If `arrive` is above 1, there is also a row for the moment at
    which the time of all devices had been asked for.
    """
    from rich.console import Group

    from sharepod.cli.render.tables import table

    # What had been asked for at the moment of each row; None: at the end.
    marks = [arrive] if arrive is None or arrive <= WHOLE else [WHOLE, arrive]
    sizes = sorted({size for outcome in outcomes for size, _, _ in outcome.points[-1].failed}, key=_size_order)
    totals = table("POLICY", ">ASKED FOR", ">ALLOCATED", ">FRAGMENTED")
    failures = table("POLICY", ">ASKED", *(f">{size}" for size in sizes))
    for name in names:
        for mark in marks:
            own = [outcome for outcome in outcomes if outcome.policy == name]
            points = [outcome.points[-1] if mark is None else outcome.at(mark) for outcome in own]
            asked = f"{100 * (points[0].arrived if mark is None else mark):.4g} %"
            allocated = _mean([100 * point.allocated for point in points])
            totals.add_row(
                name, asked, allocated, f"{statistics.fmean(100 * point.fragmented for point in points):.2f} %"
            )
            counts = [{size: (failed, came) for size, failed, came in point.failed} for point in points]
            failures.add_row(name, asked, *(_part_failed([count.get(size) for count in counts]) for size in sizes))
    return Group(totals, "", "Failed, of the pods of each size:", failures)


def _size_order(size: str) -> tuple[bool, bool, int]:
    """Return the key that sorts sizes: pods without devices, then shares, then whole devices by their number."""
    number = size.split()[0]
    return (size != "CPU", size != "share", int(number) if number.isdecimal() else 0)


def _mean(values: Sequence[float]) -> str:
    """Return the mean and, if there are several values, their standard deviation."""
    mean = f"{statistics.fmean(values):.2f} %"
    return f"{mean} ± {statistics.stdev(values):.2f}" if len(values) > 1 else mean


def _part_failed(counts: Sequence[tuple[int, int] | None]) -> str:
    """Return the part of all pods of a size that failed; a dash: none came.

    `counts` has, for each seed, how many failed and how many came; None: no pod of this size came.
    """
    came = sum(count[1] for count in counts if count)
    return f"{100 * sum(count[0] for count in counts if count) / came:.2f} %" if came else "–"


def _draw(path: Path, outcomes: Sequence[Outcome], names: Sequence[str]) -> None:
    """Write the picture: for each policy the mean curve over its seeds."""
    curves = {}
    for name in names:
        own = [outcome.points for outcome in outcomes if outcome.policy == name]
        curves[name] = [
            (statistics.fmean(p.arrived for p in points), statistics.fmean(p.allocated for p in points))
            for points in zip(*own, strict=False)  # up to the end of the shortest replay
        ]
    write_bytes(path, _curve()(curves))


def _curve() -> Callable[[Mapping[str, Sequence[tuple[float, float]]]], bytes]:
    """Return the function that draws. Raises CliError if it is not installed."""
    try:
        from sharepod.cli.render.curve import png
    except ImportError as error:
        raise CliError(f"{error.name} is missing: pip install 'sharepod[scheduler,curves]'") from None
    return png
