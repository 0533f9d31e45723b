"""Test foreign interposers in the bench: each has a column that is measured under it instead of under the hook."""

import dataclasses
import json
import subprocess
import sys
from pathlib import Path

import pytest
from gpu_runs import bench_gpu

from bench import peer, rows, table
from bench.scale import TEST
from bench.table import Line

STAND_IN = Path(__file__).parents[2] / "support" / "bench" / "c" / "slow_launch.c"
PAUSE_US = 5000
"""The pause before each launch of 500 µs of work: the device is used at most 10 %, where the row's limit is 30 %."""


@pytest.fixture(scope="module")
def stand_in(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Compile the stand-in for a peer and return its path."""
    library = tmp_path_factory.mktemp("peer") / "slow.so"
    flags = ["-std=gnu11", "-O2", "-Wall", "-Wextra", "-Werror", "-fPIC", "-shared", "-fvisibility=hidden"]
    subprocess.run(["cc", *flags, "-o", str(library), str(STAND_IN), "-ldl"], check=True)
    return library


def limit_errors(lines: list[Line]) -> list[tuple[float, float]]:
    """Return how far the device's use is from the limit, under the hook and under the peer, in pp."""
    found = [line for line in lines if "pp" in line.result]
    assert found
    return [(float(line.result.split()[0]), float(line.beside["slow"].split()[0])) for line in found]


def test_the_column_of_a_peer_is_measured_under_it(
    stand_in: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tiny = dataclasses.replace(TEST, step_ns=300_000_000, settle_ns=200_000_000, short_steps=2)
    monkeypatch.setattr(rows, "QUICK", tiny)
    monkeypatch.setattr(rows.pauses, "LIMITS", (rows.pauses.LIMIT,))
    flags = ["--quick", "--only", "limit", "-o", "json", "--peer", f"slow={stand_in}"]
    monkeypatch.setattr(sys, "argv", ["bench", *flags, "--peer-env", f"slow:PAUSE_US={PAUSE_US}"])
    rows.main()
    lines = [Line(**fields) for fields in json.loads(capsys.readouterr().out)["lines"]]
    ((hook_pp, peer_pp),) = limit_errors(lines)
    assert hook_pp < 15  # the hook holds the program to the limit
    assert 19 < peer_pp < 31  # a bare device would be off by 70 pp
    shown = table.markdown(lines)
    assert "slow" in [cell.strip() for cell in shown.splitlines()[0].split("|")]
    assert f"| {lines[0].beside['slow']} " in shown


def test_bench_gpu_has_the_column_too_and_it_fails_alone(stand_in: Path, repo_root: Path, tmp_path: Path) -> None:
    broken = tmp_path / "broken.so"
    broken.write_bytes(b"\x7fELF, but not of a library")
    flags = ["--simulated", "--only", "limit", "--results", str(tmp_path), "--peer-env", f"slow:PAUSE_US={PAUSE_US}"]
    done = bench_gpu(repo_root, *flags, "--peer", f"slow={stand_in}", "--peer", f"broken={broken}")
    (written,) = tmp_path.glob("*.json")
    (row,) = json.loads(written.read_text(encoding="utf-8"))["rows"]
    lines = [Line(**fields) for fields in row["lines"]]
    ((_, peer_pp),) = limit_errors(lines)
    assert 19 < peer_pp < 31
    assert done.returncode == 0, done.stderr
    assert lines[0].beside["slow"] in done.stdout
    # The loader skips a library that it cannot load. Such a program runs bare, and must not count as a run of the peer.
    says = f"failed: ProgramFailed: {broken} is not loaded into the programs"
    assert all(line.beside["broken"].startswith(says) for line in lines)


def test_lines_meet_by_their_case_and_a_program_that_fails_under_a_peer_is_the_peers_result() -> None:
    def fail() -> list[Line]:
        raise ValueError("it | breaks\nbadly")

    (line,) = table.beside([Line("a", "", "1")], "x", *peer.attempt(fail))
    assert line.beside == {"x": "failed: it / breaks badly"}
    lines = [Line("drained (bare chain 3.4 µs)", "", "1"), Line("the bill", "", "2")]
    found = table.beside(lines, "x", [Line("drained (bare chain 9.9 µs)", "", "7")])
    assert [line.beside["x"] for line in found] == ["7", "not measured"]


@pytest.mark.parametrize("module", ["bench", "bench.gpu"])
@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (["--peer", "a"], "--peer a: give NAME=LIBRARY.so"),
        (["--peer", "a=/nowhere.so"], "--peer a=/nowhere.so: No such file or directory: /nowhere.so"),
        (["--peer", "a=README.md"], "README.md is not an ELF file: give a shared library"),
        (["--peer", f"a={sys.executable}", "--peer", f"a={sys.executable}"], "the name 'a' is taken: give another"),
        (["--peer", f"no hook={sys.executable}"], "the name 'no hook' is taken: give another"),
        (["--peer-env", "a:B=1"], "--peer-env a:B=1: give NAME:VAR=VALUE, where NAME is one of none"),
        (["--peer", f"a={sys.executable}", "--peer-env", "a:B"], "--peer-env a:B: give NAME:VAR=VALUE"),
        (["--peer", f"a={sys.executable}", "--peer-env", "a:LD_PRELOAD=x"], "LD_PRELOAD is the peer's library itself"),
    ],
)
def test_a_flag_that_names_no_peer_is_one_line(repo_root: Path, module: str, flags: list[str], says: str) -> None:
    command = [sys.executable, "-m", module, *flags]
    done = subprocess.run(command, cwd=repo_root, capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1), done.stderr
    assert says in done.stderr
