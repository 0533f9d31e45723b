"""Where the command writes: one rich console for tables, plain lines for machines and for errors.

rich obeys NO_COLOR by itself and writes no colour to a pipe.
"""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

PIPE_WIDTH = 200
"""Columns when the output is no terminal: a table in a file is not cut to the width of nobody's screen."""


@cache
def console() -> Console:
    """Return the console on stdout."""
    from rich.console import Console

    return Console(highlight=False, width=None if sys.stdout.isatty() else PIPE_WIDTH, soft_wrap=False)


def show(renderable: RenderableType) -> None:
    """Print something for people."""
    console().print(renderable)


def show_json(value: object) -> None:
    """Print dataclasses, lists and mappings as JSON for machines."""
    json.dump(value, sys.stdout, default=_plain, indent=2, ensure_ascii=False)
    sys.stdout.write("\n")


def _plain(value: object) -> object:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"no JSON for {type(value).__name__}")


def note(text: str) -> None:
    """Print one line to stderr: what happens, beside the output proper."""
    sys.stderr.write(f"sharepod: {text}\n")


def error_line(text: str) -> None:
    """Print one error line to stderr."""
    sys.stderr.write(f"error: {' '.join(text.split())}\n")
