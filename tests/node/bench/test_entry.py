"""Test how benches begin and end: with an unknown flag, and when a bench is killed."""

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from rig.node import Node
from rig.until import until

COMMANDS = ["bench", "bench.stress", "bench.gpu", "bench.cluster.dashboard"]
KILLED = """
import time
from rig.node import Node
with Node() as node:
    print(node.socket.parent.parent, node._agent.pid, flush=True)
    time.sleep(60)
"""


@pytest.mark.parametrize(
    "arguments",
    [
        *([command, "--nonsense"] for command in COMMANDS),
        ["bench", "--hel"],
        ["bench", "--only", "shar"],
        ["bench.stress", "--seconds", "nan"],
        ["bench.stress", "--seconds", "-1"],
        ["bench.stress", "--seed", "x"],
        ["bench.gpu", "--minutes", "0"],
    ],
    ids=" ".join,
)
def test_a_wrong_flag_is_one_line_that_names_the_help_and_does_nothing(repo_root: Path, arguments: list[str]) -> None:
    command = [sys.executable, "-m", *arguments]
    done = subprocess.run(command, cwd=repo_root, capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1), done.stderr
    assert done.stderr.endswith(" --help`\n")


CTRL_C = """
import os, runpy, signal, sys
class Finder:
    def find_spec(self, name, path, target=None):
        if name == "bench.rows":
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Finder())
runpy.run_module("bench", run_name="__main__", alter_sys=True)
"""


def test_a_ctrl_c_while_the_bench_imports_its_parts_ends_it_without_a_traceback(repo_root: Path) -> None:
    done = subprocess.run([sys.executable, "-c", CTRL_C], cwd=repo_root, capture_output=True, check=False, timeout=30)
    assert (done.returncode, done.stdout, done.stderr) == (130, b"", b"")


def ended(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return "\nState:\tZ" in Path(f"/proc/{pid}/status").read_text(encoding="utf-8")


def test_a_bench_that_is_killed_leaves_no_agent_behind_and_its_files_to_the_next_one(repo_root: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", KILLED], cwd=repo_root, stdout=subprocess.PIPE, text=True) as bench:
        assert bench.stdout is not None
        directory, agent = bench.stdout.readline().split()
        try:
            assert not ended(int(agent))
            bench.kill()
            bench.wait()
            until(lambda: ended(int(agent)))
            with Node(hook=False):  # the next bench, or one that ran beside the killed one, removes its directory
                assert not Path(directory).exists()
        finally:
            bench.kill()
            if not ended(int(agent)):
                os.kill(int(agent), signal.SIGKILL)
            shutil.rmtree(directory, ignore_errors=True)
