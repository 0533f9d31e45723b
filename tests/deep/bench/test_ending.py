"""Test that the benches end in order on a signal."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from rig import REPO_ROOT
from rig.until import until


def agent_of(pid: int) -> tuple[int, Path] | None:
    """Return the pid and the directory of the agent that a bench has started."""
    for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
        with contextlib.suppress(OSError):  # a child that has ended
            words = Path(f"/proc/{child}/cmdline").read_text().split("\0")
            if "--runtime-directory" in words:
                return int(child), Path(words[words.index("--runtime-directory") + 1])
    return None


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize(
    "arguments", [["bench", "--quick", "--only", "share"], ["bench.stress"]], ids=["bars", "stress"]
)
def test_a_bench_that_a_signal_ends_leaves_no_agent_and_no_files(arguments: list[str], number: int) -> None:
    command = [sys.executable, "-m", *arguments]
    child = subprocess.Popen(command, cwd=REPO_ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def serving() -> tuple[int, Path] | None:
        assert child.poll() is None
        agent = agent_of(child.pid)
        return agent if agent and (agent[1] / "agent.sock").exists() else None

    agent = until(serving, timeout_s=90)
    assert agent
    time.sleep(0.5)  # by then programs run
    child.send_signal(number)
    _, err = child.communicate(timeout=20)
    assert child.returncode == 128 + number
    assert "Traceback" not in err
    pid, runtime = agent
    assert not runtime.parent.exists()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
