"""Runs the tests: first those that only wait for events, in parallel, then those that judge real time, one by one.

`run.py WORKERS [ARGUMENT …]` gives every argument to pytest in both parts. With 0 workers there is only one part.

After each part the failed tests run once more, alone. A test that fails twice has failed. A test that passes alone is
shaky: it or the code under test has a defect, and the run reports it at the end. More than two shaky tests fail the
run.

A test that judges real time and fails while the host of this virtual machine took its processors away is disturbed
(`tests/support/stolen.py`). Its failure does not count, but it must pass: it runs again until it passes, or fails
undisturbed, or has failed too often.
"""

import json
import signal
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

import pytest

PYTEST = Path(sys.executable).with_name("pytest")  # `python -m pytest` would find the tree before installed packages
GOES_ON = {pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED, pytest.ExitCode.NO_TESTS_COLLECTED}
FINE = {pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED}
MINUTES = {"what ran side by side": 5, "what ran alone": 3}
"""How long each part takes on two cores with all tests."""
SHAKY_MAX = 2
AGAIN_DISTURBED_MAX = 5
"""How often a test runs again that fails disturbed each time."""
DISTURBED_MAX = 10
"""If more tests than this were disturbed, the machine is not fit to judge time, and the run fails."""
AGAIN_MAX = 20
"""If more tests than this have failed, something is broken, and another run would tell nothing."""


@dataclass(frozen=True, slots=True)
class Part:
    """A run of pytest: its name, its arguments, and the arguments that make it run tests in parallel."""

    name: str
    arguments: tuple[str, ...] = ()
    beside: tuple[str, ...] = ()


@dataclass(slots=True)
class Outcome:
    """The result of a part: pytest's status, the failed tests, and with their first reasons the shaky and disturbed."""

    status: int
    failed: set[str] = field(default_factory=set)
    shaky: dict[str, str] = field(default_factory=dict)
    disturbed: dict[str, str] = field(default_factory=dict)


def parts(workers: int, arguments: list[str]) -> tuple[Part, ...]:
    """Return the parts in their order; with `--timed=without` or `--timed=only`, only the part with that argument."""
    if not workers:
        return (Part("the tests"),)
    beside = (f"--numprocesses={workers}", "--dist=worksteal")
    both = Part("what ran side by side", ("--timed=without",), beside), Part("what ran alone", ("--timed=only",))
    return tuple(part for part in both if part.arguments[0] in arguments) or both


def announce(workers: int, arguments: list[str]) -> None:
    """Print in one line what runs and for how long."""
    if not workers:
        what = "one test at a time"
    else:
        beside, alone = MINUTES.values()
        whole = "" if arguments else f" (about {beside} minutes on two cores)"
        rest = "" if arguments else f" (about {alone})"
        said = {
            "what ran side by side": f"pure, virtual and node tests, {workers} at a time{whole}",
            "what ran alone": f"the timed ones alone{rest}",
        }
        what = "; then ".join(said[part.name] for part in parts(workers, arguments))
    print(f"{what}; {' '.join(arguments)}" if arguments else what, flush=True)


def run_pytest(arguments: list[str], outcomes: Path) -> int:
    """Run pytest, which writes to ``outcomes`` the tests that passed and failed; return its status."""
    return subprocess.run([PYTEST, f"--outcomes={outcomes}", *arguments], check=False).returncode


def run_part(part: Part, arguments: list[str], scratch: Path) -> Outcome:
    """Run a part, and then its failed tests once more, alone; those that fail disturbed, several times more."""
    file = scratch / "outcomes.json"
    outcome = Outcome(run_pytest([*part.arguments, *part.beside, *arguments], file))
    if outcome.status != pytest.ExitCode.TESTS_FAILED:
        return outcome
    first = json.loads(file.read_text())
    reasons: dict[str, str] = first["failed"]
    outcome.failed = set(reasons)
    if len(reasons) > AGAIN_MAX:
        print(f"{len(reasons)} tests failed: too many to run again", flush=True)
        return outcome
    again = set(reasons)
    for tries in range(AGAIN_DISTURBED_MAX):
        if not again:
            break
        print(f"once more, alone: what failed{' disturbed' if tries else ''} ({len(again)})", flush=True)
        wanted = scratch / "wanted.json"
        wanted.write_text(json.dumps({"failed": sorted(again)}))
        if run_pytest([*part.arguments, f"--failed-in={wanted}", *arguments], file) not in GOES_ON:
            break
        now = json.loads(file.read_text())
        outcome.failed -= set(now["passed"])
        again = set(now["disturbed"]) & again
    passed = {test: reason for test, reason in reasons.items() if test not in outcome.failed}
    outcome.disturbed = {test: reason for test, reason in passed.items() if test in first["disturbed"]}
    outcome.shaky = {test: reason for test, reason in passed.items() if test not in first["disturbed"]}
    if reasons and not outcome.failed:
        outcome.status = pytest.ExitCode.OK
    return outcome


def tell(word: str, tests: dict[str, str], meaning: str) -> None:
    """Print the tests that failed in the first run and passed alone, with a word for them and what it means."""
    if tests:
        print(f"{word}: {len(tests)} ({meaning})", flush=True)
    for test, reason in tests.items():
        print(f"  {test}\n    {reason}", flush=True)


def main() -> int:
    """Run the parts; return pytest's exit status of the first part that failed.

    A part that selects no test is fine if the other part selects one. The next part runs only if the one before it ran
    to its end: Ctrl-C, a wrong argument and `-x` after a failure stop both.
    """
    signal.signal(signal.SIGINT, lambda *_: None)  # pytest gets the signal too, and says what it had done
    workers, *arguments = sys.argv[1:]
    announce(int(workers), arguments)
    statuses: dict[str, int] = {}
    shaky: dict[str, str] = {}
    disturbed: dict[str, str] = {}
    with tempfile.TemporaryDirectory(prefix="sharepod-tests-") as scratch:
        for part in parts(int(workers), arguments):
            outcome = run_part(part, arguments, Path(scratch))
            statuses[part.name] = outcome.status
            shaky |= outcome.shaky
            disturbed |= outcome.disturbed
            if outcome.status not in GOES_ON:
                break
    tell(
        "disturbed",
        disturbed,
        f"failed while the host took the processors away, then passed; more than {DISTURBED_MAX} fail the run",
    )
    tell("shaky", shaky, f"failed, then passed alone; more than {SHAKY_MAX} fail the run")
    failed = [name for name, status in statuses.items() if status not in FINE]
    if failed:
        print(f"{failed[0]} failed", file=sys.stderr)  # pytest's last lines above may be those of the other part
        return statuses[failed[0]]
    if len(shaky) > SHAKY_MAX or len(disturbed) > DISTURBED_MAX:
        return pytest.ExitCode.TESTS_FAILED
    return min(statuses.values())  # 5 if no part selected anything


if __name__ == "__main__":
    sys.exit(main())
