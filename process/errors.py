"""The errors that keep a process from starting: a text of one line, with the limit and the remedy, and an exit code."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING, ClassVar, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

EXIT_FAILURE: Final = 1
EXIT_USAGE: Final = 2
_LIKENESS: Final = 0.6
"""From 0 to 1: a known name must be at least so like an unknown one to be named as the remedy. difflib's default."""


class CannotStart(Exception):
    """The process cannot start. The operator can fix the cause."""

    exit_code: ClassVar[int] = EXIT_FAILURE


class SettingsError(CannotStart):
    """A flag, an environment variable, a line of the configuration file, or a file named by one of them is wrong."""

    exit_code = EXIT_USAGE


def unknown(what: str, name: str, known: Sequence[str], remedy: str = "") -> SettingsError:
    """Return the error for an unknown name. `what` is the kind of name, such as "flag".

    The error ends in the `known` name that is most like it. If none is, it ends in `remedy`, or in all known names.
    """
    near = difflib.get_close_matches(name, known, 1, _LIKENESS)
    cure = f"did you mean {near[0]}?" if near else remedy or f"known are {', '.join(known)}"
    return SettingsError(f"unknown {what} {name}: {cure}")
