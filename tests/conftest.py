"""Gives all tests the simulated GPU, the places of files, the choice by way and room, and the rule about skips.

In CI (``CI=true``) a test may be skipped only if it needs a real GPU. Any other skip means that CI lacks something that
it must have, so it fails the run.
"""

import asyncio
import inspect
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

# A failed assertion in a module of tests/support shows its values as an assertion in a test does.
pytest.register_assert_rewrite(
    *(path.stem for path in (Path(__file__).parent / "support").glob("**/*") if path.suffix == ".py" or path.is_dir())
)

pytest_plugins = ["stolen", "outcomes", "left_behind", "early"]

TESTS = Path(__file__).resolve().parent
WAYS = ("pure", "virtual", "node", "timed", "deep")
"""The folders of tests; each stands for a way in which its tests run."""
TREE = str(TESTS.parent)
os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # set before grpc loads: its C core would log to stderr
if TREE not in sys.path:  # for `rig` and `bench`; appended: the tree's `proto/` must not shadow an installed package
    sys.path.append(TREE)

from rig import REPO_ROOT  # noqa: E402
from rig.gpu import MakeSimgpu, SimulatedGpu  # noqa: E402

if TYPE_CHECKING:
    from rig.arbiter import Arbiter

TASKS_END_S = 5.0
"""How long tasks may take to end after their test has ended."""
IN_CI = os.environ.get("CI", "").lower() in {"1", "true", "yes"}


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Turn a skip into a failure in CI, unless the test needs a real GPU."""
    report = yield
    if IN_CI and report.skipped and not hasattr(report, "wasxfail") and "gpu" not in item.keywords:
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        report.outcome = "failed"
        report.longrepr = f"{item.nodeid}: skipped in CI, where only tests that need a real GPU may be: {reason}"
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Turn the skip of a whole module into a failure in CI."""
    report = yield
    if IN_CI and report.skipped:
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        report.outcome = "failed"
        report.longrepr = f"{report.nodeid}: a whole module skipped in CI: {reason}"
    return report


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add `--timed`, with which `make test` runs the tests that judge real time apart, and `--room`."""
    chosen = {"choices": ("also", "without", "only"), "default": "also"}
    parser.addoption("--timed", **chosen, help="whether tests that judge real time run: those of tests/timed")
    parser.addoption("--room", metavar="ROOM", help="run only the tests of this room: tests/*/ROOM")


def pytest_configure(config: pytest.Config) -> None:
    """Register a marker for each room, and refuse a `--room` that does not exist."""
    found = (path for path in TESTS.glob("*/*") if path.is_dir() and path.parent.name in WAYS)
    rooms = sorted({path.name for path in found if path.name != "__pycache__"})
    for room in rooms:
        config.addinivalue_line("markers", f"{room}: the tests of the room {room}")
    wanted = config.getoption("room")
    if wanted and wanted not in rooms:
        raise pytest.UsageError(f"ROOM={wanted} is no room: give one of {', '.join(rooms)}")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Skip the import of files that `--timed` and `--room` exclude: importing all files takes ten seconds."""
    named = any(Path(argument.partition("::")[0]).absolute() == collection_path for argument in config.args)
    of_a_room = collection_path.suffix == ".py" and place(collection_path)[1] != ""
    return True if of_a_room and not named and not is_wanted(collection_path, config) else None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark each test with its room, and deselect the tests that `--timed` and `--room` exclude."""
    parts: dict[bool, list[pytest.Item]] = {True: [], False: []}
    for item in items:
        _, room = place(item.path)
        if room:
            item.add_marker(room)
        parts[is_wanted(item.path, config)].append(item)
    items[:] = parts[True]
    if parts[False]:
        config.hook.pytest_deselected(items=parts[False])


def is_wanted(path: Path, config: pytest.Config) -> bool:
    """Tell whether `--timed` and `--room` select the tests of a file."""
    way, room = place(path)
    in_part = config.getoption("timed") == "also" or (way == "timed") == (config.getoption("timed") == "only")
    return in_part and config.getoption("room") in (None, room)


def place(path: Path) -> tuple[str, str]:
    """Return the way and the room of a test from its path: tests/WAY/ROOM/test_….py."""
    parts = path.parts[len(TESTS.parts) :] if path.is_relative_to(TESTS) else ()
    return (parts[0], parts[1]) if len(parts) > 2 and parts[0] in WAYS else (parts[0] if parts else "", "")


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a test that is a coroutine. It fails if tasks are left that do not end by themselves."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    names = inspect.signature(pyfuncitem.obj).parameters

    async def run() -> None:
        await pyfuncitem.obj(**{name: pyfuncitem.funcargs[name] for name in names})
        left = asyncio.all_tasks() - {asyncio.current_task()}
        if left:
            _, left = await asyncio.wait(left, timeout=TASKS_END_S)
        assert not left, f"the test has left tasks behind: {left}"

    asyncio.run(run())
    return True


@pytest.fixture
def make_simgpu() -> Iterator[MakeSimgpu]:
    """Make simulated GPUs: ``make_simgpu("2xH200,1xA10", SIMGPU_SLICE_US="1000")``."""
    states: list[Path] = []

    def make(devices: str = "1xH200", **settings: str) -> SimulatedGpu:
        directory = Path(tempfile.mkdtemp(prefix="simgpu-test-", dir="/dev/shm"))
        states.append(directory)
        return SimulatedGpu(directory / "state", devices, settings)

    yield make
    for directory in states:
        shutil.rmtree(directory)


@pytest.fixture
def simgpu(make_simgpu: MakeSimgpu) -> dict[str, str]:
    """Return an environment with one simulated H200 for this test alone; ``make_simgpu`` gives other devices."""
    return make_simgpu().env


@pytest.fixture
def arbiter() -> Iterator["Arbiter"]:
    """Yield a running arbiter without an agent."""
    from rig.arbiter import Arbiter

    with Arbiter() as arbiter:
        yield arbiter


@pytest.fixture(scope="session")
def repo_root() -> Path:
    """Return the root of the repository."""
    return REPO_ROOT


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Return the directory of traces and data that some checkouts have beside them."""
    directory = REPO_ROOT.parent / "shared" / "data"
    if not directory.is_dir():
        pytest.skip(f"{directory} is not there: this checkout has no shared data")
    return directory


def pytest_sessionstart() -> None:
    """Reset the signals that a run in the background or under nohup ignores: tests send them to programs they start."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
