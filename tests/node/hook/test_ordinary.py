"""Test that a preloaded hook changes nothing in ordinary programs."""

import shutil
import signal
import sys
from pathlib import Path

import pytest
from hooklab import C, clean_environment, compile_c, need_tool, run

from rig.arbiter import Arbiter
from rig.script import script
from sharepod.hook import LIBRARY

PYTHON_ERRORS = (
    "import ctypes\ntry: ctypes.CDLL('libnosuch.so')\nexcept OSError as e: print(e)\nctypes.CDLL(None).nosuch"
)
PYTHON_MODULES = (
    "import sqlite3, ssl, json, zlib, threading, ctypes; print(ctypes.CDLL(None).abs(-3), zlib.crc32(b'x'))"
)
PYTHON_CHILDREN = (
    "import multiprocessing as m, subprocess as s\n"
    "if __name__ == '__main__':\n"
    "    with m.get_context('fork').Pool(2) as p: print(p.map(abs, [-1, -2]))\n"
    "    print(s.run(['echo', 'child'], capture_output=True).stdout)\n"
)
PIPE = "printf 'b\\na\\nb\\n'"
# Commands with an output that does not depend on time, process ids or addresses.
COMMANDS: dict[str, list[str]] = {
    "bash": ["bash", "-c", "for i in 1 2 3; do echo $((i * i)); done; exit 7"],
    "sh": ["sh", "-c", "echo out; echo err >&2; kill -TERM $$"],
    "ls": ["ls", "-la", "/usr/share/doc/bash"],
    "find": ["find", "/etc/apt", "-name", "*.conf"],
    "grep": ["grep", "-c", "root", "/etc/passwd", "/no/such/file"],
    "sed": ["sed", "-n", "1,3p", "/etc/passwd"],
    "awk": ["awk", "-F:", "{n += $3} END {print n}", "/etc/passwd"],
    "sort": ["sh", "-c", PIPE + " | sort -u"],
    "tar": ["sh", "-c", "tar -cf - -C /etc passwd group | tar -tf -"],
    "gzip": ["sh", "-c", "gzip -9nc /etc/passwd | gzip -dc | cksum"],
    "getent": ["getent", "passwd", "root"],
    "iconv": ["iconv", "-f", "utf-8", "-t", "latin1//TRANSLIT", "/etc/passwd"],
    "ldconfig": ["/sbin/ldconfig", "-p"],
    "dpkg": ["dpkg", "-s", "bash"],
    "perl": ["perl", "-MPOSIX", "-e", "print strftime('%Y', gmtime(0)), qq(\\n); warn qq(w\\n); exit 3"],
    "git": ["git", "--version"],
    "curl": ["curl", "-s", "file:///etc/hostname"],
    "openssl": ["openssl", "dgst", "-sha256", "/etc/passwd"],
    "gcc": ["gcc", "-x", "c", "-fsyntax-only", "/etc/passwd"],
    "make": ["make", "-f", "/no/such/makefile"],
    "cmake": ["cmake", "-E", "echo", "hello"],
    "node": ["node", "-e", "new (require('worker_threads').Worker)('console.log(1 + 1)', {eval: true})"],
    "java": ["java", "-version"],
    "gdb": ["gdb", "-nx", "-batch", "-ex", "print 6*7"],
    "ssh": ["ssh", "-V"],
    "timeout": ["timeout", "5", "sleep", "0"],
    "python": [sys.executable, "-c", PYTHON_MODULES],
    "python-errors": [sys.executable, "-c", PYTHON_ERRORS],
    "python-children": [sys.executable, "-c", PYTHON_CHILDREN],
}
PRESENT = {name: command for name, command in COMMANDS.items() if shutil.which(command[0])}


def test_the_list_of_ordinary_commands_is_long_enough_to_mean_something() -> None:
    assert len(PRESENT) >= 22, sorted(set(COMMANDS) - set(PRESENT))


@pytest.mark.parametrize("name", PRESENT)
def test_an_ordinary_command_says_and_returns_the_same(name: str) -> None:
    plain = clean_environment() | {"LC_ALL": "C.UTF-8"}
    preloaded = plain | {"LD_PRELOAD": str(LIBRARY)}
    without, with_hook = run(PRESENT[name], plain), run(PRESENT[name], preloaded)
    assert with_hook.stdout == without.stdout
    assert with_hook.stderr == without.stderr
    assert with_hook.returncode == without.returncode


def test_closing_every_descriptor_and_forking_are_the_programs_own_business(tmp_path: Path) -> None:
    busy = compile_c(tmp_path / "busy", "-O1", C / "busy.c", "-lpthread", "-ldl")
    need_tool("setsid", "util-linux")
    done = run(["setsid", "-w", busy], clean_environment() | {"LD_PRELOAD": str(LIBRARY)})
    assert (done.returncode, done.stdout, done.stderr) == (0, "busy 4\n", "")


OWN_FAULTS = {
    "sent": "os.kill(os.getpid(), signal.SIGBUS)",
    "raised": "own[0]",
}


@pytest.mark.parametrize("way", OWN_FAULTS)
def test_a_bus_error_that_is_none_of_the_hooks_ends_a_program_of_a_share(
    way: str, arbiter: Arbiter, simgpu: dict[str, str], tmp_path: Path
) -> None:
    share = arbiter.share(tmp_path / "share")
    body = f"""
    import mmap, os, signal
    start()
    with open({str(tmp_path / "own")!r}, "w+b") as file:
        file.truncate(1)
        own = mmap.mmap(file.fileno(), 1)
        file.truncate(0)
    {OWN_FAULTS[way]}
    """
    assert run(script(body), simgpu | share.env).returncode == -signal.SIGBUS
