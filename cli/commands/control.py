"""`pause`, `resume`, `set`, `release`: an operator changes a live share."""

from __future__ import annotations

from typing import Annotated

import typer

from sharepod.cli.connection.connect import connect, socket_path
from sharepod.cli.console import note, show
from sharepod.cli.errors import UsageError
from sharepod.cli.options import Limit, Memory, ShareClass, ShareName, Socket  # noqa: TC001 - typer reads it
from sharepod.cli.render import quantities
from sharepod.cli.render.messages import class_of, label


def pause(share: ShareName, socket: Socket = None) -> None:
    """Close a share's gates until it is resumed; its memory stays.

    Example: sharepod pause train
    """
    with connect(socket_path(socket)) as client:
        note(f"{label(client.pause(share))} is paused; `sharepod resume {share}` lets it run again")


def resume(share: ShareName, socket: Socket = None) -> None:
    """Let a paused share run again.

    Example: sharepod resume train
    """
    with connect(socket_path(socket)) as client:
        note(f"{label(client.resume(share))} runs again")


def change(
    share: ShareName,
    gpu: Annotated[str | None, typer.Option(metavar="PERCENT", help="New guaranteed device time.")] = None,
    limit: Limit = None,
    memory: Memory = None,
    share_class: Annotated[ShareClass | None, typer.Option("--class", help="New class.")] = None,
    device: Annotated[str, typer.Option(metavar="ID", help="Only on this device of the share.")] = "",
    socket: Socket = None,
) -> None:
    """Change a live share; its programs go on.

    Terms that are not given stay unchanged. Example: sharepod set train --gpu 50 --limit 80
    """
    if gpu is None and limit is None and memory is None and share_class is None:
        raise UsageError("nothing to change: give --gpu, --limit, --memory or --class")
    request, most = quantities.parse_terms(gpu, limit)
    memory_bytes = None if memory is None else quantities.parse_memory(memory)
    with connect(socket_path(socket)) as client:
        from sharepod.proto import v1_pb2 as pb

        terms = pb.DeviceChange(
            device=device,
            request_millipercent=request,
            limit_millipercent=most,
            memory_limit_bytes=memory_bytes,
        )
        after = client.update(pb.UpdateShareRequest(share=share, devices=[terms], share_class=class_of(share_class)))
    from sharepod.cli.render import tables

    show(tables.share_table([after]))


def release(share: ShareName, socket: Socket = None) -> None:
    """End a share; programs that still run in it go on unmetered.

    A share made by `sharepod run` ends by itself with its program. Example: sharepod release train
    """
    with connect(socket_path(socket)) as client:
        ended = client.release(share)
    used_ns = sum(term.usage.used_ns for term in ended.devices)
    note(f"{label(ended)} is released; it used {quantities.format_duration(used_ns)} of device time")
