"""`ps`, `top`, `explain`, `trace`: show what the shares of this node do."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sharepod.cli.connection.connect import connect, socket_path
from sharepod.cli.console import check_writable, console, note, show, show_json, write_file
from sharepod.cli.options import Output, OutputOption, Socket
from sharepod.cli.render.messages import label, plain

if TYPE_CHECKING:
    from sharepod.cli.connection.client import Client
    from sharepod.cli.render.turns import Turn


def ps(output: OutputOption = Output.table, socket: Socket = None) -> None:
    """List the shares: what each asked for, what it got, what it does now.

    Examples: sharepod ps; sharepod ps -o json | jq '.shares[].name'
    """
    with connect(socket_path(socket)) as client:
        snapshot = client.snapshot()
    if output is Output.json:
        show_json(plain(snapshot))
        return
    from sharepod.cli.render import tables

    show(tables.share_table(snapshot.shares))


def top(
    interval: Annotated[float, typer.Option(min=0.1, max=3600, help="Seconds between two looks.")] = 1.0,
    socket: Socket = None,
) -> None:
    """Watch devices and shares live; q or Ctrl-C ends it.

    Without a terminal it prints what it sees once.
    """
    from sharepod.cli.render import live, tables

    with connect(socket_path(socket)) as client:
        live.watch(lambda: tables.overview(client.snapshot()), interval)


def explain(
    share: Annotated[
        str,
        typer.Argument(
            metavar="SHARE|pod/NAME", help="Name, id or container of a share on this node; or a pod of the cluster."
        ),
    ],
    output: OutputOption = Output.table,
    socket: Socket = None,
    namespace: Annotated[str, typer.Option("-n", "--namespace", help="Of the pod.")] = "default",
    scheduler: Annotated[
        str, typer.Option(metavar="URL", help="The scheduler's address; the default works in its own pod.")
    ] = "http://127.0.0.1:9467",
) -> None:
    """Say why a share waits or what it gets, and what holds its device; or where a pod would go, and why not elsewhere.

    Examples: sharepod explain train; in the scheduler's pod: sharepod explain pod/train-0 -n team
    """
    kind, slash, name = share.partition("/")
    if slash and kind in ("pod", "pods", "po"):
        from sharepod.cli.commands import pods

        found = pods.ask(scheduler, namespace, name)
        if output is Output.json:
            show_json(found)
            return
        for line in pods.lines(found, scheduler, console().width):
            typer.echo(line)
        return
    with connect(socket_path(socket)) as client:
        answer = client.explain(share)
        labels = {other.id: label(other) for other in client.list_shares().shares}
    if output is Output.json:
        show_json(plain(answer))
        return
    from sharepod.cli.render import tables

    show(tables.explanation(answer, labels))


def trace(
    output: Annotated[Path, typer.Option("-o", "--output", metavar="FILE", help="Where to write; - is stdout.")],
    seconds: Annotated[
        float | None,
        typer.Option(min=0.1, max=3600, help="Record this long from now; without it, the turns already made."),
    ] = None,
    socket: Socket = None,
) -> None:
    """Write the turns as a Chrome trace, for ui.perfetto.dev or chrome://tracing.

    Examples: sharepod trace -o turns.json; sharepod trace --seconds 5 -o turns.json
    """
    from sharepod.cli.render.trace import chrome_trace

    if str(output) != "-":
        check_writable(output)
    with connect(socket_path(socket)) as client:
        turns = record(client, seconds) if seconds else client.turns_after(0)
    text = json.dumps(chrome_trace(turns))
    if str(output) == "-":
        sys.stdout.write(f"{text}\n")
        return
    write_file(output, text + "\n")
    note(f"{len(turns)} turns in {output}; open it in ui.perfetto.dev")


def record(client: Client, seconds: float) -> list[Turn]:
    """Return the turns that end in the next `seconds`. Fetch them every second: the agent keeps only the last ones."""
    earlier = client.turns_after(0)
    last = earlier[-1].sequence if earlier else 0
    turns: list[Turn] = []
    deadline = time.monotonic() + seconds
    while (left := deadline - time.monotonic()) > 0:
        time.sleep(min(1.0, left))
        turns.extend(client.turns_after(turns[-1].sequence if turns else last))
    return turns
