"""The recorder: its converter on logs made by hand, and the whole of it around a replay on the simulated device."""

import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench import replay
from bench.gpu.build import build
from bench.gpu.record import LEAST_REPEATS, Log, convert, read_kernels, read_log, repetition, rounded, steady
from bench.traces.format import Repeat, Trace, TraceError, events, parse
from rig.gpu import MakeSimgpu

US = 1000
STREAM, GEMM, ADD, EXEC, GRAPH = 70, 71, 72, 73, 74


def log_of(calls: Sequence[tuple[str, int, int, int, int, tuple[int, int, int]]]) -> Log:
    """Return the log of one thread: (verb, gap, of which computed, took, duration, arguments), in ns."""
    lines = ['{"record": 1, "device": "Some GPU", "cuda": 13000, "lost": 0}']
    lines += [f"name {STREAM} nonblocking", f"name {GEMM} gemm", f"name {ADD} add <int>"]
    now = 1_000_000
    for verb, gap, cpu, took, duration, arguments in calls:
        now += gap
        lines.append(" ".join(map(str, (1, verb, now, now + took, cpu, duration, *arguments))))
        now += took
    return read_log("\n".join(lines) + "\n")


def iteration(number: int) -> list[tuple[str, int, int, int, int, tuple[int, int, int]]]:
    late = 900 * US if number == 3 else 0  # one long pause among many is not what usually happens
    return [
        ("launch", 5 * US, 5 * US, 2 * US, 100 * US + number, (STREAM, GEMM, 8 | 4 << 32 | 1 << 48)),
        ("launch", 5 * US, 5 * US, 2 * US, 100 * US, (STREAM, GEMM, 8 | 4 << 32 | 1 << 48)),
        ("launch", 7 * US + late, 7 * US, 2 * US, 20 * US, (0, ADD, 1 | 1 << 32 | 1 << 48)),
        ("run", 3 * US, 3 * US, 2 * US, 260 * US, (STREAM, EXEC, 0)),
        ("record", 300, 300, 1 * US, -1, (STREAM, 5, 0)),
        ("event", 300, 300, 80 * US, -1, (5, 0, 0)),
        ("dtoh-sync", 2_000 * US, 500 * US, 9 * US, -1, (0, 4096, 0)),
    ]


CAPTURE = [
    ("linear", 0, 0, 10 * US, -1, (0, 9000, 1 << 20)),
    ("capture", 5 * US, 5 * US, 2 * US, -1, (STREAM, 0, 0)),
    ("captured", 5 * US, 5 * US, 2 * US, -1, (STREAM, GEMM, 8 | 4 << 32 | 1 << 48)),
    ("captured", 5 * US, 5 * US, 2 * US, -1, (STREAM, ADD, 1 | 1 << 32 | 1 << 48)),
    ("captured-as", 5 * US, 5 * US, 2 * US, -1, (STREAM, GRAPH, 0)),
    ("instantiate", 5 * US, 5 * US, 2 * US, -1, (0, EXEC, GRAPH)),
]


def converted(log: Log, launches: Sequence[Sequence[int]] | None = None) -> Trace:
    return convert(log, "made", "made by hand", "580.1", "2026-01-01", launches)


def test_a_log_becomes_a_trace_with_its_steady_state_as_an_endless_loop() -> None:
    log = log_of(
        [*CAPTURE, *[call for n in range(20) for call in iteration(n)], ("free", 10, 10, 10, -1, (0, 9000, 0))]
    )
    text = converted(log).text()
    assert (
        text.splitlines()[1:]
        == [
            "stream 0 nonblocking",
            "stream 1 legacy",
            "kernel 0 100000 gemm 8x4x1",
            "kernel 1 20000 add_<int> 1x1x1",
            "kernel 2 217000 gemm 8x4x1",  # the graph's two, in proportion, are as long as its launches were
            "kernel 3 43300 add_<int> 1x1x1",
            "graph 0 2 3",
            "thread 0",
            "alloc 0 linear 1048576",
            "repeat 0",
            "  begin iteration",
            "  idle 1500000",
            "  cpu 500000",
            "  copy-sync dtoh 4096",
            "  launch 0 0 1 5000",
            "  launch 0 0 1 5000",
            "  launch 1 1 1 7000",
            "  cpu 3000",
            "  run 0 0",
            "  cpu 300",
            "  record 0 0",
            "  cpu 300",
            "  sync-event 0",
            "  end iteration",
            "again",
        ]
        or text.splitlines()[10:]
    )
    assert parse(text).origin == "recorded"


def test_the_programs_own_marks_bound_the_loop() -> None:
    begin, end = ("begin", 1 * US, 1 * US, 100, -1, (7, 0, 0)), ("end", 1 * US, 1 * US, 100, -1, (7, 0, 0))
    log = log_of([call for n in range(10) for call in (begin, *iteration(n)[:3], end)])
    (thread,) = converted(log).threads
    (loop,) = [item for item in thread if isinstance(item, Repeat)]
    verbs = [event.verb for event in events(loop.body)]
    assert (verbs[0], verbs[-1]) == ("cpu", "end")
    assert "begin" in verbs[:2]


def test_cupti_says_how_long_each_kernel_of_a_graph_ran() -> None:
    log = log_of([*CAPTURE, *[call for n in range(8) for call in iteration(n)]])
    lines, at = [], 0
    for launch in range(32):
        for ns in [(99_000,), (101_000,), (19_000,), (150_000, 50_000)][launch % 4]:
            lines.append(f"{launch * 7 + 3} {at} {at + ns}")
            at += ns + 500
    trace = converted(log, read_kernels("\n".join(lines)))
    assert [(k.duration_ns, k.name) for k in trace.kernels[:2]] == [(100_000, "gemm"), (19_000, "add_<int>")]
    assert [trace.kernels[node].duration_ns for node in trace.graphs[0]] == [150_000, 50_000]
    assert trace.header["durations"] == "CUPTI"


def test_launches_that_cupti_saw_and_the_recorder_did_not_are_an_error() -> None:
    log = log_of(iteration(0))
    with pytest.raises(TraceError, match="CUPTI saw 1 launches of kernels, the recorder 4"):
        converted(log, [[5]])


@pytest.mark.parametrize(
    ("text", "said"),
    [("", "no log"), ("{}", "no log"), ('{"record": 2}', "version 1"), ('{"record": 1}\n1 launch 2', "no log")],
)
def test_what_is_no_log_is_refused(text: str, said: str) -> None:
    with pytest.raises(TraceError, match=said):
        read_log(text)


@given(st.lists(st.integers(0, 2), max_size=8), st.lists(st.integers(3, 9), min_size=1, max_size=5), st.integers(3, 6))
def test_what_repeats_is_found_wherever_it_begins(head: list[int], body: list[int], times: int) -> None:
    begin, period = repetition([*head, *body * times])
    assert 0 < period <= len(body)
    assert begin <= len(head)


def test_what_does_not_repeat_often_enough_is_no_loop() -> None:
    assert LEAST_REPEATS == 3
    assert repetition([1, 2, 3, 1, 2, 3]) == (6, 0)
    assert steady([*[1, 2, 3] * 30, 9, 8, 7]) == (0, 3)


@pytest.mark.parametrize(("ns", "text"), [(0, 0), (149, 100), (1_234, 1200), (98_765, 98_800), (1_234_567, 1_230_000)])
def test_times_have_three_digits(ns: int, text: int) -> None:
    assert rounded(ns) == text


# ---- around a real program ----

SMALL = (
    '{"sharepod_trace": 1, "name": "t", "origin": "synthesised", "sources": {"all": "made up"}}\n'
    "stream 0 nonblocking\nkernel 0 200000 gemm 8x8x1\nkernel 1 50000 add 1x1x1\ngraph 0 0*3 1\nthread 0\n"
    "alloc 0 linear 1000000\nrepeat 40\n  cpu 300000\n  launch 0 0 2 5000\n  launch 0 1\n  run 0 0\n"
    "  copy 0 set 4096\n  record 0 0\n  sync-event 0\n  idle 2000000\nagain\nfree 0\n"
)


def recorded(env: dict[str, str], trace: Path, log: Path, **settings: str) -> str:
    preload = {"LD_PRELOAD": str(build().record), "RECORD_OUTPUT": str(log), **settings}
    program, *_ = replay.command(trace)
    subprocess.run([program, str(trace)], env={**env, **preload}, check=True, capture_output=True, timeout=60)
    return log.read_text(encoding="utf-8")


@pytest.mark.realtime
def test_what_is_recorded_of_a_replay_is_the_trace_that_was_replayed(make_simgpu: MakeSimgpu, tmp_path: Path) -> None:
    path, log = tmp_path / "t.trace", tmp_path / "log"
    path.write_text(SMALL, encoding="utf-8")
    recorded(make_simgpu().env, path, log)
    done = subprocess.run(
        [sys.executable, "-m", "bench.gpu.record", str(log), "--name", "again"],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    trace = parse(done.stdout)
    (loop,) = [item for thread in trace.threads for item in thread if isinstance(item, Repeat)]
    verbs = Counter(event.verb for event in events(loop.body))
    assert loop.count == 0
    assert verbs - Counter({"begin": 1, "end": 1}) == Counter(
        {"cpu": verbs["cpu"], "idle": 1, "launch": 3, "run": 1, "copy": 1, "record": 1, "sync-event": 1}
    )
    durations = {kernel.name: kernel.duration_ns for kernel in trace.kernels[:2]}
    assert durations["k_200us"] == pytest.approx(200_000, rel=0.1)
    assert durations["k_50us"] == pytest.approx(50_000, rel=0.1)
    assert trace.graph_ns(0) == pytest.approx(650_000, rel=0.1)
    assert [trace.kernels[node].name for node in trace.graphs[0]] == ["k_200us"] * 3 + ["k_50us"]
    idle = [int(event.arguments[0]) for event in events(loop.body) if event.verb == "idle"]
    assert idle[0] == pytest.approx(2_000_000, rel=0.5)
    again = tmp_path / "again.trace"
    again.write_text(done.stdout, encoding="utf-8")
    program, *_ = replay.command(again)
    command = [program, str(again), "seconds=100ms", "warm=20ms"]
    subprocess.run(command, env=make_simgpu().env, check=True, capture_output=True, timeout=60)


def test_without_events_the_recorder_makes_none_and_tells_no_durations(make_simgpu: MakeSimgpu, tmp_path: Path) -> None:
    path = tmp_path / "t.trace"
    path.write_text(SMALL.replace("repeat 40", "repeat 3"), encoding="utf-8")
    log = read_log(recorded(make_simgpu().env, path, tmp_path / "log", RECORD_EVENTS="0"))
    assert {call.duration_ns for call in log.calls} == {None}
    assert Counter(call.verb for call in log.calls)["launch"] == 9


def test_a_recorded_program_computes_what_it_would_have(make_simgpu: MakeSimgpu, tmp_path: Path) -> None:
    env = make_simgpu().env | {"LD_PRELOAD": str(build().record)}  # without RECORD_OUTPUT it stays out of the way
    path = tmp_path / "t.trace"
    path.write_text(SMALL.replace("repeat 40", "repeat 2"), encoding="utf-8")
    program, *_ = replay.command(path)
    done = subprocess.run([program, str(path)], env=env, capture_output=True, text=True, check=True, timeout=60)
    assert '"launches": 8' in done.stdout
    assert not (tmp_path / "log").exists()


@pytest.mark.parametrize(("client", "kernel_ns"), [("bindings_client.py", 500_000), ("numba_client.py", 300_000)])
def test_real_clients_are_recorded_and_notice_nothing(
    make_simgpu: MakeSimgpu, repo_root: Path, tmp_path: Path, client: str, kernel_ns: int
) -> None:
    log = tmp_path / "log"
    preload = {"LD_PRELOAD": str(build().record), "RECORD_OUTPUT": str(log)}
    command = [sys.executable, str(repo_root / "tests" / "clients" / client)]
    done = subprocess.run(
        command, env={**make_simgpu().env, **preload}, capture_output=True, text=True, check=True, timeout=60
    )
    assert '"elapsed_ms"' in done.stdout
    calls = read_log(log.read_text(encoding="utf-8")).calls
    durations = [call.duration_ns for call in calls if call.verb == "launch" and call.duration_ns is not None]
    assert len(durations) >= 20
    assert sorted(durations)[len(durations) // 2] == pytest.approx(kernel_ns, rel=0.1)
    assert "linear" in {call.verb for call in calls}


MARKING = """
import ctypes, os
library = ctypes.CDLL("libcuda.so.1")
library.cuInit(0)
recorder = ctypes.CDLL(os.environ["RECORD_LIBRARY"])
for _ in range(3):
    recorder.record_mark(1, b"step")
    recorder.record_mark(0, b"step")
recorder.record_write(os.environ["RECORD_OUTPUT"].encode())
os._exit(0)  # nothing is written at exit
"""


def test_a_program_puts_marks_into_the_recording_and_ends_it_itself(make_simgpu: MakeSimgpu, tmp_path: Path) -> None:
    log, library = tmp_path / "log", str(build().record)
    env = {**make_simgpu().env, "LD_PRELOAD": library, "RECORD_LIBRARY": library, "RECORD_OUTPUT": str(log)}
    subprocess.run([sys.executable, "-c", MARKING], env=env, check=True, timeout=60)
    found = read_log(log.read_text(encoding="utf-8"))
    assert [call.verb for call in found.calls] == ["begin", "end"] * 3
    assert {found.names[call.arguments[0]] for call in found.calls} == {"step"}
