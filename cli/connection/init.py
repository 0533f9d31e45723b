"""PID 1 of a container, where a private agent is started: it stays, and the program becomes its child.

An orphan becomes a child of PID 1. Were that the program, it would have the agent as a child that it never started, and
one that waits for all its children would wait for the agent, which waits for the program's end.
"""

from __future__ import annotations

import contextlib
import os
import signal
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Set as AbstractSet

_TERMINAL: Final = 0
"""The descriptor of the terminal, if there is one."""
_BY_SIGNAL: Final = 128
"""What a shell adds to the number of the signal that ended a program."""


def stay_first() -> None:
    """Where this process is PID 1, go on as a child of it; it hands signals on and ends with the child's status."""
    if os.getpid() != 1:
        return
    all_signals = signal.valid_signals()
    # Blocked, not handled: PID 1 gets no signal that it would not handle, but every one that it has blocked.
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, all_signals)
    about_children = signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    child = os.fork()
    if child:
        os._exit(_serve(child, all_signals))
    _take_terminal()
    signal.signal(signal.SIGCHLD, about_children)
    signal.pthread_sigmask(signal.SIG_SETMASK, blocked)


def _take_terminal() -> None:
    """Make this process a job of its own, so that it does not get Ctrl-C twice: from the terminal, and handed on."""
    with contextlib.suppress(OSError):
        has_terminal = os.isatty(_TERMINAL) and os.tcgetpgrp(_TERMINAL) == os.getpgrp()
        os.setpgid(0, 0)
        if has_terminal:
            os.tcsetpgrp(_TERMINAL, os.getpgrp())


def _serve(child: int, signals: AbstractSet[signal.Signals]) -> int:
    """Hand on each signal, and reap whatever ends; return the child's status as a shell tells it."""
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
