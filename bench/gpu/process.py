"""Runs child processes that answer one line with one JSON line, and probes that run once. Knows nothing of shares."""

import json
import select
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rig.closing import Closing
from rig.programs import ProgramFailed, piped
from sharepod.cli.scratch import IN_MEMORY

ANSWER_TIMEOUT_S = 20.0


def ask_once(command: Sequence[str], environment: Mapping[str, str], timeout_s: float = 60.0) -> dict[str, Any]:
    """Run a probe to its end and return its last line. Raises ProgramFailed."""
    try:
        done = subprocess.run(
            list(command), env=dict(environment), capture_output=True, text=True, timeout=timeout_s, check=False
        )
    except subprocess.TimeoutExpired:
        raise ProgramFailed(f"`{_shown(command)}` has not ended after {timeout_s:.0f} s") from None
    if done.returncode == -signal.SIGBUS:
        raise ProgramFailed(f"`{_shown(command)}` ended by SIGBUS, as where {IN_MEMORY} is full: make room there")
    if done.returncode:
        raise ProgramFailed(f"`{_shown(command)}`: exit {done.returncode}: {done.stderr.strip()[-500:]}")
    answer: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return answer


def _shown(command: Sequence[str]) -> str:
    return " ".join([Path(command[0]).name, *command[1:]])


class Asked(Closing):
    """A process that answers every line with one JSON object. It ends with its stdin."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str]) -> None:
        self._command = command
        self._process = piped(command, environment)
        self.pid = self._process.pid
        self._unread = b""

    def read_line(self, timeout_s: float = ANSWER_TIMEOUT_S) -> str:
        """Return the process's next line. Raises ProgramFailed when it ends or takes too long."""
        assert self._process.stdout is not None
        deadline = time.monotonic() + timeout_s
        while b"\n" not in self._unread:
            if not select.select([self._process.stdout], [], [], max(0, deadline - time.monotonic()))[0]:
                raise ProgramFailed(f"`{_shown(self._command)}` has not answered for {timeout_s:.0f} s")
            piece = self._process.stdout.read(65536)
            if not piece:
                assert self._process.stderr is not None
                said = self._process.stderr.read().decode().strip()
                raise ProgramFailed(f"`{_shown(self._command)}` has ended: {said or 'it printed nothing'}")
            self._unread += piece
        line, _, self._unread = self._unread.partition(b"\n")
        return line.decode()

    def ask(self, line: str) -> dict[str, Any]:
        """Return the answer to a line. Raises ProgramFailed, also when the answer is an error."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{line}\n".encode())
        answer: dict[str, Any] = json.loads(self.read_line())
        if "error" in answer:
            raise ProgramFailed(f"`{_shown(self._command)}`: {answer['error']}")
        return answer

    def close(self) -> None:
        """End the process: close its stdin first, and SIGKILL it if that is not enough."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(3)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        for stream in (self._process.stdout, self._process.stderr):
            if stream is not None:
                stream.close()
