"""The errors of the command: one line on stderr (`error: cause: cure`) and an exit code."""

from __future__ import annotations

EXIT_FAILURE = 1
EXIT_USAGE = 2
EXIT_NO_AGENT = 69
"""EX_UNAVAILABLE of sysexits.h: the agent cannot be reached."""
EXIT_REFUSED = 75
"""EX_TEMPFAIL of sysexits.h: the request does not fit now. It may fit when another share is released."""
EXIT_NOT_EXECUTABLE = 126
EXIT_NOT_FOUND = 127


class CliError(Exception):
    """An error that the user can fix. `str(error)` is the whole line: the cause, then the remedy."""

    def __init__(self, text: str, exit_code: int = EXIT_FAILURE, remedy: str = "") -> None:
        """`text` is the whole line; if `remedy` is given, only what comes before it."""
        super().__init__(f"{text}: {remedy}" if remedy else text)
        self.exit_code = exit_code
        self.cause = text
        self.remedy = remedy


class UsageError(CliError):
    """A flag or an argument is wrong."""

    def __init__(self, text: str) -> None:
        super().__init__(text, EXIT_USAGE)
