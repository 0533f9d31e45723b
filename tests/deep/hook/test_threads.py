"""Test hook and arbiter as threads of one program under the sanitizers, as ThreadSanitizer sees only one process."""

import re
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hooklab import build_threads

SANITIZERS = {
    "thread": ["-fsanitize=thread", "-Wno-tsan"],  # it does not model fences; the words that they order are atomics
    "address": ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"],
}


@pytest.fixture
def regions() -> Iterator[Path]:
    """Yield a temporary directory on tmpfs for the shares."""
    with tempfile.TemporaryDirectory(prefix="sharepod-threads-", dir="/dev/shm") as directory:
        yield Path(directory)


@pytest.fixture(scope="module", params=list(SANITIZERS))
def program(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_threads(tmp_path_factory.mktemp("threads") / "threads", *SANITIZERS[request.param])


def test_hook_and_arbiter_share_a_device_without_a_race(program: Path, regions: Path) -> None:
    done = subprocess.run([program, regions, "4000"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    found = re.fullmatch(r"launches (\d+) (\d+) turns (\d+) outside (\d+) passed \d+ cogrants (\d+)\n", done.stdout)
    assert found, done.stdout
    hooked, by_hand, turns, outside, cogrants = map(int, found.groups())
    assert hooked > 1000
    assert by_hand > 100
    assert turns >= 10
    # Two shares may be in at once only after a co-grant, when a loaded machine makes a drain exceed its bound.
    assert outside == 0 or cogrants > 0


def test_a_process_ends_beside_its_keeper_without_a_race(program: Path, regions: Path) -> None:
    for attempt in range(20):
        directory = regions / str(attempt)
        directory.mkdir()
        done = subprocess.run([program, directory, "200"], capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr
