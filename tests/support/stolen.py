"""A pytest plugin that notes how much processor time a virtual machine was denied while a test judged real time.

The host of a virtual machine may run others while this machine has something to run; Linux counts that as stolen time.
A test of tests/timed with an assertion that fails meanwhile has judged the host. Such a test is called disturbed, and
`tests/run.py` runs it again. Only the host can steal time: programs of this machine, also those of the tests, do not
count.
"""

import os
import time
from collections.abc import Generator
from pathlib import Path

import pytest

STOLEN_MAX = 0.02
"""The part of all processors' time that may be stolen during a test. Above it a failure says nothing of the code.

Two processors of which 6 to 17 % were stolen failed two of 91 tests, those with 13 % and 15 %.
"""
STOLEN_MIN_S = 0.05
"""Less stolen time is no excuse, however short the test: it is counted in ticks of 10 ms."""
STOLEN = "stolen"
"""The name of the property of a test's report that holds the stolen part, if it is above `STOLEN_MAX`."""
STAT = Path(os.environ.get("SHAREPOD_TEST_STAT", "/proc/stat"))
STEAL_FIELD = 8
"""The place of the stolen time, in ticks of all processors, in the first line of /proc/stat: proc(5)."""
TICK_S = 1 / os.sysconf("SC_CLK_TCK")


def stolen_s() -> float:
    """Return the processor time that was stolen since the boot, in seconds of one processor."""
    return int(STAT.read_text().split(maxsplit=STEAL_FIELD + 1)[STEAL_FIELD]) * TICK_S


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    """Run a test and note what was stolen meanwhile."""
    began, before = time.monotonic(), stolen_s()
    try:
        return (yield)
    finally:
        stolen = stolen_s() - before
        part = stolen / ((time.monotonic() - began) * (os.cpu_count() or 1))
        if item.path.parts[-3] == "timed" and stolen >= STOLEN_MIN_S and part > STOLEN_MAX:
            item.user_properties.append((STOLEN, part))
