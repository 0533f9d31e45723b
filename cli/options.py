"""Flags and arguments that several commands share."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer


class Output(StrEnum):
    """How a command answers."""

    table = "table"
    json = "json"


class ShareClass(StrEnum):
    """How a share is ranked when a device is contended."""

    latency = "latency"
    standard = "standard"
    batch = "batch"


Socket = Annotated[
    str | None,
    typer.Option(
        "--socket", metavar="PATH", envvar="SHAREPOD_SOCKET", help="The agent's socket.", show_default="yours"
    ),
]
OutputOption = Annotated[Output, typer.Option("-o", "--output", help="table for people, json for machines.")]
ShareName = Annotated[
    str, typer.Argument(metavar="SHARE", help="Name, id or container of a share, as `sharepod ps` shows it.")
]
Limit = Annotated[
    str | None,
    typer.Option(metavar="PERCENT", help="The most it may ever use, 1–100 (100 when not given)."),
]
Memory = Annotated[
    str | None,
    typer.Option(metavar="SIZE", help="Cap on device memory, like 10GiB; none when not given."),
]
