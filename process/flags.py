"""Reads the flags of a process. Typer writes its `--help`, so that it looks like the `sharepod` command's.

argparse reads the flags, and not Typer: that would load pydantic to check their values, at 10 MiB in each process (ADR
25). Values stay text here: `options.py` checks them, wherever they come from.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Annotated, Any, Final, NoReturn

from sharepod.process.errors import SettingsError, unknown
from sharepod.process.kinds import FLAG

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sharepod.process.setting import Setting

_WORD_MAX: Final = 29
"""Characters: Typer would break a longer word anywhere in its column of defaults."""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        """Raise SettingsError instead of ending the process."""
        raise SettingsError(f"{message}: see `{self.prog} --help`")


def read_flags(program: str, head: str, items: Sequence[Setting], arguments: Sequence[str]) -> dict[str, object]:
    """Return the values of the given flags by the names of their settings, and that of `--config` by `config`.

    `items` are the settings. Values are text; those of the kind FLAG are bool. `--help` is printed, with `head` at its
    top, and ends the process. Raises SettingsError.
    """
    parser = _Parser(prog=program, allow_abbrev=False, add_help=False)
    parser.add_argument("--config")
    parser.add_argument("-h", "--help", action="store_true")
    for item in items:
        if item.kind is FLAG:
            parser.add_argument(item.flag, action=argparse.BooleanOptionalAction)
        else:
            parser.add_argument(item.flag)
    found, left = parser.parse_known_args(arguments)
    if found.help:
        _print_help(program, head, items)
        raise SystemExit(0)
    if left:
        name = left[0].partition("=")[0]
        flags = [*(item.flag for item in items), "--config", "--help"]
        raise unknown("flag" if name.startswith("-") else "argument", name, flags, f"see `{program} --help`")
    del found.help
    return {name: value for name, value in vars(found).items() if value is not None}


def _with_breaks(word: str) -> str:
    """Return a word with spaces in it, at which `--help` can break it: after commas, colons or slashes.

    A part is longer than _WORD_MAX only if it has none of these marks.
    """
    end = max(word.rfind(mark, 0, _WORD_MAX) for mark in ",:/") + 1  # 0: there is no mark
    return word if len(word) <= _WORD_MAX or not end else f"{word[:end]} {_with_breaks(word[end:])}"


def _print_help(program: str, head: str, items: Sequence[Setting]) -> None:
    """Let Typer print `--help`. It makes the options from the parameters of a function: one for each setting."""
    import inspect

    import typer
    import typer.main

    def take(**_: object) -> None:
        """Stand in for the process. It is never called."""

    def parameter(name: str, annotation: Any, default: object = None) -> inspect.Parameter:
        """Return a parameter of `take`, from which Typer makes an option."""
        return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, annotation=annotation, default=default)

    parameters = []
    for item in items:
        is_flag = item.kind is FLAG  # `--no-…` is left out: it would take a column from the descriptions
        option = typer.Option(item.flag, metavar=None if is_flag else item.kind.metavar, help=item.meaning)
        default = _with_breaks(item.default) or None
        parameters.append(
            parameter(item.name, Annotated[bool if is_flag else str, option], False if is_flag else default)
        )
    config = typer.Option(metavar="PATH", help="YAML file with settings.")
    parameters.append(parameter("config", Annotated[str, config]))
    take.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    application = typer.Typer(add_completion=False, rich_markup_mode="markdown")
    application.command(help=head, context_settings={"help_option_names": ["-h", "--help"]})(take)
    typer.main.get_command(application)(["--help"], prog_name=program, standalone_mode=False)
