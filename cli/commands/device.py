"""`device release` and `device resume`: the agent lets go of a GPU for an operator and takes it back."""

from __future__ import annotations

from typing import Annotated

import typer

from sharepod.cli.connection.connect import connect, socket_path
from sharepod.cli.console import note
from sharepod.cli.options import Socket  # noqa: TC001 - typer reads it
from sharepod.cli.render.messages import label

app = typer.Typer(no_args_is_help=True, help="Release a device for a reset or a change of MIG; take it back.")
DeviceName = Annotated[str, typer.Argument(metavar="DEVICE", help="Index or UUID, as `sharepod top` shows it.")]


@app.command()
def release(device: DeviceName, socket: Socket = None) -> None:
    """Let a device go: it takes no new share, and the agent has nothing open that a reset would meet.

    Programs that run on it hold it, too: end them, or drain the Kubernetes node. While any device is released the agent
    looks at none. Example: sharepod device release 0 && nvidia-smi -i 0 --gpu-reset; sharepod device resume 0
    """
    with connect(socket_path(socket)) as client:
        released = client.release_device(device)
    index = released.device.index
    note(f"device {index} is released; `sharepod device resume {index}` takes it back")
    for share in released.shares:
        running = ", ".join(str(process.pid) for process in share.processes)
        still = f"its processes {running} hold the device: end them first" if running else "none of its programs runs"
        note(f"share {label(share)} is on it: {still}")


@app.command()
def resume(device: DeviceName, socket: Socket = None) -> None:
    """Take a released device back: it is looked at within seconds, and takes new shares if it is well.

    The agent lists devices and loads the driver's library when it starts: after a change of MIG or an upgrade of the
    driver restart it instead. Example: sharepod device resume 0
    """
    with connect(socket_path(socket)) as client:
        note(f"device {client.resume_device(device).index} is back; `sharepod doctor` says how it is")
