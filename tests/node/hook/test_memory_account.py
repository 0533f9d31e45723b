"""Allocations are charged exactly, refused over the cap, and given back once, whatever goes wrong."""

import sys
import textwrap
from collections.abc import Callable

import pytest
from hooklab import PROBE, Lab, run

Script = Callable[[str], None]


@pytest.fixture
def script(lab: Lab) -> Script:
    """Run a script of assertions in a process under the test hook."""

    def execute(body: str) -> None:
        text = "from probe import *\n" + textwrap.dedent(body)
        done = run([sys.executable, "-c", text], lab.env(lab.hook, PYTHONPATH=PROBE))
        assert done.returncode == 0, done.stderr

    return execute


def test_the_cap_is_exact_to_the_byte_and_the_driver_is_not_asked_above_it(script: Script) -> None:
    script("""
        limit.value = 1000
        r, a = alloc(600); assert (r, used[0]) == (0, 600)
        r, b = alloc(401); assert (r, b, used[0]) == (2, 0, 600) and seen("cuMemAlloc_v2").calls == 1
        r, b = alloc(400); assert (r, used[0]) == (0, 1000)
        assert alloc(1)[0] == 2
        assert free(a) == 0 and used[0] == 400
        assert free(b) == 0 and used[0] == 0
        assert free(a) == 0 and used[0] == 0   # the driver's affair; nothing is given back twice
    """)


def test_a_refusal_of_the_driver_gives_the_reservation_back(script: Script) -> None:
    script("""
        limit.value = 1000
        seen("cuMemAlloc_v2").result = 2
        for _ in range(1000): assert alloc(1000)[0] == 2
        assert used[0] == 0
        seen("cuMemAlloc_v2").result = 0
        assert alloc(1000)[0] == 0
    """)


def test_a_failed_free_keeps_the_charge_and_a_later_one_ends_it(script: Script) -> None:
    script("""
        _, a = alloc(64)
        seen("cuMemFree_v2").result = 1
        assert free(a) == 1 and used[0] == 64
        seen("cuMemFree_v2").result = 0
        assert free(a) == 0 and used[0] == 0
    """)


def test_pitched_memory_is_charged_at_the_drivers_pitch(script: Script) -> None:
    script("""
        def pitch(width, height):
            a, p = U64(0), U64(0)
            return cuda.cuMemAllocPitch_v2(byref(a), byref(p), U64(width), U64(height), 4), a.value
        r, a = pitch(1000, 10); assert (r, used[0]) == (0, 10240)   # this driver's rows are multiples of 1024
        assert free(a) == 0 and used[0] == 0
        limit.value = 5120                        # room for the guess of 512 a row, not for what the driver takes
        r, a = pitch(300, 10); assert (r, used[0]) == (2, 0) and seen("cuMemFree_v2").calls == 2
        r, a = pitch(300, 5); assert (r, used[0]) == (0, 5120)
        assert pitch(2**63, 4)[0] == 2
    """)


def test_the_functions_of_32_bit_addresses_are_charged_as_the_others_are(script: Script) -> None:
    script("""
        def alloc(size):
            a = c_uint(0)
            return cuda.cuMemAlloc(byref(a), c_uint(size)), a
        def pitch(width, height):
            a, p = c_uint(0), c_uint(0)
            return cuda.cuMemAllocPitch(byref(a), byref(p), c_uint(width), c_uint(height), 4), a
        limit.value = 10240
        r, a = alloc(600); assert (r, used[0]) == (0, 600)
        assert alloc(9641)[0] == 2 and used[0] == 600 and seen("cuMemAlloc").calls == 1
        assert cuda.cuMemFree(a) == 0 and used[0] == 0 and seen("cuMemFree").calls == 1
        r, a = pitch(1000, 10); assert (r, used[0]) == (0, 10240)
        assert pitch(1, 1)[0] == 2 and used[0] == 10240 and seen("cuMemAllocPitch").calls == 1
        assert cuda.cuMemFree(a) == 0 and used[0] == 0
        limit.value = 5120                        # the guess fits, what the driver takes does not
        r, a = pitch(300, 10); assert (r, used[0]) == (2, 0) and seen("cuMemFree").calls == 3
    """)


def test_stream_ordered_memory_is_charged_outside_captures_only(script: Script) -> None:
    script("""
        for suffix in ("", "_ptsz"):
            r, a = alloc(100, "cuMemAllocAsync" + suffix, U64(0x77)); assert (r, used[0]) == (0, 100)
            r, b = alloc(50, "cuMemAllocFromPoolAsync" + suffix, U64(0x99), U64(0x77)); assert (r, used[0]) == (0, 150)
            capture_status.value = 1
            assert alloc(1000, "cuMemAllocAsync" + suffix, U64(0x77))[0] == 0 and used[0] == 150
            assert free(a, "cuMemFreeAsync" + suffix, U64(0x77)) == 0 and used[0] == 150
            capture_status.value = 0
            assert free(a, "cuMemFreeAsync" + suffix, U64(0x77)) == 0
            assert free(b, "cuMemFreeAsync" + suffix, U64(0x77)) == 0 and used[0] == 0
    """)


def test_memory_dies_with_its_context_and_only_with_it(script: Script) -> None:
    script("""
        current_context.value = 0xc1
        addresses = [alloc(10)[1] for _ in range(1000)]
        current_context.value = 0xc2
        _, other = alloc(7)
        _, pooled = alloc(5, "cuMemAllocAsync", U64(0x77))
        seen("cuCtxDestroy_v2").result = 1
        cuda.cuCtxDestroy_v2(U64(0xc1)); assert used[0] == 10012   # refused: nothing has died
        seen("cuCtxDestroy_v2").result = 0
        cuda.cuCtxDestroy_v2(U64(0xc1)); assert used[0] == 12 and log.forgotten == 0xc1
        assert free(other) == 0 and used[0] == 5
        assert free(pooled, "cuMemFreeAsync", U64(0x77)) == 0 and used[0] == 0
    """)


def test_a_primary_context_that_survives_a_release_keeps_its_memory(script: Script) -> None:
    script("""
        alloc(10)
        retained = c_int.in_dll(cuda, "fake_retained")
        retained.value = 1
        cuda.cuDevicePrimaryCtxRelease_v2(0); assert primary_active.value == 1 and used[0] == 10
        cuda.cuDevicePrimaryCtxRelease_v2(0); assert primary_active.value == 0 and used[0] == 0
    """)


def test_ten_thousand_random_allocations_on_two_devices_leave_nothing(script: Script) -> None:
    script("""
        import random
        random.seed(7)
        live, totals = [], [0, 0]
        for step in range(10000):
            if live and random.random() < 0.45:
                address, size, device = live.pop(random.randrange(len(live)))
                assert free(address) == 0
                totals[device] -= size
            else:
                device, size = random.randrange(2), random.randrange(1, 1 << 20)
                current_device.value, current_context.value = device, 0xc0 + device
                next_address.value = random.randrange(1, 1 << 34) << 8 | 0x10
                while any(next_address.value == a for a, _, _ in live[-3:]): next_address.value += 256
                r, address = alloc(size)
                assert r == 0
                live.append((address, size, device))
                totals[device] += size
            assert [used[0], used[1]] == totals
        for address, _, _ in live: assert free(address) == 0
        assert [used[0], used[1]] == [0, 0]
    """)


def test_threads_never_pass_the_cap_together(script: Script) -> None:
    script("""
        import threading
        limit.value = 100 * 8
        granted, over = [], []
        def work():
            for _ in range(300):
                r, a = alloc(100, "cuMemAllocManaged", U64(1))
                (granted if r == 0 else over).append(a)
        threads = [threading.Thread(target=work) for _ in range(4)]
        [t.start() for t in threads]; [t.join() for t in threads]
        assert len(granted) == 8 and len(over) == 1192 and used[0] == 800
    """)


def test_a_forked_child_owns_nothing_of_its_parent(script: Script) -> None:
    script("""
        import os
        _, a = alloc(64)
        child = os.fork()
        if child == 0:
            ok = free(a) == 0 and used[0] == 64 and alloc(8)[0] == 0   # its own copy of the counter, untouched
            os._exit(0 if ok else 1)
        assert os.waitpid(child, 0)[1] == 0
        assert free(a) == 0 and used[0] == 0
    """)


def test_the_program_sees_its_share_and_not_the_device(script: Script) -> None:
    script("""
        f, t = U64(0), U64(0)
        def info():
            assert cuda.cuMemGetInfo_v2(byref(f), byref(t)) == 0
            return f.value, t.value
        assert info() == (3 << 30, 0xf0000000)            # no cap: the driver's own answer
        limit.value = 1 << 30
        assert info() == (1 << 30, 1 << 30)
        _, a = alloc(1 << 20)
        assert info() == ((1 << 30) - (1 << 20), 1 << 30)
        c_free = U64.in_dll(cuda, "fake_free_bytes")
        c_free.value = 4096
        assert info() == (4096, 1 << 30)                  # never more than is really free
        n, m = c_uint(0), c_uint(0)
        assert cuda.cuMemGetInfo(byref(n), byref(m)) == 0 and (n.value, m.value) == (4096, 1 << 30)
        assert cuda.cuDeviceTotalMem_v2(byref(t), 0) == 0 and t.value == 1 << 30
        assert cuda.cuDeviceTotalMem(byref(m), 0) == 0 and m.value == 1 << 30
        used[0] = 2 << 30                                 # the cap was lowered under a running program
        assert info() == (0, 1 << 30)
    """)


def test_without_a_current_context_the_driver_decides(script: Script) -> None:
    script("""
        current_device.value = -1
        limit.value = 1
        seen("cuMemAlloc_v2").result = 201
        assert alloc(100)[0] == 201 and used[0] == 0
    """)
