"""A pytest plugin that fails each test for what it leaves behind itself, never for what an earlier test has left.

Python warns of an unclosed socket, transport, file or task when it collects it, and such a warning is an error here.
The plugin therefore collects garbage at the end of each test. It compares threads and processes with those that were
there when the test began.
"""

import gc
import threading
import time
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest

PATIENCE_S = 5.0
"""How long threads and processes that are already ending may take."""

kept_threads: set[threading.Thread] = set()
kept_pids: set[int] = set()
"""Processes (and above, threads) that fixtures of several tests have started, even in the middle of a test."""


def children() -> set[tuple[int, str]]:
    """Return the pid and command of each child of this process that has not been waited for."""
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
    """Return whether a thread belongs to no test: it was made in C, or is the poller of gRPC's objects."""
    return thread in kept_threads or isinstance(thread, threading._DummyThread) or "_poll_wrapper" in thread.name


def wait_for_nothing(threads: set[threading.Thread], pids: set[int]) -> list[str]:
    """Return what else than these threads and processes is left, after giving it time to end."""
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
    gc.freeze()  # the collection below skips all objects that were there before the test
    threads, pids = set(threading.enumerate()), {pid for pid, _ in children()}
    yield
    gc.collect()
    left = wait_for_nothing(threads, pids)
    assert not left, f"the test has left behind: {', '.join(left)}"
