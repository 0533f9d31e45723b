"""The flags of a process and its `--help`, made by Typer from settings, so that it looks like the `sharepod` command's.

Typer reads what stands on the command line and leaves it as text: a value is judged in one place, wherever it stands.
"""

from __future__ import annotations

import inspect
from inspect import Parameter
from typing import TYPE_CHECKING, Annotated, Final

import typer
import typer.main

from sharepod.process.errors import SettingsError, unknown
from sharepod.process.kinds import FLAG

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from sharepod.process.setting import Setting

_NO: Final = "no_"
_CONFIG: Final = Annotated[str | None, typer.Option(metavar="PATH", help="YAML file with settings.")]
_CONTEXT: Final = {
    "help_option_names": ["-h", "--help"],
    # What it does not know is named here, with the nearest flag.
    "allow_extra_args": True,
    "ignore_unknown_options": True,
}


def read_flags(program: str, head: str, items: Sequence[Setting], arguments: Sequence[str]) -> dict[str, object]:
    """Return the flags that are given, by the names of settings, and `config`.

    Raises SettingsError. `--help` is printed and ends the process.
    """
    given: dict[str, object] | None = None

    def take(context: typer.Context, **values: object) -> None:
        nonlocal given
        _refuse(program, context.args, [item.flag for item in items])
        sources = {name: context.get_parameter_source(name) for name in values}
        given = {name: values[name] for name, source in sources.items() if source and source.name == "COMMANDLINE"}

    context = Parameter("context", Parameter.KEYWORD_ONLY, annotation=typer.Context)
    config = Parameter("config", Parameter.KEYWORD_ONLY, annotation=_CONFIG, default=None)
    options = [option for item in items for option in _options(item)]
    take.__signature__ = inspect.Signature([context, *options, config])  # type: ignore[attr-defined]
    application = typer.Typer(add_completion=False, rich_markup_mode="markdown")
    application.command(help=head, context_settings=_CONTEXT)(take)
    try:
        code = typer.main.get_command(application)(list(arguments), prog_name=program, standalone_mode=False)
    except typer.TyperException as error:
        raise SettingsError(f"{error.format_message().rstrip('.')}: see `{program} --help`") from None
    if given is None:
        raise SystemExit(code)
    for item in items:
        if given.pop(_NO + item.name, False):
            given[item.name] = False
    return given


def _options(item: Setting) -> Iterator[Parameter]:
    if item.kind is FLAG:
        # Typer would give the negative flag a column of its own in `--help`, at the cost of the descriptions.
        for name, hidden in ((item.name, False), (_NO + item.name, True)):
            flag = "--" + name.replace("_", "-")
            switch = Annotated[bool, typer.Option(flag, help=item.meaning, hidden=hidden)]
            yield Parameter(name, Parameter.KEYWORD_ONLY, annotation=switch, default=False)
    else:
        option = Annotated[str | None, typer.Option(item.flag, metavar=item.kind.metavar, help=item.meaning)]
        default = item.default.replace(",", ", ")  # so that `--help` can break the line there
        yield Parameter(item.name, Parameter.KEYWORD_ONLY, annotation=option, default=default or None)


def _refuse(program: str, arguments: Sequence[str], flags: Sequence[str]) -> None:
    """Raise SettingsError when something is left over."""
    if arguments:
        found = arguments[0].partition("=")[0]
        what = "flag" if found.startswith("-") else "argument"
        raise unknown(what, found, [*flags, "--config", "--help"], f"see `{program} --help`")
