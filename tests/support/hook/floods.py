"""Programs that flood what a tenant may write: locks, the doorbell, the length of a file."""

import contextlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

LOCKS = """
import fcntl, os
slots = os.open("slots", os.O_RDWR)
for at in range(16_000):
    fcntl.lockf(slots, fcntl.LOCK_EX, 1, 1_000 + 2 * at)
print("ready", flush=True)
bell = os.open("bell", os.O_WRONLY)
while True:
    os.pwrite(slots, bytes([1]) * 64, 0)
    os.write(bell, bytes(range(64)))
"""
RINGS = """
import fcntl, os
bell = os.open("bell", os.O_WRONLY)
fcntl.fcntl(bell, 1031, 1 << 20)  # F_SETPIPE_SZ
print("ready", flush=True)
while True:
    os.write(bell, bytes(range(256)) * 256)
"""
HOLDS = """
import fcntl, os, signal
fcntl.lockf(os.open("slots", os.O_RDWR), fcntl.LOCK_EX, 1, 0)
print("ready", flush=True)
signal.pause()
"""
GROWS = """
import os
slots = os.open("slots", os.O_RDWR)
print("ready", flush=True)
while True:
    os.pwrite(slots, bytes([1]) * 64, 0)
    os.posix_fallocate(slots, 0, 256 << 20)
    os.write(os.open("bell", os.O_WRONLY), bytes(range(64)))
    os.ftruncate(slots, 10)
"""


@contextlib.contextmanager
def running(text: str, region: Path) -> Iterator[None]:
    """Run one of the programs in a share's directory; it is killed at the end."""
    with subprocess.Popen([sys.executable, "-c", text], cwd=region, stdout=subprocess.PIPE) as program:
        assert program.stdout is not None
        assert program.stdout.readline() == b"ready\n"
        try:
            yield
        finally:
            program.kill()
