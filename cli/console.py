"""Writes the command's output: tables by a rich console, and plain lines for machines and errors.

rich obeys NO_COLOR by itself, and writes no colour to a pipe.
"""

from __future__ import annotations

import codecs
import contextlib
import dataclasses
import io
import json
import os
import sys
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Final

from sharepod.cli.errors import CliError

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

PIPE_WIDTH = 200
"""Columns when the output is no terminal: a table in a file has no screen to fit."""


_ASCII: Final = {"–": "-", "→": "->", "…": "...", "µ": "u", "±": "+-", "×": "x", "≤": "<=", "≥": ">="}
_ASCII.update(dict.fromkeys("▁▂▃▄▅▆▇█", "#"))
"""What is written for a character that the locale lacks."""


@cache
def console() -> Console:
    """Return the console on stdout."""
    from rich.console import Console

    return Console(highlight=False, width=None if sys.stdout.isatty() else PIPE_WIDTH, soft_wrap=False)


def show(renderable: RenderableType) -> None:
    """Print something for a human reader."""
    console().print(renderable)


def show_json(value: object) -> None:
    """Print dataclasses, lists and mappings as JSON for machines."""
    json.dump(value, sys.stdout, default=_plain, indent=2, ensure_ascii=False)
    sys.stdout.write("\n")


def _plain(value: object) -> object:
    """Return a dataclass or a mapping in a form that json can write. Raises TypeError for any other value."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"no JSON for {type(value).__name__}")


def check_writable(path: Path) -> None:
    """Raise CliError unless a file can be written at `path`. Call it before the work that fills the file."""
    must_be_writable = path if path.exists() else path.parent
    cause = "it is a directory" if path.is_dir() else ""
    if not must_be_writable.exists():
        cause = f"{must_be_writable} is not there"
    elif not cause and not os.access(must_be_writable, os.W_OK):
        cause = "permission denied"
    if cause:
        raise CliError(f"cannot write {path}: {cause}: choose another file")


def write_file(path: Path, text: str) -> None:
    """Write a file in UTF-8. Raises CliError, with the cause, when it cannot be written."""
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise CliError(f"cannot write {path}: {error.strerror}: choose another file") from None


def write_bytes(path: Path, content: bytes) -> None:
    """Write a file. Raises CliError, with the cause, when it cannot be written."""
    try:
        path.write_bytes(content)
    except OSError as error:
        raise CliError(f"cannot write {path}: {error.strerror}: choose another file") from None


def note(text: str) -> None:
    """Print one line about progress to stderr, apart from the real output."""
    sys.stderr.write(f"sharepod: {text}\n")


def error_line(text: str) -> None:
    """Print one error line to stderr. If it cannot be written, only the exit code tells of the error."""
    with contextlib.suppress(OSError):
        sys.stderr.write(f"error: {' '.join(text.split())}\n")


def _substitute(error: UnicodeError) -> tuple[str, int]:
    """Replace characters that the locale lacks by ASCII. This is the error handler for `codecs` of both outputs.

    Returns the replacement and the position at which encoding goes on. Raises any other error again.
    """
    if not isinstance(error, UnicodeEncodeError):
        raise error
    unknown = error.object[error.start : error.end]
    return "".join(_ASCII.get(letter, "?") for letter in unknown), error.end


def open_streams() -> None:
    """Open /dev/null in place of each standard stream that was closed at the start.

    Else our next file or socket would get its number and receive our output. The new descriptors close on exec, so the
    program of `sharepod run` finds its streams closed as they were. This also sets how text is written: characters that
    the locale lacks become ASCII.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: PTH123, SIM115 - a stream
    codecs.register_error(_substitute.__name__, _substitute)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors=_substitute.__name__)


def flush() -> None:
    """Write what is still buffered. Raises OSError.

    After an error the rest is dropped: else the interpreter would try to write it again at its exit.
    """
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise
