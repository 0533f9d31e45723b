"""Runs the test suite in two parts: first what does not measure real time, side by side, then what does, alone.

`run.py WORKERS [ARGUMENT …]`: every argument goes to pytest in both parts. With no workers there is one part alone.
"""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

PYTEST = Path(sys.executable).with_name("pytest")  # `python -m pytest` would put the tree before installed packages
GOES_ON = {pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED, pytest.ExitCode.NO_TESTS_COLLECTED}
FINE = {pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED}


def parts(workers: int) -> dict[str, list[str]]:
    """Return what each part is called and the arguments that make it."""
    if not workers:
        return {"the tests": []}
    return {
        "what ran side by side": ["--realtime=without", f"--numprocesses={workers}", "--dist=worksteal"],
        "what ran alone": ["--realtime=only"],
    }


def main() -> int:
    """Run the parts; return pytest's exit status of the first that failed.

    A part that selects nothing is fine if the other selects something. Only a part that runs to its end is followed by
    the next one: Ctrl-C, a wrong argument and `-x` after a failure stop both.
    """
    signal.signal(signal.SIGINT, lambda *_: None)  # pytest has it too, and says what it had done
    workers, *arguments = sys.argv[1:]
    codes: dict[str, int] = {}
    for name, chosen in parts(int(workers)).items():
        codes[name] = subprocess.run([PYTEST, *chosen, *arguments], check=False).returncode
        if codes[name] not in GOES_ON:
            break
    failed = [name for name in codes if codes[name] not in FINE]
    if failed:
        print(f"{failed[0]} failed", file=sys.stderr)  # the closing lines above may be those of the other part
        return codes[failed[0]]
    return min(codes.values())  # 5 if no part selected anything


if __name__ == "__main__":
    sys.exit(main())
