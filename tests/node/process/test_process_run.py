"""Test that a process runs until a signal, drains, and tells by its exit code and one line how it ended."""

import asyncio
import signal
import subprocess
import sys
import textwrap

import pytest

from sharepod.process.run import endless, work_until

PROGRAM = """
import asyncio, sys
from dataclasses import dataclass
from sharepod.process.errors import CannotStart, SettingsError
from sharepod.process.run import drained, listening, run, work_until

@dataclass(frozen=True)
class Settings:
    log_format: str = "text"
    log_level: str = "info"

async def sleeps():
    print("works", flush=True)
    await asyncio.sleep(3600)

async def fails():
    await asyncio.sleep(0)
    raise ZeroDivisionError("by nought")

async def serve(settings, stopping):
BODY

sys.exit(run("x-process", Settings(), serve, expected={LookupError: 3}, hang_up=True, patience_s=PATIENCE))
"""


def spawn(body: str, patience_s: float | None = None, *prefix: str) -> subprocess.Popen[str]:
    source = PROGRAM.replace("BODY", textwrap.indent(body, "    ")).replace("PATIENCE", repr(patience_s))
    command = [*prefix, sys.executable, "-c", source]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def signalled(process: subprocess.Popen[str], *numbers: int) -> tuple[int, str, str]:
    """Send signals once the process works; return its exit code and its further output."""
    assert process.stdout is not None
    assert process.stdout.readline() == "works\n"
    for number in numbers:
        process.send_signal(number)
    out, err = process.communicate(timeout=20)
    return process.returncode, out, err


DRAINS = "await work_until(drained(stopping, 0.2, lambda: print('drains')), [sleeps()])\nprint('ends')"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_begins_the_drain_and_the_end_is_in_order(number: int) -> None:
    assert signalled(spawn(DRAINS), number, number) == (0, "drains\nends\n", "")


def test_under_nohup_it_outlives_its_terminal() -> None:
    assert signalled(spawn(DRAINS, None, "nohup"), signal.SIGHUP, signal.SIGTERM)[:2] == (0, "drains\nends\n")


def test_what_still_waits_for_another_process_is_given_up_after_the_patience() -> None:
    assert signalled(spawn("await sleeps()", 0.1), signal.SIGTERM) == (0, "", "")


@pytest.mark.parametrize(
    ("body", "code", "line"),
    [
        ("raise CannotStart('no GPU: get one')", 1, "x-process: no GPU: get one"),
        ("raise SettingsError('wrong: right it')", 2, "x-process: wrong: right it"),
        ("raise KeyError('lost')", 3, "x-process: 'lost'"),
        ("with listening(): raise OSError(98, 'Address already in use')", 2,
         "x-process: cannot listen: Address already in use: choose another address or port"),
    ],
)  # fmt: skip
def test_what_keeps_it_from_starting_is_one_line(body: str, code: int, line: str) -> None:
    process = spawn(body)
    _, err = process.communicate(timeout=20)
    assert (process.returncode, err) == (code, line + "\n")


def test_work_that_fails_ends_the_process_with_its_trace_in_the_log() -> None:
    process = spawn("await work_until(stopping.wait(), [sleeps(), fails()])")
    _, err = process.communicate(timeout=20)
    assert process.returncode == 1
    assert "CRITICAL x-process ended" in err.splitlines()[0]
    assert err.splitlines()[-1] == "ZeroDivisionError: by nought"


async def test_work_that_ends_or_is_cancelled_from_within_is_a_fault() -> None:
    async def ends() -> None:
        pass

    async def is_cancelled() -> None:
        raise asyncio.CancelledError

    for work in (ends, is_cancelled):
        with pytest.raises(RuntimeError, match=rf"{work.__name__} ended"):
            await endless(work())
    with pytest.raises(ExceptionGroup):
        await work_until(asyncio.Event().wait(), [is_cancelled()])
    waits = asyncio.create_task(endless(asyncio.Event().wait()))  # type: ignore[arg-type]
    await asyncio.sleep(0)
    waits.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waits


def test_it_takes_the_open_files_that_it_may_have_and_refuses_too_few() -> None:
    code = (
        "import resource as r; from sharepod.process.run import take_open_files\n"
        "r.setrlimit(r.RLIMIT_NOFILE, (64, 128)); take_open_files(128); print(r.getrlimit(r.RLIMIT_NOFILE))\n"
        "take_open_files(129)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout == "(128, 128)\n"
    assert "CannotStart: the limit of open files is 128, at least 129 are needed: raise it" in done.stderr
