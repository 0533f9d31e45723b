"""If `sharepod run --private` is PID 1 of a container, it stays PID 1, and its child becomes the program.

It must not become the program itself. The private agent detaches, so it becomes a child of PID 1: the program would
have a child that it never started. A program that waits for all its children would then wait for the agent, which waits
for the program's end.
"""

from __future__ import annotations

import contextlib
import os
import signal
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Set as AbstractSet

_TERMINAL: Final = 0
"""The file descriptor of the terminal, if there is one."""
_BY_SIGNAL: Final = 128
"""A shell adds this to the number of the signal that ended a program."""


def stay_first() -> None:
    """If this process is PID 1, fork, and return in the child. PID 1 passes signals on and ends with its status."""
    if os.getpid() != 1:
        return
    all_signals = signal.valid_signals()
    # The kernel drops a signal for PID 1 that has no handler and is not blocked. A blocked one is queued for sigwait.
    old_mask = signal.pthread_sigmask(signal.SIG_BLOCK, all_signals)
    old_handler = signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    child = os.fork()
    if child:
        os._exit(_serve(child, all_signals))
    _take_terminal()
    signal.signal(signal.SIGCHLD, old_handler)
    signal.pthread_sigmask(signal.SIG_SETMASK, old_mask)


def _take_terminal() -> None:
    """Make this process a job of its own. Else it would get Ctrl-C twice: from the terminal, and from PID 1."""
    with contextlib.suppress(OSError):
        has_terminal = os.isatty(_TERMINAL) and os.tcgetpgrp(_TERMINAL) == os.getpgrp()
        os.setpgid(0, 0)
        if has_terminal:
            os.tcsetpgrp(_TERMINAL, os.getpgrp())


def _serve(child: int, signals: AbstractSet[signal.Signals]) -> int:
    """Pass each signal on to the child, and reap every ended process. Return the child's status as a shell tells it."""
    while True:
        number = signal.sigwait(signals)
        if number != signal.SIGCHLD:
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, number)
            continue
        ended, status = os.waitpid(-1, os.WNOHANG)
        while ended:
            if ended == child:
                code = os.waitstatus_to_exitcode(status)
                return code if code >= 0 else _BY_SIGNAL - code
            try:
                ended, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                break
