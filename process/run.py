"""Runs a process from its settings to its exit code: log, signals, work until a signal comes, drain.

Exit codes: 0 after a signal, 1 when it cannot start or its work ends, 2 for wrong settings. A failure is one line.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import resource
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol, TypeVar

from sharepod.process import log
from sharepod.process.errors import EXIT_FAILURE, CannotStart, SettingsError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, Mapping


_LOOK_S: Final = 2.0
"""The time between two looks for a file that is awaited."""
_TELL_LOOKS: Final = 150
"""While a file is awaited, that is told once in so many looks: every five minutes."""


class Logged(Protocol):
    """The settings that tell how a process logs."""

    @property
    def log_format(self) -> str:
        """`text` or `json`."""

    @property
    def log_level(self) -> str:
        """The least severity that is logged."""


Settings = TypeVar("Settings", bound=Logged)


def run(
    program: str,
    settings: Settings,
    serve: Callable[[Settings, asyncio.Event], Coroutine[None, None, None]],
    *,
    expected: Mapping[type[Exception], int] | None = None,
    hang_up: bool = False,
    patience_s: float | None = None,
) -> int:
    """Await `serve` with the settings and an event that SIGTERM or SIGINT sets; return the exit code.

    `program` is the name in front of errors. A CannotStart, or an error of `expected`, becomes one line on stderr;
    `expected` has the exit code of each of its errors. `hang_up`: the end of the terminal (SIGHUP) sets the event too.
    `serve` may wait for another process: so it is cancelled `patience_s` after the signal; None: never.
    """
    log.set_up(settings.log_format, settings.log_level)
    try:
        asyncio.run(_until_stopped(serve, settings, hang_up=hang_up, patience_s=patience_s))
    except CannotStart as error:
        sys.stderr.write(f"{program}: {error}\n")
        return error.exit_code
    except tuple(expected or ()) as error:
        sys.stderr.write(f"{program}: {error}\n")
        return next(code for kind, code in (expected or {}).items() if isinstance(error, kind))
    except BaseExceptionGroup as group:
        for cause in group.exceptions:
            logging.getLogger("sharepod").critical("%s ended", program, exc_info=cause)
        return EXIT_FAILURE
    return 0


async def _until_stopped(
    serve: Callable[[Settings, asyncio.Event], Coroutine[None, None, None]],
    settings: Settings,
    *,
    hang_up: bool,
    patience_s: float | None,
) -> None:
    """Await `serve`, with an event that a signal sets; raise what it raises. The parameters are those of `run`.

    A cancellation `patience_s` after a signal is an orderly end: nothing is raised.
    """
    loop, stopping = asyncio.get_running_loop(), asyncio.Event()
    work = asyncio.create_task(serve(settings, stopping))
    given_up = False

    def give_up() -> None:
        """Cancel `serve`; note whether it was still at work."""
        nonlocal given_up
        given_up = work.cancel()

    def stop() -> None:
        """Take a signal: set the event, and give up later."""
        stopping.set()
        if patience_s is not None:
            loop.call_later(patience_s, give_up)

    signals = [signal.SIGTERM, signal.SIGINT]
    # nohup starts a process with SIGHUP ignored: then the end of the terminal must not stop it.
    if hang_up and signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        signals.append(signal.SIGHUP)
    for number in signals:
        loop.add_signal_handler(number, stop)
    try:
        await work
    except asyncio.CancelledError:
        if not given_up:
            raise


async def work_until(end: Awaitable[object], works: Iterable[Coroutine[None, None, None]]) -> None:
    """Run all of `works` at the same time until `end` is done, then cancel them.

    None of them should end by itself. If one ends or fails, all end, and a BaseExceptionGroup is raised.
    """
    async with asyncio.TaskGroup() as tasks:
        running = [tasks.create_task(endless(work)) for work in works]
        await end
        for task in running:
            task.cancel()


async def drained(stopping: asyncio.Event, seconds: float, begin: Callable[[], None]) -> None:
    """Wait until `stopping` is set, call `begin`, which begins the drain, and wait `seconds` more.

    In that time the process still serves clients that have not heard of its end.
    """
    await stopping.wait()
    begin()
    await asyncio.sleep(seconds)


async def awaited(path: str, stopping: asyncio.Event, tell: Callable[[], None]) -> bool:
    """Return True as soon as there is a file at `path`, or False when `stopping` is set before.

    While the file is missing, `tell` is called at the first look and then once in _TELL_LOOKS looks.
    """
    looks = 0
    while not Path(path).exists():
        if stopping.is_set():
            return False
        if looks % _TELL_LOOKS == 0:
            tell()
        looks += 1
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(stopping.wait(), _LOOK_S)
    return True


async def endless(work: Coroutine[None, None, None]) -> None:
    """Await work that never ends by itself. Raises RuntimeError if it ends: the process must not go on without it.

    A CancelledError that a library raises inside it is such an end, too: a TaskGroup would take it for an orderly one.
    """
    try:
        await work
    except asyncio.CancelledError:
        task = asyncio.current_task()
        if task is not None and task.cancelling():  # this task itself was cancelled
            raise
    raise RuntimeError(f"{getattr(work, '__qualname__', work)} ended")


@contextlib.contextmanager
def listening() -> Iterator[None]:
    """Turn the OSError of a listener that cannot be opened into a SettingsError."""
    try:
        yield
    except OSError as error:
        raise SettingsError(f"cannot listen: {error.strerror}: choose another address or port") from None


def take_open_files(least: int = 0) -> None:
    """Raise this process's limit of open files to its hard limit. Raises CannotStart if that is below `least`."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < least:
        raise CannotStart(
            f"the limit of open files is {hard}, at least {least} are needed: "
            "raise it with ulimit -n 4096, or LimitNOFILE= in the unit"
        )
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
