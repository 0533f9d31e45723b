"""Builds and runs the C programs of the benches. It knows nothing of shares: the caller gives it an environment."""

import hashlib
import json
import os
import select
import shlex
import shutil
import subprocess
import sysconfig
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from rig import REPO_ROOT

SOURCES = REPO_ROOT / "bench" / "programs"
CLIENT = REPO_ROOT / "rig" / "c"
CACHE = REPO_ROOT / "build" / "bench"
FLAGS = ["-std=gnu11", "-O2", "-Wall", "-Wextra", "-Wconversion", "-Wshadow", "-fvisibility=hidden"]
READY_TIMEOUT_S = 20.0
END_TIMEOUT_S = 60.0
"""How long a program may take past its stop time, as its work in flight has to drain."""


class ProgramFailed(Exception):
    """A program ended with an error, or did not end. The text says which one and what it printed."""


class BuildFailed(ProgramFailed):
    """A source could not be compiled. The text says which one, and the compiler's first complaint."""


def build(source: str, output: str, *flags: str) -> Path:
    """Compile a source of the benches to build/bench/`output` if needed. Return its path. Raises BuildFailed."""
    return compiled(CACHE / output, [SOURCES / source], FLAGS, [*flags, "-ldl"], [CLIENT])


def compiled(
    output: Path, sources: Sequence[Path], flags: Sequence[str], libraries: Sequence[str], includes: Sequence[Path] = ()
) -> Path:
    """Compile and link, unless `output` was made of the same sources, headers and flags. Return `output`.

    A digest of those lies beside it. So an output that was made elsewhere counts too, and can be copied to a machine
    without a compiler. Raises BuildFailed.
    """
    folders = dict.fromkeys([*includes, *(source.parent for source in sources)])
    headers = [path for folder in folders for pattern in ("*.h", "*.def") for path in sorted(folder.glob(pattern))]
    digest = hashlib.sha256(" ".join([*flags, *libraries]).encode())
    for path in (*sources, *headers):
        digest.update(f"{path.name} {path.stat().st_size} ".encode() + path.read_bytes())
    made_of = output.with_name(f"{output.name}.sha256")
    if output.exists() and made_of.exists() and made_of.read_text(encoding="ascii") == digest.hexdigest():
        return output
    compiler = shlex.split(os.environ.get("CC", "cc"))
    if shutil.which(compiler[0]) is None:
        raise BuildFailed(
            f"{output.name} is not built of these sources, and the C compiler {compiler[0]} is missing: "
            f"apt install gcc libc6-dev, set CC=, or bring {output.parent} from where it was built"
        )
    output.parent.mkdir(parents=True, exist_ok=True)
    partial = output.with_name(f"{output.name}.{os.getpid()}")
    command = [*compiler, *flags, *(f"-I{folder}" for folder in folders), "-o", str(partial), *map(str, sources)]
    done = subprocess.run([*command, *libraries], capture_output=True, text=True, check=False)
    if done.returncode:
        complaint = next((line for line in done.stderr.splitlines() if "error" in line), done.stderr.strip())
        raise BuildFailed(f"{output.name} does not compile: {complaint}")
    made_of.unlink(missing_ok=True)  # a process that dies here leaves an output that is built again
    partial.rename(output)
    note = partial.with_name(f"{partial.name}.sha256")
    note.write_text(digest.hexdigest(), encoding="ascii")
    note.rename(made_of)
    return output


@dataclass(frozen=True, slots=True)
class Result:
    """The result that a load program printed at its end."""

    pid: int
    start_ns: int
    end_ns: int
    launches: int
    work_ns: int
    """Device time of the work that it launched, by its kernels' names."""
    latencies_ns: tuple[int, ...]
    batch_ns: tuple[int, ...]
    other: Mapping[str, Any]

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read the program's last line."""
        fields = json.loads(text.strip().splitlines()[-1])
        pid, start_ns, end_ns, launches, work_ns = (
            int(fields.pop(name)) for name in ("pid", "start_ns", "end_ns", "launches", "work_ns")
        )
        latencies, batches = (tuple(fields.pop(name, ())) for name in ("latencies_ns", "batch_ns"))
        return cls(pid, start_ns, end_ns, launches, work_ns, latencies, batches, fields)


def load_command(mode: str, options: Mapping[str, object]) -> list[str]:
    """Return the command of a load program."""
    return [str(build("load.c", "load")), mode, *(f"{name}={value}" for name, value in options.items()), "wait=1"]


def fill_command(mode: str, options: Mapping[str, object]) -> list[str]:
    """Return the command of a program that allocates."""
    return [str(build("fill.c", "fill")), mode, *(f"{name}={value}" for name, value in options.items()), "wait=1"]


def streams_command(options: Mapping[str, object]) -> list[str]:
    """Return the command of a program that puts work on several streams."""
    return [str(build("streams.c", "streams", "-lpthread")), *(f"{name}={value}" for name, value in options.items())]


def storm_command(seed: int, threads: int, devices: int, *, faults: bool = False) -> list[str]:
    """Return the command of a storm program; one that `faults` has one thread, and ends with a kernel that faults."""
    numbers = [str(number) for number in (seed, 1 if faults else threads, devices)]
    return [str(build("storm.c", "storm", "-lpthread")), *numbers, *["faults"] * faults]


def hostile_command(seed: int, *, tame: bool = False) -> list[str]:
    """Return the command of a tenant that attacks by its own region; `tame`: of one that is only as busy."""
    return [str(build("hostile.c", "hostile")), str(seed), *(["tame"] if tame else [])]


def ring_command(devices: int, **options: object) -> list[str]:
    """Return the command of a program that runs collectives on its first `devices` devices."""
    program = str(build("ring.c", "ring", "-lpthread"))
    return [program, str(devices), *(f"{name}={value}" for name, value in options.items())]


def piped(command: Sequence[str], environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
    """Start a process with pipes as its three standard streams."""
    pipe = subprocess.PIPE
    return subprocess.Popen(list(command), stdin=pipe, stdout=pipe, stderr=pipe, env=dict(environment), bufsize=0)


class Program:
    """One running program. `await_ready` returns when its context exists. `go` starts its work."""

    def __init__(self, owner: str, command: Sequence[str], environment: Mapping[str, str]) -> None:
        self.owner = owner
        self._command = command
        self._process = piped(command, environment)
        self.pid = self._process.pid
        self.killed = False
        self._result: Result | None = None

    def await_ready(self) -> Self:
        """Wait until its context exists. Raises ProgramFailed when it ends or takes too long."""
        assert self._process.stdout is not None
        deadline, seen = time.monotonic() + READY_TIMEOUT_S, b""
        while b"\n" not in seen:
            if not select.select([self._process.stdout], [], [], max(0, deadline - time.monotonic()))[0]:
                raise self._failed(f"was not ready after {READY_TIMEOUT_S:.0f} s")
            piece = self._process.stdout.read(1)
            if not piece:
                raise self._failed("ended before it was ready")
            seen += piece
        return self

    def go(self, start_ns: int, stop_ns: int) -> None:
        """Let it work from `start_ns` to `stop_ns` (CLOCK_MONOTONIC)."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{start_ns} {stop_ns}\n".encode())
        self._process.stdin.flush()

    def result(self, timeout_s: float = END_TIMEOUT_S) -> Result:
        """Wait for its end, at most `timeout_s`, and return its result. Raises ProgramFailed."""
        if self._result is None:
            try:
                output, errors = self._process.communicate(timeout=timeout_s)
            except subprocess.TimeoutExpired:
                raise self._failed(f"has not ended {timeout_s:.0f} s after it was waited for") from None
            if self._process.returncode:
                raise self._failed(f"exit {self._process.returncode}: {errors.decode().strip()}")
            self._result = Result.parse(output.decode())
        return self._result

    def stop(self) -> None:
        """Ask it to end now. `result` then waits for the end."""
        self._process.terminate()

    def running(self) -> bool:
        """Tell whether it still runs."""
        return self._process.poll() is None

    def kill(self) -> None:
        """SIGKILL it, if it still runs, and wait until it is gone."""
        self.killed = self.killed or self._process.poll() is None
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout, self._process.stderr):
            if stream is not None:
                stream.close()

    def _failed(self, what: str) -> ProgramFailed:
        """Return an error that says what happened to the program and, if it has ended, what it wrote to stderr."""
        errors = ""
        if self._process.poll() is not None and self._process.stderr is not None and not self._process.stderr.closed:
            errors = f": {self._process.stderr.read().decode().strip()}"
        return ProgramFailed(f"{self.owner}: `{' '.join(self._command)}` {what}{errors}")


def chain_ns(rounds: int, pause_us: int) -> list[int]:
    """Return the times of `rounds` bare futex hand-offs through a third process, with sleeps of `pause_us` between."""
    command: Sequence[str] = [str(build("chain.c", "chain")), str(rounds), str(pause_us)]
    output = subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout
    hops: list[int] = json.loads(output)["hops_ns"]
    return hops


def machine(kind: str) -> str:
    """Return a name for this kind of machine, without its host name, for example sim-2core-x86_64."""
    return f"{kind}-{os.cpu_count()}core-{sysconfig.get_platform().rpartition('-')[2]}"
