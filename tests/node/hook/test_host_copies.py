"""Test that copies between host and device pass no gate, and that the usage shows their bytes and counts each way."""

import struct
from collections.abc import Callable
from pathlib import Path

import pytest
from metered import run_metered
from report import device_at
from simgpu_fixtures import ANSWER, NewGpu, Program
from test_copies import BYTES, CALLS, PROGRAM

from rig.arbiter import Arbiter, Share
from rig.gpu import MakeSimgpu
from rig.until import until
from sharepod.agent.shares.share import NO_COPIES, Copies, Usage

COPIES_AT = device_at(0) + 16 * 128
"""The place of the first slot's first line of copies in `slots`; `tests/node/hook/test_abi.py` checks this layout."""
NAMED = """
def to_device(name, *more):
    return lambda: cuda[name](c_uint64(memory["device"]), c_void_p(memory["host"]), c_size_t(BYTES), *more)
def to_host(name, *more):
    return lambda: cuda[name](c_void_p(memory["host"]), c_uint64(memory["device"]), c_size_t(BYTES), *more)
"""
WAYS = {
    "to_device": ("HtoD", "device", "host"),
    "to_host": ("DtoH", "host", "device"),
}


def named(way: str) -> list[str]:
    """Return the calls that have the direction in their names, both those that wait and those that do not."""
    name = f"cuMemcpy{WAYS[way][0]}"
    return [
        f'{way}("{name}_v2")',
        f'{way}("{name}_v2_ptds")',
        f'{way}("{name}Async_v2", c_void_p())',
        f'{way}("{name}Async_v2_ptsz", c_void_p())',
        f'{way}("{name}Async_v2", new_stream())',
    ]


def copied(way: str, count: int, size: int = BYTES) -> Copies:
    """Return the sum of this number of copies in one direction."""
    return Copies(**{f"{way}_bytes": count * size, f"{way}_count": count})


@pytest.mark.parametrize("way", WAYS)
def test_every_host_copy_is_counted_to_the_byte_in_its_direction(
    make_simgpu: MakeSimgpu, tmp_path: Path, way: str
) -> None:
    _, target, source = WAYS[way]
    by_name = [f"ok({call}())" for call in named(way)]
    by_address = [f"ok({call}({target!r}, {source!r}))" for call in CALLS]
    body = "\n".join([PROGRAM, NAMED, *by_name, *by_address, "ok(cuda.cuCtxSynchronize())"])
    account = run_metered(make_simgpu(), tmp_path, body).usage[0]
    assert account.copies == copied(way, len(by_name) + len(by_address))
    assert (account.launches, account.turns, account.used_ns, account.faults) == (0, 0, 0, 0)


def test_what_is_copied_is_what_arrives_and_all_of_it_is_counted(make_simgpu: MakeSimgpu, tmp_path: Path) -> None:
    body = f"""{PROGRAM}
import os
pattern = os.urandom(1 << 20) * (BYTES >> 20)
back = ctypes.create_string_buffer(BYTES)
for tail, more in (("_v2", ()), ("Async_v2", (c_void_p(),))):
    ok(cuda["cuMemcpyHtoD" + tail](c_uint64(memory["device"]), pattern, c_size_t(BYTES), *more))
    ok(cuda["cuMemcpyDtoH" + tail](back, c_uint64(memory["device"]), c_size_t(BYTES), *more))
    ok(cuda.cuCtxSynchronize())
    assert back.raw == pattern
    ok(cuda.cuMemsetD8_v2(c_uint64(memory["device"]), 0, c_size_t(BYTES)))
    ctypes.memset(back, 0, BYTES)
"""
    account = run_metered(make_simgpu(), tmp_path, body).usage[0]
    assert account.copies == copied("to_device", 2) + copied("to_host", 2)


def test_what_is_no_host_copy_is_not_counted_as_one(make_simgpu: MakeSimgpu, tmp_path: Path) -> None:
    outside = [f"ok({call}('host', 'host'))" for call in CALLS]
    calls = ("to_device('cuMemcpyHtoD_v2')", "to_host('cuMemcpyDtoHAsync_v2', None)")
    refused = ["ok(cuda.cuCtxSetCurrent(None))", *(f"assert {call}() == 201" for call in calls)]
    body = "\n".join([PROGRAM, NAMED, *outside, *refused])
    account = run_metered(make_simgpu(), tmp_path, body).usage[0]
    assert (account.copies, account.launches, account.turns, account.used_ns) == (NO_COPIES, 0, 0, 0)


def test_a_copy_into_a_capturing_stream_is_part_of_the_graph_and_not_counted(
    make_simgpu: MakeSimgpu, tmp_path: Path
) -> None:
    body = f"""{PROGRAM}{NAMED}
stream, graph, executable = new_stream(), c_void_p(), c_void_p()
ok(cuda.cuStreamBeginCapture_v2(stream, RELAXED))
ok(to_device("cuMemcpyHtoDAsync_v2", stream)())
ok(flat("cuMemcpyAsync", stream)("host", "device"))
ok(flat("cuMemcpyAsync", stream)("other", "device"))
ok(to_device("cuMemcpyHtoDAsync_v2", new_stream())())
ok(cuda.cuStreamEndCapture(stream, byref(graph)))
ok(cuda.cuGraphInstantiateWithFlags(byref(executable), graph, c_uint64(0)))
ok(cuda.cuGraphLaunch(executable, stream))
ok(cuda.cuStreamSynchronize(stream))
time.sleep(0.3)  # the idle turn is given back, and with it the last counts
"""
    account = run_metered(make_simgpu(), tmp_path, body).usage[0]
    assert (account.launches, account.copies) == (1, copied("to_device", 1))


def test_copies_are_of_the_device_that_is_current(make_simgpu: MakeSimgpu, tmp_path: Path) -> None:
    body = """
first, second = c_void_p(), c_void_p()
start(0)
ok(cuda.cuCtxGetCurrent(byref(first)))
mine, data = allocate(4096), bytes(4096)
start(1)
ok(cuda.cuCtxGetCurrent(byref(second)))
other = allocate(4096)
for context, address, count in ((second, other, 2), (first, mine, 3), (second, other, 4)):
    ok(cuda.cuCtxSetCurrent(context))
    for _ in range(count):
        ok(cuda.cuMemcpyHtoD_v2(c_uint64(address), data, c_size_t(4096)))
"""
    usage = run_metered(make_simgpu("2xH200"), tmp_path, body, devices=(0, 1)).usage
    assert [account.copies for account in usage] == [copied("to_device", 3, 4096), copied("to_device", 6, 4096)]


def test_threads_that_copy_at_once_lose_no_count(make_simgpu: MakeSimgpu, tmp_path: Path) -> None:
    body = """
import threading
start()
context = c_void_p()
ok(cuda.cuCtxGetCurrent(byref(context)))
def copy(address):
    ok(cuda.cuCtxSetCurrent(context))
    data = ctypes.create_string_buffer(64)
    for _ in range(2000):
        ok(cuda.cuMemcpyHtoD_v2(c_uint64(address), data, c_size_t(64)))
        ok(cuda.cuMemcpyDtoHAsync_v2(data, c_uint64(address), c_size_t(64), None))
    ok(cuda.cuCtxSynchronize())
threads = [threading.Thread(target=copy, args=(allocate(64),)) for _ in range(4)]
for thread in threads: thread.start()
for thread in threads: thread.join()
"""
    account = run_metered(make_simgpu(), tmp_path, body).usage[0]
    assert account.copies == copied("to_device", 8000, 64) + copied("to_host", 8000, 64)


@pytest.fixture
def share(arbiter: Arbiter, tmp_path: Path) -> Share:
    """Return a share."""
    return arbiter.share(tmp_path)


@pytest.fixture
def begin(share: Share, new_gpu: NewGpu) -> Callable[[], Program]:
    """Return a function that starts programs in the share which copy on request."""
    gpu = new_gpu()
    text = f"""{ANSWER}
start()
memory, data, back = allocate({BYTES}), bytes({BYTES}), (ctypes.c_char * {BYTES})()
answer()
"""
    return lambda: gpu.ready(text, **share.env)


def usage_when(share: Share, true: Callable[[Usage], bool]) -> Usage:
    """Return the share's account once the condition holds."""
    until(lambda: true(share.usage()), lambda: f"the account is {share.usage()}")
    return share.usage()


TO_DEVICE = f"ok(cuda.cuMemcpyHtoD_v2(c_uint64(memory), data, c_size_t({BYTES})))"
TO_HOST = f"ok(cuda.cuMemcpyDtoH_v2(back, c_uint64(memory), c_size_t({BYTES})))"


def asynchronous(call: str) -> str:
    """Return the asynchronous form of the call, into the default stream."""
    return call.replace("_v2(", "Async_v2(").replace(f"({BYTES}))", f"({BYTES}), None)")


def test_a_closed_gate_holds_launches_and_lets_host_copies_pass(
    arbiter: Arbiter, share: Share, begin: Callable[[], Program]
) -> None:
    program = begin()
    arbiter.native.pause_share(share.handle, True)
    for call in (TO_DEVICE, TO_HOST):
        program.ask(call)
        program.ask(asynchronous(call))
    usage = share.usage()
    assert usage.copies == copied("to_device", 2) + copied("to_host", 2)
    assert (usage.launches, usage.passed) == (0, 0)
    program.tell("ok(cuda.cuMemsetD8_v2(c_uint64(memory), 7, c_size_t(4096)))")  # this shows that the gate is closed
    assert usage_when(share, lambda usage: usage.waited_ns > 0).launches == 0
    arbiter.native.pause_share(share.handle, False)
    assert program.line() == "null"


def test_a_count_that_falls_or_cannot_be_true_is_not_believed(share: Share, begin: Callable[[], Program]) -> None:
    program = begin()
    program.ask(TO_DEVICE)
    believed = copied("to_device", 1)
    assert share.usage().copies == believed
    with (share.region / "slots").open("r+b", buffering=0) as slots:
        for lie in (0, 1 << 62, 2**64 - 1):
            before = share.usage().faults
            slots.seek(COPIES_AT)
            slots.write(struct.pack("<4Q", *[lie] * 4))
            usage = share.usage()
            assert usage.copies == believed
            assert usage.faults > before
    program.kill()
    usage = usage_when(share, lambda usage: usage.processes == 0)
    assert usage.copies == usage.gone_copies == believed
