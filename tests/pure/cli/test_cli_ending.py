"""Test that a signal ends a command, whatever Python is doing when it arrives."""

import signal
import subprocess
import sys

import pytest

PROGRAM = """
import os, time
from sharepod.cli.ending import end_in_order
end_in_order()

class Finalised:
    def __del__(self):
        os.kill(os.getpid(), {number})
        for _ in range(1000):  # the handler runs in here, where nothing that it raises gets out
            pass

try:
    Finalised()
    time.sleep(20)
finally:
    print("tidied up")
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_what_a_finaliser_swallows_is_raised_again(number: signal.Signals) -> None:
    command = [sys.executable, "-c", PROGRAM.format(number=int(number))]
    done = subprocess.run(command, capture_output=True, text=True, timeout=15, check=False)
    assert done.stdout == "tidied up\n"
    assert done.returncode == (-number if number == signal.SIGINT else 128 + number)
    assert "ignored" not in done.stderr
