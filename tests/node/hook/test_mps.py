"""Test which program counts as an MPS client: the daemon's file in the pipe directory decides; no daemon is asked."""

import os
import subprocess
from pathlib import Path

import pytest
from hooklab import HOOK, HOOK_FLAGS, clean_environment, compile_c

MAIN = """
#include <stdio.h>
#include <unistd.h>
#include "hook/gate/mps.h"
int main(void) {
  int free_before = dup(1);
  close(free_before);
  printf("%d", sp_mps_client());
  return dup(1) - free_before; /* not 0: a descriptor stays open */
}
"""


@pytest.fixture
def default(tmp_path: Path) -> Path:
    """Return the directory that counts if the environment names none."""
    (tmp_path / "pipe").mkdir()
    return tmp_path / "pipe"


def is_client(default: Path, named: str | None = None, start: str = 'exec "$0"') -> bool:
    program, source = default.parent / "client", default.parent / "client.c"
    if not program.exists():
        source.write_text(MAIN)
        compile_c(program, *HOOK_FLAGS, f'-DSP_MPS_DIRECTORY="{default}"', source, HOOK / "gate" / "mps.c")
    env = clean_environment()
    env.pop("CUDA_MPS_PIPE_DIRECTORY", None)
    env |= {} if named is None else {"CUDA_MPS_PIPE_DIRECTORY": named}
    command = ["sh", "-c", start, program]
    return subprocess.run(command, env=env, capture_output=True, text=True, check=True).stdout == "1"


def test_without_a_daemon_nobody_is_a_client(default: Path, tmp_path: Path) -> None:
    (default / "control").touch()  # a daemon that has stopped leaves its socket
    assert not is_client(default)
    assert not is_client(default, "")
    assert not is_client(default, str(tmp_path / "nowhere"))
    assert not is_client(default, "/" + "x" * 5000)


def test_a_daemon_at_the_default_place_counts_while_it_lives(default: Path) -> None:
    file = default / "nvidia-cuda-mps-control.pid"
    file.write_text(f"{os.getpid()}\n")
    assert is_client(default)
    file.write_text(f"{2**22 + 1}\n")  # the pid of no process: the daemon was killed
    assert not is_client(default)
    assert not is_client(default, start='exec "$0" <&-')  # the file gets the number of the closed standard input
    file.write_text("")  # the daemon is about to write its pid
    assert is_client(default)


def test_a_directory_that_the_environment_names_is_believed(default: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    (default / "nvidia-cuda-mps-control.pid").write_text(str(os.getpid()))
    assert not is_client(default, str(other))
    (other / "nvidia-cuda-mps-control.pid").write_text(f"{2**22 + 1}\n")  # the daemon may be in another pid namespace
    assert is_client(default, str(other))
