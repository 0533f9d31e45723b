"""Test that a program runs on, metered and capped, after a signal handler has left a driver call by a jump."""

import subprocess
from pathlib import Path

import pytest
from hooklab import C, compile_c, run
from metered import neighbour

from rig import REPO_ROOT
from rig.arbiter import Arbiter
from rig.gpu import MakeSimgpu
from rig.until import until
from sharepod.agent.shares.share import ShareState

GIB = 1 << 30
OUT_OF_MEMORY = 2
CALLS = ["context", "stream", "capture", "destroy"]


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the program that jumps."""
    output = tmp_path_factory.mktemp("jumping") / "jumping_program"
    return compile_c(output, "-O2", f"-I{REPO_ROOT / 'rig' / 'c'}", C / "jumping_program.c", "-lpthread", "-ldl")


@pytest.mark.parametrize("out_of", ["context", "stream", "event", "copy"])
def test_who_leaves_a_call_by_a_jump_is_metered_and_capped_as_before(
    out_of: str, program: Path, arbiter: Arbiter, simgpu: dict[str, str], tmp_path: Path
) -> None:
    share = arbiter.share(tmp_path / "share", memory_bytes=GIB)
    done = run([program, "from_wait", out_of], simgpu | share.env)
    assert (done.returncode, done.stdout) == (0, f"{OUT_OF_MEMORY}\n"), done.stderr
    assert (share.usage().launches, share.usage().passed) == (300, 0)


@pytest.mark.parametrize(
    ("mode", "where"),
    [
        *(("from_full", rest) for rest in ("1", "2", "3", "4", "5", "6", "1 word", "2 word", "3 word", "4 word")),
        *(("from_call", f"{room} {call}") for call in CALLS for room in range(6)),
    ],
)
def test_a_call_into_a_full_stream_may_be_left_by_a_jump(
    mode: str, where: str, program: Path, arbiter: Arbiter, simgpu: dict[str, str], tmp_path: Path
) -> None:
    share = arbiter.share(tmp_path / "share")
    pipe, command = subprocess.PIPE, [program, mode, where]
    with subprocess.Popen(command, env=simgpu | share.env, stdin=pipe, stdout=pipe, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "go\n"
        passed = share.usage().passed
        assert process.stdout.readline() == "done\n"
        until(lambda: share.usage().state is ShareState.IDLE, lambda: str(share.usage()), 5)
        assert share.usage().passed <= passed + 20, "its stream is not marked any more"
        process.communicate("\n")
    assert process.returncode == 0
    assert share.usage().launches >= 20 + 1 + 160


def test_a_launch_that_was_left_at_the_gate_waits_no_longer(
    program: Path, arbiter: Arbiter, make_simgpu: MakeSimgpu, tmp_path: Path
) -> None:
    gpu = make_simgpu()
    other, share = (arbiter.share(tmp_path / name) for name in ("other", "share"))
    pipe = subprocess.PIPE
    command = [program, "from_gate"]
    with (
        neighbour(gpu, other),
        subprocess.Popen(command, env=gpu.env | share.env, stdin=pipe, stdout=pipe, text=True) as process,
    ):
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline() == "pause\n"
        arbiter.native.pause_share(share.handle, True)
        process.stdin.write("\n")
        process.stdin.flush()
        assert process.stdout.readline() == "resume\n"
        arbiter.native.pause_share(share.handle, False)
        process.stdin.write("\n")
        process.stdin.close()
        assert process.wait(timeout=60) == 0
    assert share.usage().launches == 21
    assert share.usage().turns <= 21 + 2  # one turn for each launch, and those of the launch that was left


def test_a_signal_handler_that_jumps_out_of_the_start_of_the_helper_thread_leaves_it_running(
    program: Path, arbiter: Arbiter, simgpu: dict[str, str], tmp_path: Path
) -> None:
    share = arbiter.share(tmp_path / "share")
    library = compile_c(tmp_path / "signals.so", "-DSIGNALS", "-shared", "-fPIC", C / "helper_start.c", "-ldl")
    hook = share.env["LD_PRELOAD"]
    done = run([program, "from_start"], simgpu | share.env | {"LD_PRELOAD": f"{hook}:{library}"})
    assert done.returncode == 0, done.stderr
    assert (share.usage().launches, share.usage().passed) == (20, 0)
    assert share.usage().used_ns < int(done.stdout)
