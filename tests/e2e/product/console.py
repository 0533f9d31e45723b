"""Compares the output of commands that a README shows with the real output.

A value that differs from run to run (share ids, times, measured percentages, momentary states) stands for any value of
its kind. Everything else is compared literally, except the order of lines and the width of columns.
"""

import re
from dataclasses import dataclass
from pathlib import Path

from sharepod.agent.shares.share import ID_LENGTH, ID_LETTERS

BLOCK = re.compile(r"^```\n(\$ .*?)^```$", re.MULTILINE | re.DOTALL)
KINDS = (
    (re.compile(rf"\b[{ID_LETTERS}]{{{ID_LENGTH}}}\b"), "<share>"),
    (re.compile(r"\b\d+\.\d+ %"), "<measured>"),
    (re.compile(r"\b\d+(\.\d+)? (s|ms|µs|ns|min|h)(?=\s|$)"), "<time>"),
    (re.compile(r"\b(\d+m)?\d+s\b"), "<age>"),
    (re.compile(r"\b(holding|waiting|draining|idle)\b"), "<state>"),
    (re.compile(r"─+"), "─"),
    (re.compile(r" +"), " "),
)


@dataclass(frozen=True, slots=True)
class Shown:
    """A command, and its output by the README."""

    command: str
    output: str


def shown_in(readme: Path) -> list[Shown]:
    """Return the commands of a README that have a prompt, in order."""
    found: list[Shown] = []
    for block in BLOCK.findall(readme.read_text(encoding="utf-8")):
        for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            command, _, output = part.partition("\n")
            found.append(Shown(command, output))
    return found


def kinds(output: str) -> list[str]:
    """Return the sorted lines, with each value that differs from run to run replaced by its kind."""
    for pattern, kind in KINDS:
        output = pattern.sub(kind, output)
    return sorted(line.strip() for line in output.splitlines() if line.strip())


def write(readme: Path, outputs: list[str]) -> None:
    """Replace the output that a README shows by what its commands printed."""
    text = readme.read_text(encoding="utf-8")
    for shown, output in zip(shown_in(readme), outputs, strict=True):
        text = text.replace(f"$ {shown.command}\n{shown.output}", f"$ {shown.command}\n{output}", 1)
    readme.write_text(text, encoding="utf-8")
