"""Runs many tasks in parallel, each in a process of its own. No process outlives the command, however it ends."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any, Final, TypeVar, cast

from sharepod.cli.ending import SIGNALS, undisturbed
from sharepod.cli.errors import CliError

Task = TypeVar("Task")
Result = TypeVar("Result")

_PR_SET_PDEATHSIG: Final = 1


def side_by_side(function: Callable[[Task], Result], tasks: Sequence[Task], jobs: int) -> Iterator[Result]:
    """Yield the function's result for each task, in the order of the tasks. At most `jobs` tasks run at a time.

    Raises what the function raises, and CliError if the process of a task was killed.
    """
    context = multiprocessing.get_context("fork")
    # By our end of the pipe to a process: the index of its task, and the process.
    running: dict[Connection, tuple[int, BaseProcess]] = {}
    done: dict[int, Result] = {}
    waiting = list(enumerate(tasks))[::-1]  # reversed: the next task is taken from the end
    parent = os.getpid()
    try:
        for wanted in range(len(tasks)):
            while wanted not in done:
                while waiting and len(running) < jobs:
                    index, task = waiting.pop()
                    ours, theirs = context.Pipe(duplex=False)
                    process: BaseProcess = context.Process(
                        target=_work, args=(function, task, theirs, parent), daemon=True
                    )
                    running[ours] = index, process
                    # A terminal sends its signals to all processes: they wait until the new one handles them itself.
                    with undisturbed():
                        process.start()
                    theirs.close()
                for connection in cast("list[Connection]", wait([*running])):
                    index, working = running[connection]
                    done[index] = _receive(connection, working)
                    del running[connection]
            yield done.pop(wanted)
    finally:
        for _, left in running.values():
            if left.pid is not None:
                left.kill()
                left.join()


def _receive(connection: Connection, process: BaseProcess) -> Any:
    """Return the result that a process sends through `connection`, and wait for its end.

    Raises what the task raised, and CliError if the process was killed.
    """
    try:
        succeeded, result = connection.recv()
    except EOFError:
        process.join()
        raise CliError(
            f"a process of the simulation ended with {process.exitcode} (-9: killed, perhaps for memory): "
            "give fewer --jobs"
        ) from None
    process.join()
    connection.close()
    if not succeeded:
        raise result
    return result


def _work(function: Callable[[Task], Result], task: Task, results: Connection, parent: int) -> None:
    """Run one task, and send its outcome: True and the result, or False and the error. The main of a new process.

    If the process `parent`, the command, dies, the kernel kills this one.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent process ends its workers
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # the parent died before prctl
        return
    try:
        result: tuple[bool, object] = (True, function(task))
    except Exception as error:  # noqa: BLE001 - it is raised where the task came from
        result = (False, error)
    results.send(result)
