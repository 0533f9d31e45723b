"""Programs that answer on stdout what they are told on stdin, line by line."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass


@dataclass(frozen=True)
class Dialogue:
    """A run of such a program."""

    process: subprocess.Popen[str]

    @property
    def pid(self) -> int:
        return self.process.pid

    def say(self, line: str) -> None:
        """Send a line, whose answer is read later."""
        assert self.process.stdin is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def hear(self) -> str:
        """Read an answer."""
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def __call__(self, line: str) -> str:
        self.say(line)
        return self.hear()
