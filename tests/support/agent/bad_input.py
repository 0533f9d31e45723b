"""Helpers for tests of bad input: programs in a share, and ways to damage the region's files or the driver."""

import mmap
import os
import re
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from rig import REPO_ROOT
from rig.agent import RunningAgent, metered, python
from rig.until import until
from sharepod.proto import v1_pb2 as pb

HEADER_BYTES, GRANT_BYTES, DEVICES_MAX = 128, 128, 16
TERMS_BYTES = HEADER_BYTES + DEVICES_MAX * GRANT_BYTES
CLAIMS_BYTES, SLOTS_MAX = 64, 64
SLOT_HEAD_BYTES, REPORT_BYTES, COPIES_BYTES = 64, 128, 64
SLOT_BYTES = SLOT_HEAD_BYTES + DEVICES_MAX * (REPORT_BYTES + COPIES_BYTES)
SLOTS_BYTES = CLAIMS_BYTES + SLOTS_MAX * SLOT_BYTES
CALLS = ("init", "device", "retain", "load", "alloc", "launch", "record", "sync", "free", "release")
MISSING, NOT_CALLED = -1, -2
OUT_OF_MEMORY, NO_DEVICE, INVALID_DEVICE, NOT_FOUND, NOT_READY = 2, 100, 101, 500, 802


def environment_of(answer: pb.RegisterShareResponse, **changes: str) -> dict[str, str]:
    """Return the whole environment of a program in the share."""
    inherited = {k: v for k, v in os.environ.items() if not k.startswith(("SHAREPOD_", "SIMGPU_", "CUDA_", "LD_"))}
    return {**inherited, **metered(answer), **changes}


def answers_in(said: str) -> dict[str, int]:
    """Return the answer of each call that a short life printed, and NOT_CALLED for the other calls."""
    found = {name: int(value) for name, value in re.findall(r"(\w+) (-?\d+)", said)}
    return dict.fromkeys(CALLS, NOT_CALLED) | found


def once(program: Path, environment: Mapping[str, str], ordinal: int = 0) -> dict[str, int]:
    """Run the program for a short life; return what each call answered. It must end well, with an empty stderr."""
    command = [str(program), "once", str(ordinal)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=30, check=False)
    assert (done.returncode, done.stderr) == (0, ""), done
    return answers_in(done.stdout)


def first_error(answers: Mapping[str, int]) -> tuple[str, int]:
    """Return the first call that failed, with its error; ("", 0) when none did."""
    return next(((name, error) for name, error in answers.items() if error > 0), ("", 0))


@dataclass(frozen=True)
class Worker:
    """A program that works until it is told to stop. It counts in a file that the test maps too."""

    process: subprocess.Popen[str]
    counts: memoryview
    """Rounds made, allocations refused, the first error that was no refusal, and whether the program is to stop."""

    @property
    def made(self) -> int:
        return self.counts[0]

    @property
    def refused(self) -> int:
        return self.counts[1]

    def goes_on(self, rounds: int = 3, timeout_s: float = 30.0, because: str = "") -> None:
        """Return when it has made more rounds; fail when it has died or stands still."""
        wanted, end = self.made + rounds, time.monotonic() + timeout_s
        while self.made < wanted:
            assert self.process.poll() is None, f"it died {because}: {self.process.returncode}"
            assert time.monotonic() < end, f"it stands still {because}"
            time.sleep(0.0005)


@contextmanager
def worker(
    program: Path, environment: Mapping[str, str], directory: Path, before: Callable[[], None] = lambda: None
) -> Iterator[Worker]:
    """Yield a Worker after its first round; it must end without an error. `before` is called once it is attached."""
    path = directory / f"rounds-{time.monotonic_ns()}"
    path.write_bytes(bytes(32))
    with (
        path.open("r+b") as file,
        mmap.mmap(file.fileno(), 32) as shared,
        memoryview(shared).cast("Q") as counts,
        python(dict(environment), "rounds", str(path), of=str(program)) as (process, line),
    ):
        assert line == "ready\n"
        before()
        working = Worker(process, counts)
        working.goes_on(1)
        yield working
        counts[3] = 1
        assert process.wait(20) == 0
        assert counts[2] == 0


def driver_without(directory: Path, *names: str) -> Path:
    """Make a directory for LD_LIBRARY_PATH with a simulated driver that lacks these functions.

    A function that the simulated driver lacks anyway is no error.
    """
    library = (REPO_ROOT / "simgpu" / "lib" / "libcuda.so.1").read_bytes()
    for name in names:
        old = b"\0" + name.encode() + b"\0"
        library = library.replace(old, b"\0_" + old[2:])  # the new name has the same length, and no program asks for it
    target = directory / ("without-" + "-".join(names))[:80]
    target.mkdir()
    (target / "libcuda.so.1").write_bytes(library)
    shutil.copy(REPO_ROOT / "simgpu" / "lib" / "libnvidia-ml.so.1", target)
    return target


def needed_functions() -> list[str]:
    """Return the functions without which the hook meters nothing."""
    text = (REPO_ROOT / "hook" / "gate" / "attach.c").read_text()
    return re.findall(r"^  X\((\w+)\)", text[text.index("#define NEEDED") :], re.MULTILINE)


def used_functions() -> list[tuple[str, str]]:
    """Return the functions that the hook calls itself, each with the hook's name for it and the driver's name."""
    rows = re.findall(r'X\((\w+), "(\w+)", "(\w+)"', (REPO_ROOT / "hook" / "interpose" / "driver.h").read_text())
    return [(field, symbol) for field, symbol, _ in rows]


def overwrite(path: Path, at: int, content: bytes) -> None:
    """Write into a file of a region, as a tenant or a bug would."""
    with path.open("r+b") as file:
        file.seek(at)
        file.write(content)


def lines_of(agent: RunningAgent, share: pb.Share, event: str) -> list[str]:
    """Return the lines of the agent's log about the share and with that event."""
    return [line for line in agent.log().splitlines() if event in line and f"share={share.id} " in line]


def facts_of(agent: RunningAgent, share: pb.Share) -> list[str]:
    """Return what `sharepod explain` says of the share."""
    devices = agent.stub.ExplainShare(pb.ExplainShareRequest(share=share.id)).devices
    return [fact for device in devices for fact in device.facts]


def told(agent: RunningAgent, share: pb.Share, event: str, cause: str, fact: str = "") -> str:
    """Wait until one line of the agent's log has the cause, and the explanation has it too; return the line."""
    until(lambda: any(cause in line for line in lines_of(agent, share, event)))
    (line,) = [line for line in lines_of(agent, share, event) if cause in line]
    assert [(fact or cause) in one for one in facts_of(agent, share)].count(True) == 1, facts_of(agent, share)
    return line
