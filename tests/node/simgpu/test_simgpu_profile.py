"""Test each property of a profile of the simulated hardware, as a program sees it."""

import json
import subprocess
import time
from pathlib import Path

import pytest
from simgpu_fixtures import LOOP, NewGpu

QUEUED = """
    module = start()
    f, first, last, release = kernel(module, "k_300us"), new_event(), new_event(), hold()
    ok(launch(kernel(module, "ahead_5ms")))
    ok(cuda.cuEventRecord(first, None))
    for _ in range(4):
        ok(launch(f))
    ok(cuda.cuEventRecord(last, None))
    release()
    ok(cuda.cuEventSynchronize(last))
    print(elapsed_us(first, last))
    """
"""A program that prints how long four kernels of 300 µs take, by two events."""

SIDE_BY_SIDE = """
    module = start()
    a, b, event = new_stream(), new_stream(), new_event()
    release = hold(a)
    ok(launch(kernel(module, "head_5ms"), a))  # what waits for its end begins with it, however late the host is
    ok(cuda.cuEventRecord(event, a))
    ok(cuda.cuStreamWaitEvent(b, event, 0))
    ok(launch(kernel(module, "one_40ms"), a, grid=int(sys.argv[1])))
    ok(launch(kernel(module, "two_40ms"), b, grid=int(sys.argv[1])))
    release()
    ok(cuda.cuCtxSynchronize())
    """


def test_a_timing_event_leaves_a_gap_and_tells_time_in_steps(new_gpu: NewGpu) -> None:
    gpu = new_gpu(SIMGPU_RECORD_GAP_NS="40000", SIMGPU_EVENT_RESOLUTION_NS="7000")
    (took_us,) = gpu.play(QUEUED)
    # Each event has the time at the end of its own gap, so one of the two gaps lies between the events.
    assert round(float(took_us)) in (1239, 1246)
    ahead, begun = gpu.kernels()[:2]
    assert begun.started_ns - ahead.ended_ns == 40_000
    with gpu.truth() as truth:
        assert truth.devices()[0].busy_ns == 5_000_000 + 4 * 300_000  # a gap does not count as work


def test_an_event_without_timing_leaves_none(new_gpu: NewGpu) -> None:
    gpu = new_gpu(SIMGPU_RECORD_GAP_NS="40000")
    gpu.play("""
        module = start()
        f, event, release = kernel(module, "k_300us"), new_event(2), hold()
        for _ in range(2):
            ok(launch(f))
            ok(cuda.cuEventRecord(event, None))
        release()
        ok(cuda.cuCtxSynchronize())
        """)
    first, second = gpu.kernels()
    assert second.started_ns == first.ended_ns


@pytest.mark.parametrize(("device", "ratio"), [(0, 1.001), (1, 0.999)])
def test_the_clocks_of_devices_drift_apart(new_gpu: NewGpu, device: int, ratio: float) -> None:
    gpu = new_gpu("2xH200", SIMGPU_EVENT_DRIFT_PPM="1000", CUDA_VISIBLE_DEVICES=str(device))
    (took_us,) = gpu.play(QUEUED)
    assert float(took_us) == pytest.approx(1200 * ratio, abs=0.01)


@pytest.mark.parametrize("grid", [132, 99, 66, 10])
def test_streams_share_the_sms_unless_a_grid_leaves_room(new_gpu: NewGpu, grid: int) -> None:
    gpu = new_gpu(SIMGPU_STREAMS_SHARE_SMS="1")
    gpu.play(SIDE_BY_SIDE, grid)
    one, two = (next(k for k in gpu.kernels() if k.name == name) for name in ("one_40ms", "two_40ms"))
    assert one.started_ns == two.started_ns
    assert [k.busy_ns for k in (one, two)] == pytest.approx([40e6 * max(1.0, 2 * grid / 132)] * 2, rel=0.002)


def test_neighbours_on_the_sms_interfere(new_gpu: NewGpu) -> None:
    gpu = new_gpu(SIMGPU_STREAMS_SHARE_SMS="1", SIMGPU_INTERFERENCE_PERCENT="25")
    gpu.play(SIDE_BY_SIDE, 132)
    one, two = (next(k for k in gpu.kernels() if k.name == name) for name in ("one_40ms", "two_40ms"))
    assert [k.busy_ns for k in (one, two)] == [100_000_000] * 2


@pytest.mark.parametrize(("shared", "busy_ns"), [("0", 750_000), ("1", 1_050_000)])
def test_branches_of_a_graph_share_the_sms_too(new_gpu: NewGpu, shared: str, busy_ns: int) -> None:
    gpu = new_gpu(SIMGPU_STREAMS_SHARE_SMS=shared)
    gpu.play("""
        module = start()
        a, b, fork, join = new_stream(), new_stream(), new_event(), new_event()
        graph, executable = c_void_p(), c_void_p()
        ok(cuda.cuStreamBeginCapture_v2(a, GLOBAL))
        ok(cuda.cuEventRecord(fork, a))
        ok(cuda.cuStreamWaitEvent(b, fork, 0))
        ok(launch(kernel(module, "side_700us"), b, grid=132))
        ok(launch(kernel(module, "main_300us"), a, grid=132))
        ok(cuda.cuEventRecord(join, b))
        ok(cuda.cuStreamWaitEvent(a, join, 0))
        ok(launch(kernel(module, "tail_50us"), a, grid=132))
        ok(cuda.cuStreamEndCapture(a, byref(graph)))
        ok(cuda.cuGraphInstantiateWithFlags(byref(executable), graph, c_uint64(0)))
        ok(cuda.cuGraphLaunch(executable, a))
        ok(cuda.cuStreamSynchronize(a))
        """)
    assert [k.busy_ns for k in gpu.kernels()] == [busy_ns]


def test_a_kernel_takes_what_its_data_make_it_take(new_gpu: NewGpu) -> None:
    gpu = new_gpu()
    gpu.play("""
        f = kernel(start(), "attention_var")
        for nanoseconds in (20000, 1000000, 3):
            ok(launch(f, word=nanoseconds))
        ok(cuda.cuCtxSynchronize())
        """)
    assert [k.busy_ns for k in gpu.kernels()] == [20_000, 1_000_000, 3]


def test_an_emptied_context_may_keep_its_slice(new_gpu: NewGpu) -> None:
    gpu = new_gpu(SIMGPU_DRAIN_STAY_US="800", SIMGPU_DRAIN_SWITCH_US="0", SIMGPU_LOG_KERNELS="10000")
    gpu.ready(LOOP, "steady_100us", "deep")  # it always has work, so each rare kernel begins a slice of its own
    gpu.play("""
        f = kernel(start(), "rare_100us")
        for _ in range(30):
            ok(launch(f))
            ok(cuda.cuStreamSynchronize(None))
            time.sleep(0.005)
        """)
    kernels = gpu.kernels()
    rare = [n for n, k in enumerate(kernels[:-1]) if k.name == "rare_100us"]
    assert len(rare) == 30
    assert min(kernels[n + 1].ended_ns - kernels[n].ended_ns for n in rare) >= 800_000


@pytest.mark.parametrize("profile", ["ideal", "typical", "harsh"])
def test_a_profile_has_a_name_and_a_variable_overrides_one_property(new_gpu: NewGpu, profile: str) -> None:
    gap_ns = {"ideal": 0, "typical": 1000, "harsh": 2500}[profile]
    for setting, expected in (({}, gap_ns), ({"SIMGPU_RECORD_GAP_NS": "9000"}, 9000)):
        gpu = new_gpu(SIMGPU_PROFILE=profile, **setting)
        gpu.play(QUEUED)
        ahead, begun = gpu.kernels()[:2]
        assert begun.started_ns - ahead.ended_ns == expected


def test_a_file_may_be_a_profile_and_what_it_does_not_say_is_typical(new_gpu: NewGpu, tmp_path: Path) -> None:
    path = tmp_path / "profile.json"
    for content in ({"record_gap_ns": 7000}, {"machine": "x", "profile": {"slice_us": 500, "record_gap_ns": 7000}}):
        path.write_text(json.dumps(content, indent=2))
        gpu = new_gpu(SIMGPU_PROFILE=str(path))
        gpu.play(QUEUED)
        ahead, begun = gpu.kernels()[:2]
        assert begun.started_ns - ahead.ended_ns == 7000
        assert ahead.started_ns - ahead.submitted_ns >= 5000


@pytest.mark.parametrize(
    "content", ['{"slise_us": 3}', '{"slice_us": "3"}', '{"slice_us": 0}', '{"slice_us": 1', "{", "", None]
)
def test_a_wrong_profile_is_refused(new_gpu: NewGpu, tmp_path: Path, content: str | None) -> None:
    path, log = tmp_path / "profile.json", tmp_path / "log"
    if content is not None:
        path.write_text(content)
    (told,) = new_gpu(SIMGPU_PROFILE=str(path), SIMGPU_LOG=str(log)).play("print(cuda.cuInit(0))")
    assert told == "100"
    assert "settings" in log.read_text()


def test_a_program_in_a_time_namespace_is_on_the_same_clock(new_gpu: NewGpu) -> None:
    gpu = new_gpu()
    gpu.play("ok(launch(kernel(start(), 'k_1ms'))); ok(cuda.cuCtxSynchronize())")
    away = ["unshare", "--time", "--monotonic", "1000000"]
    if subprocess.run([*away, "true"], check=False, capture_output=True).returncode:
        pytest.skip("a time namespace needs root")
    began_ns = time.monotonic_ns()
    gpu.start(SLOWLY, within=away).lines()
    gpu.play("ok(launch(kernel(start(), 'k_1ms'))); ok(cuda.cuCtxSynchronize())")
    assert all(began_ns <= k.ended_ns <= time.monotonic_ns() for k in gpu.kernels()[1:])
    assert len(gpu.kernels()) == 3


def test_a_program_whose_clock_stands_still_does_not_stop_the_machine(new_gpu: NewGpu, tmp_path: Path) -> None:
    library = tmp_path / "frozen.so"
    source = "#include <time.h>\nint clock_gettime(clockid_t clock, struct timespec *now) {"
    source += " *now = (struct timespec){1, clock}; return 0; }\n"
    compiler = ["cc", "-shared", "-fPIC", "-x", "c", "-", "-o", str(library)]
    subprocess.run(compiler, input=source, text=True, check=True)
    gpu = new_gpu()
    gpu.play(SLOWLY, LD_PRELOAD=str(library))
    gpu.play(SLOWLY)
    first, second = gpu.kernels()
    assert first.ended_ns < second.started_ns < second.ended_ns <= time.monotonic_ns()


SLOWLY = """
ok(launch(kernel(start(), "k_100ms")))
ok(cuda.cuCtxSynchronize())
"""
