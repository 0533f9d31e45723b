"""The entry of the `sharepod` command: its verbs and how it reports errors.

A fast start matters for `sharepod run`: heavy modules (grpc, rich, the demo) are imported only by the verbs that need
them.
"""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from sharepod.cli.commands import control, device, view
from sharepod.cli.commands.doctor import doctor
from sharepod.cli.commands.queue import queue
from sharepod.cli.commands.run import run
from sharepod.cli.commands.simulate import simulate
from sharepod.cli.console import error_line, flush, open_streams
from sharepod.cli.demo.command import demo
from sharepod.cli.errors import EXIT_FAILURE, CliError

app = typer.Typer(
    name="sharepod",
    no_args_is_help=True,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(is_given: bool) -> None:
    """If the flag is given, print the version and end the command."""
    if is_given:
        from sharepod.cli.commands.about import version_text

        typer.echo(version_text())
        raise typer.Exit


@app.callback()
def sharepod(
    _version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print version, region ABI and features."
        ),
    ] = False,
) -> None:
    """Exact percentages of a GPU for unmodified CUDA programs.

    Start the node's backend, then programs in shares of its GPUs:

      sharepod agent                                  # or, without a GPU: sharepod agent --simulate 1xH200

      sharepod run --gpu 70 -- python train.py

      sharepod run --gpu 30 --limit 60 --memory 10GiB -- python serve.py

      sharepod top

    `sharepod demo` shows all of it in 20 seconds. `sharepod doctor` says what is missing here.
    """


def agent(context: typer.Context) -> None:
    """Run the node's backend: it grants turns, keeps the accounts and answers this command.

    All its flags are listed by `sharepod agent --help`. Examples: sharepod agent; sharepod agent --simulate 2xH200
    """
    from sharepod.agent.settings import OPTIONS

    settings = OPTIONS.start(context.args)
    from sharepod.agent.main import run_agent

    raise typer.Exit(run_agent(settings))


# The agent reads its own flags (flag = environment = YAML key). Here they are only passed on.
_PASS_ON = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}
app.command(context_settings=_PASS_ON)(agent)
# Arguments after the program's name belong to the program, with or without `--` before it.
app.command(no_args_is_help=True, context_settings={"allow_interspersed_args": False})(run)
app.command()(view.ps)
app.command()(view.top)
app.command()(view.explain)
app.command()(control.pause)
app.command()(control.resume)
app.command("set")(control.change)
app.command()(control.release)
app.add_typer(device.app, name="device")
app.command()(queue)
app.command()(view.trace)
app.command()(doctor)
app.command(no_args_is_help=True)(simulate)
app.command()(demo)


def _usage_line(error: typer.TyperException) -> str:
    """Return one line: what is wrong with the command line, and which help page shows the right form."""
    cause = error.format_message().replace("Value error, ", "").strip().rstrip(".")
    context = getattr(error, "ctx", None)
    return f"{cause}: see `{context.command_path if context else _page()} --help`"


def _page() -> str:
    """Return the command of the help page to name: `sharepod` with the verb of the command line, if it has one."""
    verbs = {info.name or getattr(info.callback, "__name__", "") for info in app.registered_commands}
    return " ".join(["sharepod", *(word for word in sys.argv[1:2] if word in verbs)])


def main() -> None:
    """Run the command. Exit with 2 for wrong usage, with the error's own code for what the user can fix."""
    open_streams()
    try:
        code = app(standalone_mode=False, prog_name="sharepod")
        flush()
    except CliError as error:
        error_line(str(error))
        code = error.exit_code
    except typer.TyperException as error:
        # An error without a message is the help, which has been printed already.
        if error.format_message():
            error_line(_usage_line(error))
        code = error.exit_code
    except (KeyboardInterrupt, typer.Abort):
        code = 130
    except BrokenPipeError:
        code = EXIT_FAILURE  # the reader of the pipe has closed it
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        error_line(f"{where}{error.strerror or error}: check space, limits and permissions")
        code = EXIT_FAILURE
    sys.exit(code if isinstance(code, int) else 0)
