"""Interposers of others (`--peer`): each is loaded into the programs instead of our hook, and gets its own column.

A peer has no agent of ours: a program under it runs like a bare one, with LD_PRELOAD and the user's variables. Every
row that measures programs on a node is measured once more for each peer.
"""

import argparse
import dataclasses
import re
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from bench.table import Line
from rig.programs import ProgramFailed

ELF = b"\x7fELF"
TAKEN = {"what", "bar", "result", "no hook", "with SharePod", "without", "Gemini's policy"}
"""Names of columns that a table has already."""


@dataclass(frozen=True, slots=True)
class Peer:
    """One interposer of another project."""

    name: str
    library: Path
    variables: Mapping[str, str] = field(default_factory=dict)

    def inside(self, environment: Mapping[str, str]) -> dict[str, str]:
        """Return the environment of a program under it, derived from that of a bare program.

        Raises ProgramFailed if the loader ignores it, as the program would then be a bare one.
        """
        under = {**environment, **self.variables, "LD_PRELOAD": str(self.library)}
        said = subprocess.run(["true"], env=under, capture_output=True, text=True, check=False, timeout=20).stderr
        if "cannot be preloaded" in said:
            raise ProgramFailed(f"{self.library} is not loaded into the programs: {said.strip()}")
        return under


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add `--peer` and `--peer-env`."""
    loaded = "load another interposer instead of our hook and give it a column; as often as you like"
    parser.add_argument("--peer", action="append", default=[], metavar="NAME=LIBRARY.so", help=loaded)
    parser.add_argument("--peer-env", action="append", default=[], metavar="NAME:VAR=VALUE", help="a variable for it")


def read_flags(parser: argparse.ArgumentParser, options: argparse.Namespace) -> tuple[Peer, ...]:
    """Return the peers that the flags name. A wrong flag ends the program with one line and status 2."""
    try:
        return _peers(options)
    except ValueError as error:
        parser.error(str(error))


def _peers(options: argparse.Namespace) -> tuple[Peer, ...]:
    """Return the peers that the flags name. Raises ValueError for a wrong flag."""
    found: dict[str, Peer] = {}
    for text in options.peer:
        name, _, path = (part.strip() for part in text.partition("="))
        if not name or not path:
            raise ValueError(f"--peer {text}: give NAME=LIBRARY.so")
        if name in found or name in TAKEN:
            raise ValueError(f"--peer {text}: the name {name!r} is taken: give another")
        found[name] = Peer(name, _library(text, path))
    for text in options.peer_env:
        name, _, setting = text.partition(":")
        variable, equals, value = setting.partition("=")
        if name not in found or not variable or not equals:
            raise ValueError(
                f"--peer-env {text}: give NAME:VAR=VALUE, where NAME is one of {', '.join(found) or 'none'}"
            )
        if variable == "LD_PRELOAD":
            raise ValueError(f"--peer-env {text}: LD_PRELOAD is the peer's library itself")
        found[name] = dataclasses.replace(found[name], variables={**found[name].variables, variable: value})
    return tuple(found.values())


def _library(text: str, path: str) -> Path:
    """Return the resolved path of a peer's library. Raises ValueError, with the flag's `text`, if it cannot be one."""
    library = Path(path).resolve()
    try:
        with library.open("rb") as file:
            magic = file.read(len(ELF))
    except OSError as error:
        raise ValueError(f"--peer {text}: {error.strerror}: {library}") from None
    if magic != ELF:
        raise ValueError(f"--peer {text}: {library} is not an ELF file: give a shared library")
    if re.search(r"[\s:]", str(library)):
        raise ValueError(f"--peer {text}: LD_PRELOAD takes no path with a space or a colon: copy {library} elsewhere")
    return library


def attempt(measure: Callable[[], Sequence[Line]]) -> tuple[Sequence[Line], str]:
    """Return the lines of a row under a peer and ""; or no lines and the reason: a program's failure is a result."""
    try:
        return measure(), ""
    except (ProgramFailed, OSError, ValueError, ArithmeticError, LookupError, RuntimeError) as error:
        return (), f"failed: {error}"
