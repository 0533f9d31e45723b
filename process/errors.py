"""Why a process does not start: one line that says what is wrong, the bound and the remedy; and its exit code."""

from __future__ import annotations

from typing import ClassVar


class CannotStart(Exception):
    """Something that the operator can put right keeps the process from starting."""

    exit_code: ClassVar[int] = 1


class SettingsError(CannotStart):
    """A flag, an environment variable, a line of the configuration file, or a file that one of them names is wrong."""

    exit_code = 2
