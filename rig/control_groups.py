"""Makes control groups, of either version, for programs that a test puts into them."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from rig.until import until

_ROOT = Path("/sys/fs/cgroup")


@contextmanager
def control_group(hierarchy: str, needs: str = "cgroup.procs") -> Iterator[Path]:
    """Make a group in a hierarchy of version 1, or in version 2's where there is none; yield its directory.

    It must be empty in the end. Skips the test where no group with the file `needs` can be made.
    """
    parents = (_ROOT / hierarchy, _ROOT)
    parent = next((p for p in parents if (p / "cgroup.procs").exists() and (p / needs).exists()), parents[0])
    group = parent / f"sharepod-test-{os.getpid()}"
    try:
        group.mkdir()
    except OSError as error:
        pytest.skip(f"no control group of {hierarchy} can be made here: {error}")
    try:
        yield group
    finally:
        until(lambda: not (group / "cgroup.procs").read_text())
        group.rmdir()
