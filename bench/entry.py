"""Begins and ends every `python -m bench…`: one line for a wrong flag, and nothing left over after a signal."""

import argparse
import math
import signal
import sys
import textwrap
from collections.abc import Callable
from types import FrameType
from typing import Any, NoReturn

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class _Help(argparse.RawDescriptionHelpFormatter):
    """Keeps the line breaks of the description, and never breaks a row's name at its hyphen."""

    def _split_lines(self, text: str, width: int) -> list[str]:
        return textwrap.wrap(" ".join(text.split()), width, break_on_hyphens=False)


class Parser(argparse.ArgumentParser):
    """Reports a wrong flag in one line. A flag must be written in full: half of one is a typo."""

    def __init__(self, *, allow_abbrev: bool = False, **settings: Any) -> None:
        super().__init__(allow_abbrev=allow_abbrev, formatter_class=_Help, **settings)

    def error(self, message: str) -> NoReturn:
        """Exit with code 2."""
        self.exit(2, f"{self.prog}: {message}: see `{self.prog} --help`\n")


def duration(text: str) -> float:
    """Read a duration. Raises ArgumentTypeError unless it is above zero and finite."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is no duration: give a number above 0")
    return value


def run(main: Callable[[], int], *failures: type[Exception]) -> NoReturn:
    """Exit with `main`'s code, with 128 + number after a signal, or with 1 and one line after one of `failures`.

    After a signal, `with` and `finally` blocks still run: programs, agents and files in memory are removed. Signals
    that the caller ignores (nohup) stay ignored.
    """
    for number in _SIGNALS:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _end)
    try:
        code = main()
    except failures as error:
        print(f"cannot go on: {' '.join(str(error).split())}", file=sys.stderr)
        code = 1
    sys.exit(code)


def _end(number: int, _frame: FrameType | None) -> NoReturn:
    # A second signal must not interrupt the cleanup.
    for other in _SIGNALS:
        signal.signal(other, signal.SIG_IGN)
    sys.exit(128 + number)
