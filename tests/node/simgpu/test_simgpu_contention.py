"""Several processes on one device: who gets how much, and what happens when one of them dies."""

import os
import random
import signal
import time
from collections.abc import Callable

from contenders import LOOP, Start

from rig.gpu import MakeSimgpu
from rig.until import until
from sharepod.simgpu.truth import Truth

Run = Callable[..., str]


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
