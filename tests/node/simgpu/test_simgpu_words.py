"""Test stream operations beside kernels and copies: words to write and wait for, spinning kernels, host functions."""

import pytest
from simgpu_fixtures import NewGpu


@pytest.fixture
def prelude() -> str:
    return """
from rig.graphs import *
module, stream, other = start(), new_stream(), new_stream()
memory = allocate(64)
def write(value, bits=32):
    call = cuda.cuStreamWriteValue32_v2 if bits == 32 else cuda.cuStreamWriteValue64_v2
    kind = c_uint32 if bits == 32 else c_uint64
    ok(call(other, c_uint64(memory), kind(value), 0))
    ok(cuda.cuStreamSynchronize(other))
def wait(value, how, bits=32):
    call = cuda.cuStreamWaitValue32_v2 if bits == 32 else cuda.cuStreamWaitValue64_v2
    kind = c_uint32 if bits == 32 else c_uint64
    ok(call(stream, c_uint64(memory), kind(value), how))
def over():
    return cuda.cuStreamQuery(stream) == 0
def pinned(kind):
    host = c_void_p()
    ok(cuda.cuMemHostAlloc(byref(host), c_size_t(4096), 2))
    return kind.from_address(host.value)
"""


def test_a_stream_waits_until_the_word_compares(new_gpu: NewGpu) -> None:
    lines = new_gpu().play("""
        for bits, how, value, others, reached in (
            (32, AT_LEAST, 5, [0, 4, 0x80000006], 5),
            (32, AT_LEAST, 0xFFFFFFFF, [0xFFFFFFFE, 0x7FFFFFFF], 3),
            (32, EQUAL, 5, [0, 4, 6], 5),
            (32, ANY_BIT, 6, [0, 1, 8], 4),
            (32, NEITHER, 0xFFFF0000, [0x0000FFFF, 0xFFFFFFFF], 0x0000FFFE),
            (64, AT_LEAST, 1 << 40, [0, (1 << 40) - 1], 1 << 40),
            (64, EQUAL, (1 << 40) + 5, [5, 1 << 40], (1 << 40) + 5),
            (64, ANY_BIT, 1 << 40, [1, 1 << 41], 3 << 40),
            (64, NEITHER, 1 << 40, [(1 << 64) - 1], 1),
        ):
            write(others[0], bits)
            wait(value, how, bits)
            for word in others:
                write(word, bits)
                assert not over(), (bits, how, value, word)
            write(reached, bits)
            ok(cuda.cuStreamSynchronize(stream))
        print("all")
        """)
    assert lines == ["all"]


def test_a_wait_holds_its_stream_alone_and_is_over_when_the_write_is(new_gpu: NewGpu) -> None:
    lines = new_gpu().play("""
        begin, end, free = new_event(), new_event(), new_event()
        wait(1, EQUAL)
        ok(launch(kernel(module, "after_1ms"), stream))
        ok(cuda.cuEventRecord(end, stream))
        # All is queued before any of it runs: what is measured is the device's time, not the host's between two calls.
        ok(cuda.cuStreamWaitValue32_v2(other, c_uint64(memory + 8), c_uint32(1), EQUAL))
        ok(cuda.cuEventRecord(begin, other))
        ok(launch(kernel(module, "before_10ms"), other))
        ok(cuda.cuStreamWriteValue32(other, c_uint64(memory), 1, 0))
        ok(cuda.cuEventRecord(free, other))
        ok(cuda.cuStreamWriteValue32_v2(new_stream(), c_uint64(memory + 8), c_uint32(1), 0))
        ok(cuda.cuStreamSynchronize(stream))
        print(round(elapsed_us(begin, free)), round(elapsed_us(free, end)))
        """)
    assert lines == ["10000 1000"]


def test_the_hosts_own_store_is_seen_by_a_thread_that_waits(new_gpu: NewGpu) -> None:
    lines = new_gpu().play("""
        import threading
        word = pinned(c_uint64)
        ok(cuda.cuStreamWaitValue64(stream, c_uint64(ctypes.addressof(word)), c_uint64(7), EQUAL))
        def store():
            word.value = 7
        timer = threading.Timer(0.05, store)
        start_s = time.monotonic()
        timer.start()
        ok(cuda.cuStreamSynchronize(stream))
        print(time.monotonic() - start_s > 0.04)
        timer.join()
        """)
    assert lines == ["True"]


@pytest.mark.parametrize("call", ["cuStreamBatchMemOp", "cuStreamBatchMemOp_v2", "cuStreamBatchMemOp_v2_ptsz"])
def test_a_batch_is_done_in_order(new_gpu: NewGpu, call: str) -> None:
    lines = new_gpu().play(f"""
        seen = (c_uint32 * 2)()
        words = operations((WRITE_32, memory, 1, 0), (WAIT_32, memory, 2, EQUAL), (WRITE_32, memory + 4, 3, 0))
        ok(cuda.{call}(stream, 3, words, 0))
        def read():
            ok(cuda.cuMemcpyDtoHAsync_v2(seen, c_uint64(memory), c_size_t(8), other))
            ok(cuda.cuStreamSynchronize(other))
            return list(seen)
        print(read(), over())
        write(2)
        ok(cuda.cuStreamSynchronize(stream))
        print(read(), over())
        """)
    assert lines == ["[1, 0] False", "[2, 3] True"]


def test_work_that_waits_for_a_word_ends_with_its_process(new_gpu: NewGpu) -> None:
    gpu = new_gpu()
    gpu.play("wait(1, EQUAL)\nok(launch(kernel(module, 'k_1ms'), stream))")
    assert gpu.play("print(over())") == ["True"]


@pytest.mark.parametrize("bits", [32, 64])
@pytest.mark.parametrize("own", ["", "_ptsz"])
def test_a_word_written_by_a_stream_appears_in_one_go_when_the_work_before_it_is_done(
    new_gpu: NewGpu, bits: int, own: str
) -> None:
    lines = new_gpu().play(f"""
        word, done = pinned(c_uint{bits}), new_event()
        address, value = c_uint64(ctypes.addressof(word)), c_uint{bits}(0x123456789abcdef0)
        ok(launch(kernel(module, "k_400ms"), stream))
        ok(cuda.cuStreamWriteValue{bits}_v2{own}(stream, address, value, 0))
        ok(launch(kernel(module, "k_400ms"), stream))
        ok(cuda.cuEventRecord(done, stream))
        print(word.value)
        while not word.value:
            assert cuda.cuEventQuery(done) == 600
        print(word.value == value.value)
        """)
    assert lines == ["0", "True"]


def test_a_thread_that_sleeps_in_the_driver_writes_the_words_of_work_submitted_later(new_gpu: NewGpu) -> None:
    lines = new_gpu().play("""
        import threading
        word, long, context = pinned(c_uint32), new_event(), c_void_p()
        ok(launch(kernel(module, "k_500ms"), other))
        ok(cuda.cuEventRecord(long, other))
        ok(cuda.cuCtxGetCurrent(byref(context)))
        sleeper = threading.Thread(target=lambda: (cuda.cuCtxSetCurrent(context), cuda.cuEventSynchronize(long)))
        sleeper.start()
        time.sleep(0.015)
        ok(launch(kernel(module, "k_1ms"), stream))
        ok(cuda.cuStreamWriteValue32_v2(stream, c_uint64(ctypes.addressof(word)), 1, 0))
        while not word.value:  # without a call of the driver, which would write it here
            time.sleep(0.0001)
        print(cuda.cuEventQuery(long))
        sleeper.join()
        """)
    assert lines == ["600"]


RELEASES = (
    "ok(cuda.cuStreamWriteValue32_v2(other, c_uint64(word), 1, 0))",
    "ok(cuda.cuMemsetD32Async(c_uint64(word), 1, c_size_t(1), other))",
    "ok(cuda.cuMemcpyHtoDAsync_v2(c_uint64(word), byref(one), c_size_t(4), other))",
    "ok(cuda.cuLaunchHostFunc(other, write_it, None))",
)


def test_a_spinning_kernel_runs_until_its_word_is_written(new_gpu: NewGpu) -> None:
    gpu = new_gpu()
    text = "one, write_it = c_uint32(1), HOST_FUNCTION(lambda _: ctypes.memset(word, 1, 4) and None)\n"
    for release in RELEASES:
        text += f"""
word = allocate(4)
ok(launch(kernel(module, "spin_until"), stream, word=word))
time.sleep(0.02)
assert cuda.cuStreamQuery(stream) == 600
ok(launch(kernel(module, "k_3ms"), other))
{release}
ok(cuda.cuStreamSynchronize(stream))
"""
    gpu.play(text)
    spins, before = ([k for k in gpu.kernels() if k.name == name] for name in ("spin_until", "k_3ms"))
    assert len(spins) == len(before) == len(RELEASES)
    for spin, ahead in zip(spins, before, strict=True):
        assert spin.busy_ns > 22_000_000
        assert spin.ended_ns >= ahead.ended_ns


def test_a_spin_on_one_device_is_released_from_another(new_gpu: NewGpu) -> None:
    gpu = new_gpu("2xH200")
    gpu.play("""
        ok(launch(kernel(module, "spin_until"), stream, word=memory))
        second = kernel(start(1), "k_5ms")
        there = new_stream()
        ok(launch(second, there))
        ok(cuda.cuStreamWriteValue32_v2(there, c_uint64(memory), 1, 0))
        ok(cuda.cuStreamSynchronize(stream))
        """)
    (spin,), (ahead,) = (gpu.kernels(device) for device in (0, 1))
    assert spin.ended_ns >= ahead.ended_ns


def test_host_functions_and_callbacks_hold_their_stream_and_may_not_call_the_driver(new_gpu: NewGpu) -> None:
    lines = new_gpu().play("""
        CALLBACK = ctypes.CFUNCTYPE(None, c_void_p, c_int, c_void_p)
        first, last, seen = new_event(), new_event(), []

        def slow(_):
            seen.append(cuda.cuMemAlloc_v2(byref(c_uint64()), c_size_t(4)))
            time.sleep(0.02)

        call = HOST_FUNCTION(slow)
        callback = CALLBACK(lambda where, result, data: seen.append((where == stream.value, result, data)))
        release = hold(stream)
        ok(cuda.cuEventRecord(first, stream))
        ok(launch(kernel(module, "k_2ms"), stream))
        ok(cuda.cuLaunchHostFunc(stream, call, None))
        ok(cuda.cuStreamAddCallback(stream, callback, c_void_p(77), 0))
        ok(launch(kernel(module, "k_1ms"), stream))
        ok(cuda.cuEventRecord(last, stream))
        print(seen)
        release()
        ok(cuda.cuStreamSynchronize(stream))
        print(seen, elapsed_us(first, last) > 23_000)
        """)
    assert lines == ["[]", "[800, (True, 0, 77)] True"]
