"""Ends a command in order: on a signal its `with` and `finally` blocks still run, and a second signal is ignored.

After SIGKILL nothing can run. Then the kernel ends the processes that were started for the command alone.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Final, NoReturn

_RUN_UNTIL_PARENT_ENDS: Final = """
import ctypes, os, runpy, signal
signal.pthread_sigmask(signal.SIG_UNBLOCK, {signals})
ctypes.CDLL(None).prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG
if os.getppid() != {parent}:  # it died before we could ask for that
    raise SystemExit
runpy.run_module("sharepod.cli", run_name="__main__")
"""
SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""The signals that ask a command to end."""
_AGAIN_S: Final = 0.01
"""How long after Python has dropped an exception it is raised again."""


def end_in_order() -> None:
    """Turn Ctrl-C into KeyboardInterrupt; SIGTERM and a closed terminal into SystemExit with code 128 + number.

    Signals that the caller ignores (nohup) stay ignored. In some places, such as a finaliser or the callback of an
    import, Python drops an exception. Such an ending is raised again a moment later.
    """
    for number in SIGNALS:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _end)
    sys.unraisablehook = _end_later


@contextmanager
def undisturbed() -> Iterator[None]:
    """Hold back the signals that end the command while the block starts a process and stores its handle.

    A signal between the two would end the command and leave the process behind. The process inherits the mask and has
    to lift it itself.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def command_that_ends_with_us() -> list[str]:
    """Return a `sharepod` command that gets SIGTERM when the thread that starts it dies, also after an exec."""
    signals = {int(number) for number in SIGNALS}
    return [sys.executable, "-c", _RUN_UNTIL_PARENT_ENDS.format(parent=os.getpid(), signals=signals)]


def _end_later(dropped: sys.UnraisableHookArgs) -> None:
    """Raise a KeyboardInterrupt or SystemExit that Python has dropped again. Report other exceptions as usual."""
    ending = dropped.exc_value
    if not isinstance(ending, KeyboardInterrupt | SystemExit):
        sys.__unraisablehook__(dropped)
        return

    def end(_number: int, _frame: FrameType | None) -> NoReturn:
        """Raise the dropped ending, as the handler of SIGALRM."""
        raise ending

    signal.signal(signal.SIGALRM, end)
    signal.setitimer(signal.ITIMER_REAL, _AGAIN_S)


def _end(number: int, _frame: FrameType | None) -> NoReturn:
    """Handle a signal: raise the exception that ends the command."""
    # A second signal must not interrupt the cleanup.
    for other in SIGNALS:
        signal.signal(other, signal.SIG_IGN)
    if number == signal.SIGINT:
        raise KeyboardInterrupt
    sys.exit(128 + number)
