"""Several processes on one device: who gets how much, and what happens when one of them dies."""

import os
import random
import signal
import subprocess
import time
from collections.abc import Callable

import pytest

from rig.gpu import MakeSimgpu, SimulatedGpu
from rig.until import until
from sharepod.simgpu.truth import Truth

Start = Callable[..., "subprocess.Popen[str]"]
Run = Callable[..., str]

LOOP = """
    f, waits, out = kernel(start(), sys.argv[1]), sys.argv[2] == "sync", sys.stdout
    allocate(1 << 30)
    print("ready", flush=True)
    while True:
        ok(launch(f))
        if waits:
            ok(cuda.cuStreamSynchronize(None))
    """


def measure_shares(gpu: SimulatedGpu, start: Start, *loops: tuple[str, str], seconds: float = 0.8) -> list[float]:
    """Return each program's busy time as a percentage of the time that passed."""
    processes = [start(gpu, LOOP, *loop) for loop in loops]
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    with Truth(gpu.state) as truth:
        time.sleep(0.1)
        before = {c.pid: c.busy_ns for c in truth.contexts(0)}
        begin_ns = truth.now_ns()
        time.sleep(seconds)
        after = {c.pid: c.busy_ns for c in truth.contexts(0)}
        end_ns = truth.now_ns()
    for process in processes:
        process.kill()
        process.communicate()
    return [100 * (after[p.pid] - before[p.pid]) / (end_ns - begin_ns) for p in processes]


NO_COST = {"SIMGPU_SWITCH_US": "0", "SIMGPU_DRAIN_SWITCH_US": "0"}


@pytest.mark.realtime
def test_two_deep_queues_share_equally_and_lose_about_a_tenth_to_switching(
    make_simgpu: MakeSimgpu, start: Start
) -> None:
    first, second = measure_shares(make_simgpu(), start, ("k_1ms", "deep"), ("k_1ms", "deep"))
    assert first == pytest.approx(second, abs=1)
    assert 90 <= first + second <= 92.5


@pytest.mark.realtime
def test_two_deep_queues_and_a_loop_share_by_the_formula(make_simgpu: MakeSimgpu, start: Start) -> None:
    shares = measure_shares(
        make_simgpu(**NO_COST), start, ("k_1ms", "deep"), ("k_1ms", "deep"), ("k_500us", "sync"), seconds=1.2
    )
    assert shares == pytest.approx([44.4, 44.4, 11.1], abs=1.5)


def test_a_process_killed_while_it_submits_leaves_nothing_stuck_and_no_memory(
    make_simgpu: MakeSimgpu, start: Start, run: Run
) -> None:
    gpu = make_simgpu()
    for attempt in range(30):
        victim = start(gpu, LOOP, "k_5us", "sync" if attempt % 2 else "deep")
        assert victim.stdout is not None
        assert victim.stdout.readline() == "ready\n"
        time.sleep(random.Random(attempt).uniform(0.0005, 0.02))
        victim.kill()
        victim.wait()
    run(gpu, 'f = kernel(start(), "k_1ms"); ok(launch(f)); ok(cuda.cuCtxSynchronize())')
    with Truth(gpu.state) as truth:
        contexts = truth.contexts(0)
        assert len(contexts) == 31
        assert not [c for c in contexts if c.alive]
        assert truth.devices()[0].memory_used_bytes == 0
        busy_ns = truth.devices()[0].busy_ns
        assert sum(c.busy_ns for c in contexts) == busy_ns
        time.sleep(0.02)
        assert truth.devices()[0].busy_ns == busy_ns


def test_capacity_is_shared_by_all_processes_and_comes_back_with_their_death(
    make_simgpu: MakeSimgpu, start: Start, run: Run
) -> None:
    gpu = make_simgpu("1xA10", SIMGPU_MEMORY_MIB="1000")
    holder = start(gpu, "start(); allocate(600 << 20); print('ready', flush=True); time.sleep(60)")
    assert holder.stdout is not None
    assert holder.stdout.readline() == "ready\n"
    ask = """
        start()
        address, free, total = c_uint64(), c_size_t(), c_size_t()
        result = cuda.cuMemAlloc_v2(byref(address), c_size_t(500 << 20))
        ok(cuda.cuMemGetInfo_v2(byref(free), byref(total)))
        print(result, free.value >> 20, total.value >> 20)
        """
    assert run(gpu, ask).split() == ["2", "400", "1000"]
    holder.kill()
    holder.wait()
    assert run(gpu, ask).split() == ["0", "500", "1000"]


def test_a_forked_child_cannot_use_the_driver_and_its_parent_goes_on(make_simgpu: MakeSimgpu, run: Run) -> None:
    gpu = make_simgpu()
    output = run(
        gpu,
        """
        import os
        f = kernel(start(), "k_1ms")
        child = os.fork()
        if not child:
            results = [cuda.cuInit(0), launch(f), cuda.cuCtxSynchronize(), cuda.cuCtxGetCurrent(byref(c_void_p()))]
            os._exit(0 if results == [3, 3, 3, 3] else 1)
        assert os.waitpid(child, 0)[1] == 0
        ok(launch(f))
        ok(cuda.cuCtxSynchronize())
        print("alive")
        """,
    )
    assert output == "alive\n"
    with Truth(gpu.state) as truth:
        assert truth.devices()[0].busy_ns == 1_000_000


def test_a_context_dies_with_its_process_even_if_a_forked_child_lives_on(make_simgpu: MakeSimgpu, start: Start) -> None:
    gpu = make_simgpu()
    process = start(
        gpu,
        """
        import os, signal
        start()
        child = os.fork()
        if not child:
            for descriptor in range(3):
                os.close(descriptor)
            time.sleep(60)
            os._exit(0)
        print(child, flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
        """,
    )
    assert process.stdout is not None
    child = int(process.stdout.readline())
    process.wait()
    try:
        with Truth(gpu.state) as truth:
            until(lambda: [c.alive for c in truth.contexts(0)] == [False])
    finally:
        os.kill(child, signal.SIGKILL)


def test_a_lost_device_fails_its_contexts_and_recovers_for_new_ones(make_simgpu: MakeSimgpu, start: Start) -> None:
    gpu = make_simgpu("2xH200")
    text = """
        f = kernel(start(int(sys.argv[1])), "k_1ms")
        print("ready", flush=True)
        while not (result := launch(f) or cuda.cuCtxSynchronize()):
            pass
        print(result)
        """
    victim = start(gpu, text, "1")
    assert victim.stdout is not None
    assert victim.stdout.readline() == "ready\n"
    with Truth(gpu.state) as truth:
        truth.inject_xid(1, 79)
        assert victim.communicate(timeout=10)[0] == "46\n"
        refused = start(gpu, "ok(cuda.cuInit(0)); print(cuda.cuDevicePrimaryCtxRetain(byref(c_void_p()), 1))")
        assert refused.communicate(timeout=10)[0] == "46\n"
        truth.recover(1)
    accepted = start(gpu, 'f = kernel(start(1), "k_1ms"); ok(launch(f)); print(cuda.cuCtxSynchronize())')
    assert accepted.communicate(timeout=10)[0] == "0\n"
