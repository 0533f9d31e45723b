"""Memory, copies, words that streams write, and kernels that wait for such a word."""

import resource
from collections.abc import Callable

import pytest

from rig.gpu import MakeSimgpu
from sharepod.simgpu.truth import Truth

Run = Callable[..., str]


def test_copies_and_sets_move_the_bytes(make_simgpu: MakeSimgpu, run: Run) -> None:
    output = run(
        make_simgpu(),
        """
        start()
        a, b, size = allocate(1 << 20), allocate(1 << 20), c_size_t(1 << 20)
        source, target = bytes(range(256)) * 4096, ctypes.create_string_buffer(1 << 20)
        ok(cuda.cuMemcpyHtoD_v2(c_uint64(a), source, size))
        ok(cuda.cuMemcpyDtoD_v2(c_uint64(b), c_uint64(a), size))
        ok(cuda.cuMemcpyDtoH_v2(target, c_uint64(b), size))
        print(target.raw == source)
        ok(cuda.cuMemsetD8_v2(c_uint64(b), 3, c_size_t(100)))
        ok(cuda.cuMemsetD2D32_v2(c_uint64(b + 512), c_size_t(512), 0x01020304, c_size_t(2), c_size_t(3)))
        ok(cuda.cuMemcpyDtoH_v2(target, c_uint64(b), size))
        print(target.raw[:101] == bytes([3]) * 100 + source[100:101])
        print([target.raw[512 * n : 512 * n + 9] == bytes([4, 3, 2, 1, 4, 3, 2, 1, 8]) for n in (1, 2, 3, 4)])
        ok(cuda.cuMemsetD8_v2(c_uint64(b), 0, size))
        ok(cuda.cuMemcpyDtoH_v2(target, c_uint64(b), size))
        print(set(target.raw) == {0})
        """,
    )
    assert output.splitlines() == ["True", "True", "[True, True, True, False]", "True"]


def test_a_pageable_source_may_change_as_soon_as_the_call_is_back(make_simgpu: MakeSimgpu, run: Run) -> None:
    output = run(
        make_simgpu(),
        """
        module, stream = start(), new_stream()
        address, source, target = allocate(64), (c_uint32 * 16)(*[5] * 16), (c_uint32 * 16)()
        ok(launch(kernel(module, "ahead_5ms"), stream))
        ok(cuda.cuMemcpyHtoDAsync_v2(c_uint64(address), source, c_size_t(64), stream))
        source[0] = 6
        ok(cuda.cuStreamSynchronize(stream))
        ok(cuda.cuMemcpyDtoH_v2(target, c_uint64(address), c_size_t(64)))
        print(set(target))
        """,
    )
    assert output == "{5}\n"


def test_huge_allocations_take_no_ram_and_count_to_the_byte(make_simgpu: MakeSimgpu, run: Run) -> None:
    before_kib = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    output = run(
        make_simgpu(),
        """
        start()
        free, total, failed = c_size_t(), c_size_t(), c_uint64()
        ok(cuda.cuMemGetInfo_v2(byref(free), byref(total)))
        address = allocate(free.value - 1)
        print(cuda.cuMemAlloc_v2(byref(failed), c_size_t(2)))
        ok(cuda.cuMemsetD8_v2(c_uint64(address), 0, c_size_t(free.value - 1)))
        ok(cuda.cuMemGetInfo_v2(byref(free), byref(total)))
        print(free.value)
        ok(cuda.cuMemFree_v2(c_uint64(address)))
        ok(cuda.cuMemGetInfo_v2(byref(free), byref(total)))
        print(free.value == total.value)
        """,
    )
    assert output.split() == ["2", "1", "True"]
    assert max(0, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss - before_kib) < 200 * 1024


def test_a_word_written_by_a_stream_appears_when_the_work_before_it_is_done(make_simgpu: MakeSimgpu, run: Run) -> None:
    output = run(
        make_simgpu(),
        """
        module, stream, word = start(), new_stream(), c_void_p()
        ok(cuda.cuMemHostAlloc(byref(word), c_size_t(4096), 2))
        value = ctypes.cast(word, ctypes.POINTER(c_uint32))
        value[0] = 0
        done = new_event()
        ok(launch(kernel(module, "k_400ms"), stream))
        ok(cuda.cuStreamWriteValue32_v2(stream, c_uint64(word.value), 9, 0))
        ok(launch(kernel(module, "k_400ms"), stream))
        ok(cuda.cuEventRecord(done, stream))
        early = value[0]
        while not value[0]:
            assert cuda.cuEventQuery(done) == 600
        print(early, value[0])
        """,
    )
    assert output == "0 9\n"


def test_a_thread_that_sleeps_in_the_driver_writes_the_words_of_work_submitted_later(
    make_simgpu: MakeSimgpu, run: Run
) -> None:
    run(
        make_simgpu(),
        """
        import threading
        module, stream, other, long, word = start(), new_stream(), new_stream(), new_event(), c_void_p()
        ok(cuda.cuMemHostAlloc(byref(word), c_size_t(4096), 2))
        value = ctypes.cast(word, ctypes.POINTER(c_uint32))
        value[0] = 0
        ok(launch(kernel(module, "k_500ms"), other))
        ok(cuda.cuEventRecord(long, other))
        context = c_void_p()
        ok(cuda.cuCtxGetCurrent(byref(context)))
        sleeper = threading.Thread(target=lambda: (cuda.cuCtxSetCurrent(context), cuda.cuEventSynchronize(long)))
        sleeper.start()
        time.sleep(0.015)
        ok(launch(kernel(module, "k_1ms"), stream))
        ok(cuda.cuStreamWriteValue32_v2(stream, c_uint64(word.value), 1, 0))
        while not value[0]:  # without a call of the driver, which would write it here
            time.sleep(0.0001)
        assert cuda.cuEventQuery(long) == 600
        sleeper.join()
        """,
    )


RELEASES = (
    "ok(cuda.cuStreamWriteValue32_v2(other, c_uint64(word), 1, 0))",
    "ok(cuda.cuMemsetD32Async(c_uint64(word), 1, c_size_t(1), other))",
    "ok(cuda.cuMemcpyHtoDAsync_v2(c_uint64(word), byref(one), c_size_t(4), other))",
    "ok(cuda.cuLaunchHostFunc(other, write_it, None))",
)


def test_a_spinning_kernel_runs_until_its_word_is_written(make_simgpu: MakeSimgpu, run: Run) -> None:
    gpu = make_simgpu(SIMGPU_LOG_KERNELS="20")
    text = """
        module, stream, other, one = start(), new_stream(), new_stream(), c_uint32(1)
        write_it = HOST_FUNCTION(lambda _: ctypes.memset(word, 1, 4) and None)
        """
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
    run(gpu, text)
    with Truth(gpu.state) as truth:
        spins, before = ([k for k in truth.kernels(0) if k.name == name] for name in ("spin_until", "k_3ms"))
    assert len(spins) == len(before) == len(RELEASES)
    for spin, ahead in zip(spins, before, strict=True):
        assert spin.busy_ns > 22_000_000
        assert spin.ended_ns >= ahead.ended_ns


def test_a_spin_on_one_device_is_released_from_another(make_simgpu: MakeSimgpu, run: Run) -> None:
    gpu = make_simgpu("2xH200", SIMGPU_LOG_KERNELS="10")
    run(
        gpu,
        """
        module = start(0)
        first, word = new_stream(), allocate(4)
        ok(launch(kernel(module, "spin_until"), first, word=word))
        module = start(1)
        second = new_stream()
        ok(launch(kernel(module, "k_5ms"), second))
        ok(cuda.cuStreamWriteValue32_v2(second, c_uint64(word), 1, 0))
        ok(cuda.cuStreamSynchronize(first))
        """,
    )
    with Truth(gpu.state) as truth:
        (spin,), (ahead,) = (truth.kernels(device) for device in (0, 1))
    assert spin.ended_ns >= ahead.ended_ns


def test_a_host_function_holds_its_stream_and_may_not_call_the_driver(make_simgpu: MakeSimgpu, run: Run) -> None:
    output = run(
        make_simgpu(),
        """
        module, stream, first, last, seen = start(), new_stream(), new_event(), new_event(), []

        def slow(_):
            seen.append(cuda.cuMemAlloc_v2(byref(c_uint64()), c_size_t(4)))
            time.sleep(0.02)

        call = HOST_FUNCTION(slow)
        ok(cuda.cuEventRecord(first, stream))
        ok(cuda.cuLaunchHostFunc(stream, call, None))
        ok(launch(kernel(module, "k_1ms"), stream))
        ok(cuda.cuEventRecord(last, stream))
        ok(cuda.cuStreamSynchronize(stream))
        print(seen[0], elapsed_us(first, last))
        """,
    )
    result, microseconds = output.split()
    assert result == "800"
    assert float(microseconds) > 21_000


@pytest.mark.parametrize("name", ["module", "library"])
def test_modules_take_what_is_set_and_give_it_back(make_simgpu: MakeSimgpu, run: Run, name: str) -> None:
    image = 'b"\\x7fELF" + bytes(64)'
    loading = (
        f"ok(cuda.cuModuleLoadData(byref(one), {image}))"
        if name == "module"
        else f"ok(cuda.cuLibraryLoadData(byref(one), {image}, None, None, 0, None, None, 0))"
    )
    output = run(
        make_simgpu(SIMGPU_MODULE_KIB="300", SIMGPU_CONTEXT_MIB="5"),
        f"""
        from rig.holdings import *
        start()
        one = c_void_p()
        before = used()
        {loading}
        after = used()
        ok(cuda.cu{name.title()}Unload(one))
        print(before, after, used(), account().contexts_bytes)
        """,
    )
    one = (5 << 20) + 300 * 1024  # start() has loaded one
    assert output.split() == [str(one), str(one + 300 * 1024), str(one), str(one)]


def test_pointers_tell_what_they_are(make_simgpu: MakeSimgpu, run: Run) -> None:
    output = run(
        make_simgpu("2xH200"),
        """
        start(1)
        device, host, kind, where = allocate(100), c_void_p(), c_uint(), c_int()
        base, size = c_uint64(), c_size_t()
        ok(cuda.cuMemAllocHost_v2(byref(host), c_size_t(100)))
        for address in (device + 50, host.value):
            ok(cuda.cuPointerGetAttribute(byref(kind), 2, c_uint64(address)))
            print(kind.value)
        ok(cuda.cuPointerGetAttribute(byref(where), 9, c_uint64(device)))
        ok(cuda.cuMemGetAddressRange_v2(byref(base), byref(size), c_uint64(device + 50)))
        print(where.value, base.value == device, size.value, cuda.cuPointerGetAttribute(byref(kind), 2, c_uint64(64)))
        """,
    )
    assert output.split() == ["2", "1", "1", "True", "100", "1"]
