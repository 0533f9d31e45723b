"""`sharepod doctor`: shows what is missing on this host."""

from __future__ import annotations

from collections import Counter

import typer

from sharepod.cli.connection.connect import connect, socket_path
from sharepod.cli.console import show, show_json
from sharepod.cli.errors import EXIT_FAILURE, CliError
from sharepod.cli.options import Output, OutputOption, Socket


def doctor(output: OutputOption = Output.table, socket: Socket = None) -> None:
    """Check kernel, driver, hook and agent; say what to do about what is wrong.

    Exit code: 1 when a check fails, 0 otherwise (a warning is no failure).
    """
    from sharepod.cli.commands import checks
    from sharepod.hook import LIBRARY

    node, refusal = None, None
    try:
        with connect(socket_path(socket)) as client:
            node = client.node()
            node = client.node_for_owner()
    except CliError as error:
        refusal = error
    found = list(checks.run_checks(node, refusal, LIBRARY))
    if output is Output.json:
        show_json({"checks": found})
    else:
        from sharepod.cli.render import tables

        show(tables.check_table(found))
    if Counter(check.status for check in found)[checks.FAIL]:
        raise typer.Exit(EXIT_FAILURE)
