"""`sharepod queue`: shows which jobs wait for shares in the cluster, in which order, and why."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from sharepod.cli.connection import scheduler as cluster_scheduler
from sharepod.cli.console import note, show, show_json
from sharepod.cli.errors import CliError
from sharepod.cli.options import Output, OutputOption
from sharepod.cli.render.quantities import format_duration

if TYPE_CHECKING:
    from rich.console import Group

NS: Final = 10**9
SHOWN: Final = 50
"""How many waiting jobs are shown without --all."""
_ELSEWHERE: Final = "this replica does not decide, another one has the queue: ask each pod of the Deployment"
_AWAY: Final = "this replica does not decide, as it cannot hold the lease ({}): pods wait, running ones run on"


def queue(
    namespace: Annotated[str | None, typer.Option("-n", "--namespace", help="Only this queue.")] = None,
    everything: Annotated[bool, typer.Option("--all", help=f"All that wait, not only the first {SHOWN}.")] = False,
    output: OutputOption = Output.table,
    scheduler: Annotated[
        str, typer.Option(metavar="URL", help="The scheduler's address; the default works in its own pod.")
    ] = cluster_scheduler.URL,
) -> None:
    """Show the jobs that wait for shares, in the order in which they are tried, why they wait, and what queues hold.

    A job is a gang or a pod by itself, a queue is a namespace. A job that has waited for longer than its queue's
    longest-wait is tried first, then the higher priority, then the queue with the smaller SHARE of the cluster. PODS
    2-4 is a gang: 2 start together, 2 more follow. WHY is what the last cycle found. sharepod explain pod/NAME says
    more.

    It runs in the scheduler's pod: kubectl -n sharepod exec deploy/sharepod-scheduler -- sharepod queue

    Examples: sharepod queue; sharepod queue -n team; sharepod queue --all -o json
    """
    found = cluster_scheduler.get(scheduler, "/queue", "queue")
    try:
        waiting = [job for job in found["waiting"] if namespace in (None, job["queue"])]
        queues = [one for one in found["queues"] if namespace in (None, one["queue"])]
        if output is Output.json:
            show_json({**found, "waiting": waiting, "queues": queues})
            return
        if not found["decides"]:
            raise CliError(_AWAY.format(found["trouble"]) if found["trouble"] else _ELSEWHERE)
        if found["refusal"]:
            note(f"the rules of queues stay as they were: {found['refusal']}")
        shown = waiting if everything else waiting[:SHOWN]
        show(_tables(shown, queues))
        if namespace is not None and not waiting and not queues:
            note(_unknown(namespace, [one["queue"] for one in found["queues"]]))
        if len(waiting) > len(shown):
            note(f"and {len(waiting) - len(shown)} more: --all shows them")
    except (KeyError, TypeError, ValueError, AttributeError):
        raise CliError(cluster_scheduler.STRANGER.format(url=scheduler)) from None


def _unknown(namespace: str, names: list[str]) -> str:
    """Return the note about a queue that the scheduler does not know. It names the known queue that is most like it."""
    near = difflib.get_close_matches(namespace, names, 1)
    return f"queue {namespace} holds nothing and nothing of it waits" + (f": did you mean {near[0]}?" if near else "")


def _tables(waiting: list[dict[str, Any]], queues: list[dict[str, Any]]) -> Group:
    """Return a table of the waiting jobs, and below it one of the queues."""
    from rich.console import Group

    from sharepod.cli.render.tables import table

    jobs = table(">", "~JOB", ">PRIORITY", ">PODS", ">DEVICES", ">WAITED", "~WHY")
    for job in waiting:
        pods = f"{job['pods']}" if job["least"] == job["pods"] else f"{job['least']}-{job['pods']}"
        waited = format_duration(round(job["waited_s"] * NS))
        jobs.add_row(
            str(job["position"]), job["job"], str(job["priority"]), pods, f"{job['devices']:g}", waited, job["why"]
        )
    holders = table("~QUEUE", ">WEIGHT", ">HOLDS", ">CAP", ">SHARE", ">WAITING")
    for one in queues:
        cap = "-" if one["cap_devices"] is None else f"{one['cap_devices']:g}"
        holders.add_row(
            one["queue"], f"{one['weight']:g}", f"{one['held_devices']:g}", cap, f"{one['share']:.3f}",
            str(one["waiting"]),
        )  # fmt: skip
    return Group(jobs if waiting else "Nothing waits.", "", holders if queues else "")
