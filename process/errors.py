"""Why a process does not start: one line that says what is wrong, the bound and the remedy; and its exit code."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING, ClassVar, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

EXIT_FAILURE: Final = 1
EXIT_USAGE: Final = 2


class CannotStart(Exception):
    """Something that the operator can put right keeps the process from starting."""

    exit_code: ClassVar[int] = EXIT_FAILURE


class SettingsError(CannotStart):
    """A flag, an environment variable, a line of the configuration file, or a file that one of them names is wrong."""

    exit_code = EXIT_USAGE


def unknown(what: str, name: str, known: Sequence[str], remedy: str = "") -> SettingsError:
    """Return the error of a name that does not exist, with the nearest one that does, else with the remedy or all."""
    near = difflib.get_close_matches(name, known, 1, 0.6)
    cure = f"did you mean {near[0]}?" if near else remedy or f"known are {', '.join(known)}"
    return SettingsError(f"unknown {what} {name}: {cure}")
