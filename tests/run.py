"""Runs the tests: first those that only wait for events, side by side, then those that judge real time, alone.

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
MINUTES = {"what ran side by side": 6, "what ran alone": 3}
"""Of everything, on two cores."""


def parts(workers: int) -> dict[str, list[str]]:
    """Return what each part is called and the arguments that make it."""
    if not workers:
        return {"the tests": []}
    return {
        "what ran side by side": ["--timed=without", f"--numprocesses={workers}", "--dist=worksteal"],
        "what ran alone": ["--timed=only"],
    }


def announce(workers: int, arguments: list[str]) -> None:
    """Say in one line what runs and for how long."""
    if not workers:
        what = "every test, one at a time"
    else:
        beside, alone = MINUTES.values()
        whole = "" if arguments else f" (about {beside} minutes on two cores)"
        rest = "" if arguments else f" (about {alone})"
        what = f"pure, virtual and node tests, {workers} at a time{whole}; then the timed ones alone{rest}"
    print(f"{what}; {' '.join(arguments)}" if arguments else what, flush=True)


def main() -> int:
    """Run the parts; return pytest's exit status of the first that failed.

    A part that selects nothing is fine if the other selects something. Only a part that runs to its end is followed by
    the next one: Ctrl-C, a wrong argument and `-x` after a failure stop both.
    """
    signal.signal(signal.SIGINT, lambda *_: None)  # pytest has it too, and says what it had done
    workers, *arguments = sys.argv[1:]
    announce(int(workers), arguments)
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
