"""`sharepod run`: runs a program in a share of a GPU."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from sharepod.cli.commands import launch
from sharepod.cli.connection.connect import check_devices, check_simulate, connect, ensure_agent, socket_path
from sharepod.cli.connection.init import stay_first
from sharepod.cli.console import note
from sharepod.cli.errors import EXIT_NO_AGENT, EXIT_NOT_EXECUTABLE, CliError, UsageError
from sharepod.cli.options import Limit, Memory, ShareClass, Socket
from sharepod.cli.render import quantities
from sharepod.cli.render.messages import class_of

if TYPE_CHECKING:
    from sharepod.proto import v1_pb2 as pb


def run(
    command: Annotated[list[str], typer.Argument(metavar="-- PROGRAM [ARGUMENT]", help="What to run, unmodified.")],
    gpu: Annotated[
        str,
        typer.Option(metavar="PERCENT", help="Guaranteed device time, 1–100; 0 takes what the others leave."),
    ],
    limit: Limit = None,
    memory: Memory = None,
    share_class: Annotated[
        ShareClass,
        typer.Option("--class", help="latency goes first below its request; batch uses what no one else wants."),
    ] = ShareClass.standard,
    device: Annotated[
        list[str] | None,
        typer.Option(metavar="ID", help="Device by index or UUID; repeat it for several. The best fit when not given."),
    ] = None,
    name: Annotated[str, typer.Option(metavar="NAME", help="A name for `ps` and the others.")] = "",
    gang: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="The same for all programs of a job: they get their devices together."),
    ] = None,
    private: Annotated[
        bool,
        typer.Option("--private", help="Start an agent if none runs; it ends with its last share."),
    ] = False,
    simulate: Annotated[
        str | None,
        typer.Option(metavar="DEVICES", help="With --private: simulated devices, like 1xH200."),
    ] = None,
    socket: Socket = None,
) -> None:
    """Run a program in a share of a GPU.

    Its exit code, signals, input and output are its own: this process becomes the program. The share ends when the
    program does.

    For example:

      sharepod run --gpu 30 -- python train.py

      sharepod run --gpu 30 --limit 60 --memory 10GiB --name train -- python train.py

      sharepod run --gpu 20 --class latency -- ./serve --port 8000

      sharepod run --private --simulate 1xH200 --gpu 50 -- ./program

    Exit codes: the program's own; 1 refused (no such device, a name that is taken); 2 a flag is wrong; 69 no agent;
    75 it does not fit now; 126 the program cannot be executed; 127 there is no such program.
    """
    if simulate is not None and not private:
        raise UsageError("--simulate needs --private: without it the agent that runs decides what the devices are")
    if simulate is not None:
        check_simulate(simulate)
    if gang == "":
        raise UsageError("--gang is empty: is a variable not set? give the job's name, or leave the flag out")
    request, most = quantities.parse_terms(gpu, limit)
    memory_bytes = 0 if memory is None else quantities.parse_memory(memory)
    environment = dict(os.environ)
    program = launch.find_program(command[0], environment.get("PATH"))
    if private:
        stay_first()
    from sharepod.proto import v1_pb2 as pb  # not earlier: a mistyped flag should not wait for this import

    ask = pb.RegisterShareRequest(
        name=name,
        devices=[
            pb.DeviceAsk(
                device=one,
                request_millipercent=request or 0,
                limit_millipercent=most or 0,
                memory_limit_bytes=memory_bytes,
            )
            for one in device or [""]
        ],
        share_class=class_of(share_class),
        owner_pid=os.getpid(),
        gang=gang or "",
    )
    path = socket_path(socket)
    if private:
        ensure_agent(path, simulate)
    try:
        _become(path, ask, program, command, environment, simulate)
    except CliError as error:
        if not private or error.exit_code != EXIT_NO_AGENT:
            raise
        # The private agent that was found may just have ended with its last share.
        ensure_agent(path, simulate)
        _become(path, ask, program, command, environment, simulate)


def warn_of_unmetered(program: str, right: str, policy: str) -> None:
    """Warn that a program gains a `right` with which the hook is not loaded: see launch.gains_rights.

    Raises CliError if the node's `policy` forbids programs without the hook.
    """
    text = f"{program} has {right}, and the loader drops the hook for it"
    if policy == "closed":
        raise CliError(
            f"cannot run {text}, which this node's policy `closed` forbids: take that right off it", EXIT_NOT_EXECUTABLE
        )
    note(f"{text}: it runs unmetered, and so does what it starts; take that right off it")


def _become(
    path: str,
    ask: pb.RegisterShareRequest,
    program: str,
    command: list[str],
    environment: dict[str, str],
    simulate: str | None,
) -> NoReturn:
    """Register a share and replace this process by the program. Raises CliError; then there is no share.

    `environment` is that of this process at its start.
    """
    with connect(path) as client:
        if simulate is not None:
            check_devices(client.node(), path, simulate)
        if right := launch.gains_rights(program, environment.get("PATH")):
            warn_of_unmetered(program, right, client.node().policy)
        registration = client.register(ask)
        with_share = launch.program_environment(environment, registration.environment, registration.hook_path)
        try:
            launch.become(program, command, with_share)
        except CliError:
            client.release(registration.share.id)
            raise
