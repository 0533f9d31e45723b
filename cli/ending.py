"""Ends a command in order: a signal to end runs what its `with` and `finally` promise, and is not answered twice."""

from __future__ import annotations

import signal
import sys
from types import FrameType
from typing import Final, NoReturn

_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def end_in_order() -> None:
    """Turn Ctrl-C into KeyboardInterrupt and SIGTERM and a closed terminal into SystemExit, with code 128 + number.

    What the caller ignores (nohup) stays ignored.
    """
    for number in _SIGNALS:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _end)


def _end(number: int, _frame: FrameType | None) -> NoReturn:
    # A second one would cut off the tidying up.
    for other in _SIGNALS:
        signal.signal(other, signal.SIG_IGN)
    if number == signal.SIGINT:
        raise KeyboardInterrupt
    sys.exit(128 + number)
