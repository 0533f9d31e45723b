"""Containers as the agent and the driver see them: cgroups with an id of 64 hexadecimal digits for a name."""

import contextlib
import os
import secrets
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest


def _tree() -> Path:
    """Return where cgroup v2 is mounted."""
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        fields, _, kind = line.partition(" - ")
        if kind.startswith("cgroup2 "):
            return Path(fields.split()[4])
    pytest.skip("cgroup v2 is not mounted here")


def _own() -> Path:
    lines = Path("/proc/self/cgroup").read_text().splitlines()
    [path] = [line.removeprefix("0::/") for line in lines if line.startswith("0::/")]
    return _tree() / path


@dataclass(frozen=True)
class Container:
    """A cgroup of this test alone."""

    directory: Path

    @contextlib.contextmanager
    def inside(self) -> Iterator[None]:
        """Be in the container: what is started now stays there."""
        before = _own()
        (self.directory / "cgroup.procs").write_text(str(os.getpid()))
        try:
            yield
        finally:
            (before / "cgroup.procs").write_text(str(os.getpid()))

    def take(self, pid: int) -> None:
        """Have a process move in."""
        (self.directory / "cgroup.procs").write_text(str(pid))


@contextlib.contextmanager
def container(name: str = "docker-{}.scope", within: Container | None = None) -> Iterator[Container]:
    """Make a container, `name` with {} for the id, and remove it; what is still in it then moves out."""
    directory = (within.directory if within else _own()) / name.format(secrets.token_hex(32))
    try:
        directory.mkdir()
    except OSError as error:
        pytest.skip(f"cgroups cannot be made here: {error}")
    try:
        yield Container(directory)
    finally:
        end = time.monotonic() + 30
        while directory.is_dir():
            for pid in (directory / "cgroup.procs").read_text().split():
                with contextlib.suppress(OSError):
                    (directory.parent / "cgroup.procs").write_text(pid)
            try:
                directory.rmdir()
            except OSError:  # what has been killed in it is not all gone yet
                if time.monotonic() > end:
                    raise
                time.sleep(0.02)
