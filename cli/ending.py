"""Ends a command in order: a signal to end runs what its `with` and `finally` promise, and is not answered twice.

Where nothing can run any more, after SIGKILL, the kernel ends what was started for the command alone.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Final, NoReturn

_ENDS_WITH_PARENT: Final = """
import ctypes, os, runpy, signal
signal.pthread_sigmask(signal.SIG_UNBLOCK, {signals})
ctypes.CDLL(None).prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG
if os.getppid() != {parent}:  # it died before we could ask for that
    raise SystemExit
runpy.run_module("sharepod.cli", run_name="__main__")
"""
SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""Those that ask a command to end."""
_AGAIN_S: Final = 0.01


def end_in_order() -> None:
    """Turn Ctrl-C into KeyboardInterrupt and SIGTERM and a closed terminal into SystemExit, with code 128 + number.

    What the caller ignores (nohup) stays ignored. Where Python cannot raise, as in a finaliser or the callback of an
    import, it drops what is raised; then it is raised again a moment later.
    """
    for number in SIGNALS:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _end)
    sys.unraisablehook = _end_later


@contextmanager
def undisturbed() -> Iterator[None]:
    """Hold back the signals that ask the command to end, until a process that it starts is also noted to be ended.

    That process inherits the mask, and has to lift it for itself.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def command_that_ends_with_us() -> list[str]:
    """Return `sharepod` as a command that gets SIGTERM when the thread that starts it dies; so does what it becomes."""
    signals = {int(number) for number in SIGNALS}
    return [sys.executable, "-c", _ENDS_WITH_PARENT.format(parent=os.getpid(), signals=signals)]


def _end_later(dropped: sys.UnraisableHookArgs) -> None:
    ending = dropped.exc_value
    if not isinstance(ending, KeyboardInterrupt | SystemExit):
        sys.__unraisablehook__(dropped)
        return

    def end(_number: int, _frame: FrameType | None) -> NoReturn:
        raise ending

    signal.signal(signal.SIGALRM, end)
    signal.setitimer(signal.ITIMER_REAL, _AGAIN_S)


def _end(number: int, _frame: FrameType | None) -> NoReturn:
    # A second one would cut off the tidying up.
    for other in SIGNALS:
        signal.signal(other, signal.SIG_IGN)
    if number == signal.SIGINT:
        raise KeyboardInterrupt
    sys.exit(128 + number)
