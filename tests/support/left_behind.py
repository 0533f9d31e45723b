"""A pytest plugin: each test fails for what it leaves behind itself, never for what an earlier one has left.

A socket, transport, file or task that nobody closed is told when it is collected, and that is an error here. So
what a test leaves is collected at its end. Threads and processes are compared with those of its beginning.
"""

import gc
import threading
import time
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest

PATIENCE_S = 5.0
"""What is ending already has this long."""

kept_threads: set[threading.Thread] = set()
kept_pids: set[int] = set()
"""What fixtures of several tests have started, even if a test asked for them in its middle."""


def children() -> set[tuple[int, str]]:
    """Return the pid and command of each process that was started here and not waited for."""
    found = set()
    for task in Path("/proc/self/task").iterdir():
        try:
            pids = (task / "children").read_text().split()
        except OSError:  # the thread has ended meanwhile
            continue
        for pid in pids:
            try:
                words = Path("/proc", pid, "cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            found.add((int(pid), b" ".join(words[:4]).decode(errors="replace").strip()))
    return found


def is_kept(thread: threading.Thread) -> bool:
    """Whether a thread is no test's: one made in C, or the poller that gRPC has while any object of its lives."""
    return thread in kept_threads or isinstance(thread, threading._DummyThread) or "_poll_wrapper" in thread.name


def wait_for_nothing(threads: set[threading.Thread], pids: set[int]) -> list[str]:
    """Return what is there beyond these threads and processes, once it has had time to end."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        left = [f"thread {thread.name}" for thread in set(threading.enumerate()) - threads if not is_kept(thread)]
        left += [f"process {pid} ({command})" for pid, command in children() if pid not in pids | kept_pids]
        if not left or time.monotonic() > deadline:
            return left
        time.sleep(0.02)


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(fixturedef: pytest.FixtureDef[object]) -> Generator[None, object, object]:
    if fixturedef.scope == "function":
        return (yield)
    threads, pids = set(threading.enumerate()), {pid for pid, _ in children()}
    try:
        return (yield)
    finally:
        kept_threads.update(set(threading.enumerate()) - threads)
        kept_pids.update({pid for pid, _ in children()} - pids)


@pytest.fixture(autouse=True)
def _nothing_is_left_behind() -> Iterator[None]:
    gc.freeze()  # what is there before the test is not its own: collecting goes through the rest alone
    threads, pids = set(threading.enumerate()), {pid for pid, _ in children()}
    yield
    gc.collect()
    left = wait_for_nothing(threads, pids)
    assert not left, f"the test has left behind: {', '.join(left)}"
