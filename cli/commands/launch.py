"""Turns the process of `sharepod run` into the user's program.

The process registers the share with itself as the owner, and then becomes the program by exec. So exit code, signals,
stdio, terminal and job control are the program's own. The agent watches the process, and ends the share when the
process is gone, whatever ended it.
"""

from __future__ import annotations

import errno
import os
import shutil
import signal
import stat
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, NoReturn

from sharepod.cli.errors import EXIT_NOT_EXECUTABLE, EXIT_NOT_FOUND, CliError

_INTERPRETERS_MAX: Final = 5
"""The most files in a chain of scripts and interpreters, as in the kernel."""
_FIRST_LINE_MAX: Final = 256
_TEXT_LOOK: Final = 256
"""Bytes at the begin of a file that show whether it is text."""
_PATH_LISTS: Final = frozenset({"LD_LIBRARY_PATH", "LD_PRELOAD"})
"""Variables that are lists of paths: our part is put in front. Other variables are replaced."""


def find_program(name: str, path: str | None) -> str:
    """Return the file that a shell would run for `name` with the PATH `path`.

    Raises CliError, with the exit code 127 if there is no such file and 126 if it cannot be executed.
    """
    found = shutil.which(name, path=path)
    if found is not None:
        return found
    directories = [""] if "/" in name else (path or os.defpath).split(os.pathsep)
    for candidate in (Path(directory, name) for directory in directories):
        if candidate.is_dir() and "/" in name:
            raise CliError(f"cannot run {name}: it is a directory: name a program in it", EXIT_NOT_EXECUTABLE)
        if candidate.is_file():
            raise CliError(
                f"cannot run {candidate}: it is not executable: chmod +x it, or run it through its interpreter",
                EXIT_NOT_EXECUTABLE,
            )
    cure = "check the path" if "/" in name else "check the spelling, or give its path"
    raise CliError(f"cannot run {name}: command not found: {cure}", EXIT_NOT_FOUND)


def gains_rights(program: str, path: str | None = None) -> str:
    """Return the right that a program file, or a script's interpreter, gains at its start; empty: none.

    With such a right the loader drops LD_PRELOAD and so the hook, also for all programs that this one starts. `path` is
    the PATH in which `env` looks for a script's interpreter.
    """
    for _ in range(_INTERPRETERS_MAX):
        status = Path(program).stat()
        if status.st_mode & stat.S_ISUID and status.st_uid != os.getuid():
            return "a set-user-ID bit"
        if status.st_mode & stat.S_ISGID and status.st_mode & stat.S_IXGRP and status.st_gid != os.getgid():
            return "a set-group-ID bit"
        if os.getuid() != 0 and _has_capabilities(program):
            return "file capabilities"
        words = _interpreter_line(program)
        if not words:
            break
        interpreter = words[0]
        if Path(interpreter).name == "env":
            name = next((word for word in words[1:] if word[0] != "-"), "")
            interpreter = shutil.which(name, path=path) or ""
        if not Path(interpreter).is_file():
            break
        program = interpreter
    return ""


def _has_capabilities(program: str) -> bool:
    """Tell whether a file has capabilities. False: it has none, or they cannot be read."""
    try:
        return bool(os.getxattr(program, "security.capability"))
    except OSError:
        return False


def _interpreter_line(program: str) -> list[str]:
    """Return the words of a script's first line after `#!`; none: it is no script, or it may not be read."""
    try:
        with Path(program).open("rb") as file:
            first = file.read(_FIRST_LINE_MAX).partition(b"\n")[0]
    except OSError:
        return []
    return first[2:].decode(errors="replace").split() if first.startswith(b"#!") else []


def program_environment(base: Mapping[str, str], additions: Mapping[str, str], hook_path: str) -> dict[str, str]:
    """Return `base` with the share in it: the agent's variables `additions`, and the hook first in LD_PRELOAD."""
    environment = dict(base)
    for name, value in {**additions, "LD_PRELOAD": hook_path}.items():
        present = environment.get(name, "") if name in _PATH_LISTS else ""
        environment[name] = f"{value}:{present}" if present else value
    return environment


def become(program: str, arguments: Sequence[str], environment: Mapping[str, str]) -> NoReturn:
    """Replace this process by the program. Raises CliError (126) when the kernel refuses."""
    # Python ignores these signals, and exec keeps an ignored signal ignored. A program like `yes | head` would not end.
    before = {number: signal.signal(number, signal.SIG_DFL) for number in (signal.SIGPIPE, signal.SIGXFSZ)}
    try:
        os.execve(program, list(arguments), environment)  # noqa: S606 - that is the point
    except OSError as error:
        if error.errno == errno.ENOEXEC and _is_text(program):
            # A script without `#!`: the shell runs it, as execvp does.
            os.execve("/bin/sh", ["sh", program, *arguments[1:]], environment)  # noqa: S606
        for number, handler in before.items():
            signal.signal(number, handler)
        reason = (error.strerror or str(error)).lower()
        raise CliError(f"cannot run {program}: {reason}: check the file", EXIT_NOT_EXECUTABLE) from None


def _is_text(program: str) -> bool:
    """Tell whether a file can be a script: there is no zero byte at its begin."""
    with Path(program).open("rb") as file:
        return b"\0" not in file.read(_TEXT_LOOK)
