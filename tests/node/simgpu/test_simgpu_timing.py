"""Test how long work takes on a device without other users, and which work waits for which."""

from simgpu_fixtures import NewGpu


def test_a_kernel_takes_the_time_in_its_name_on_any_grid_and_any_other_whole_waves_of_its_grid(new_gpu: NewGpu) -> None:
    gpu = new_gpu(SIMGPU_WAVE_NS="1000")
    gpu.play("""
        module = start()
        for grid in (1, 7, 100000):
            ok(launch(kernel(module, "step_500us"), grid=grid))
        for name in ("_Z9sgemm_7usPfS_", "_ZN3lib4core9sgemm_9usEv", "plain_20ns"):  # also inside a mangled name
            ok(launch(kernel(module, name)))
        for grid in (1, 132, 133, 1320):
            ok(launch(kernel(module, "gemm"), grid=grid))
        ok(cuda.cuCtxSynchronize())
        """)
    kernels = gpu.kernels()
    assert [k.busy_ns for k in kernels[:6]] == [500_000, 500_000, 500_000, 7_000, 9_000, 20]
    assert [k.busy_ns for k in kernels[6:]] == [1000, 1000, 2000, 10000]
    assert all(k.ended_ns - k.started_ns == k.busy_ns for k in kernels)
    assert all(k.submitted_ns < k.started_ns for k in kernels)
    assert {k.name for k in kernels[:3]} == {"step_500us"}
    with gpu.truth() as truth:
        assert truth.devices()[0].busy_ns == 1_530_020


def test_streams_overlap_but_for_the_legacy_one_and_a_wait_on_an_event_orders_them(new_gpu: NewGpu) -> None:
    gpu = new_gpu()
    gpu.play("""
        module = start()
        a, b, blocking, event = new_stream(), new_stream(), new_stream(0), new_event()
        ok(launch(kernel(module, "head_200ms"), a))
        ok(launch(kernel(module, "side_200ms"), b))
        ok(cuda.cuCtxSynchronize())
        ok(launch(kernel(module, "one_3ms"), blocking))
        ok(launch(kernel(module, "two_3ms")))
        ok(launch(kernel(module, "three_3ms"), blocking))
        ok(cuda.cuCtxSynchronize())
        release = hold(a)
        ok(launch(kernel(module, "first_4ms"), a))
        ok(cuda.cuEventRecord(event, a))
        ok(cuda.cuStreamWaitEvent(b, event, 0))
        ok(launch(kernel(module, "second_1ms"), b))
        release()
        ok(cuda.cuCtxSynchronize())
        """)
    k = {kernel.name: kernel for kernel in gpu.kernels()}
    assert k["side_200ms"].started_ns < k["head_200ms"].ended_ns
    assert k["one_3ms"].ended_ns <= k["two_3ms"].started_ns
    assert k["two_3ms"].ended_ns <= k["three_3ms"].started_ns
    assert k["second_1ms"].started_ns == k["first_4ms"].ended_ns
    # Overlapping time counts once, as the busy time of a context is a union.
    both_ns = k["side_200ms"].ended_ns - k["head_200ms"].started_ns
    with gpu.truth() as truth:
        assert truth.devices()[0].busy_ns == both_ns + 14_000_000 < 414_000_000


def test_the_launch_queue_holds_1024_and_then_blocks(new_gpu: NewGpu) -> None:
    told = new_gpu().play("""
        import threading
        f, stream, word = kernel(start(), "k_2us"), new_stream(), c_void_p()
        ok(cuda.cuMemHostAlloc(byref(word), c_size_t(4), 3))
        value = ctypes.cast(word, ctypes.POINTER(c_uint32))
        value[0], launched, context = 0, 0, c_void_p()
        ok(cuda.cuCtxGetCurrent(byref(context)))
        ok(cuda.cuStreamWaitValue32(stream, c_uint64(word.value), 1, 0))

        def fill():
            global launched
            ok(cuda.cuCtxSetCurrent(context))
            for launched in range(1, 1200):
                ok(launch(f, stream))

        thread = threading.Thread(target=fill)
        thread.start()
        while launched < 1024:  # of which the last does not return: the wait in front has a place, too
            time.sleep(0.001)
        time.sleep(0.05)
        print(launched)
        value[0] = 1
        thread.join()
        print(launched)
        """)
    assert told == ["1024", "1199"]
