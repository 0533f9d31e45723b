"""Words in streams: writes, waits for them, and batches of both."""

from collections.abc import Callable

import pytest

from rig.gpu import MakeSimgpu

Run = Callable[..., str]

PREPARE = """
from rig.graphs import *
module, stream, other = start(), new_stream(), new_stream()
memory = allocate(64)
def write(value, bits=32, where=None):
    call = cuda.cuStreamWriteValue32_v2 if bits == 32 else cuda.cuStreamWriteValue64_v2
    kind = c_uint32 if bits == 32 else c_uint64
    ok(call(where or other, c_uint64(memory), kind(value), 0))
    ok(cuda.cuStreamSynchronize(where or other))
def wait(value, how, bits=32):
    call = cuda.cuStreamWaitValue32_v2 if bits == 32 else cuda.cuStreamWaitValue64_v2
    kind = c_uint32 if bits == 32 else c_uint64
    ok(call(stream, c_uint64(memory), kind(value), how))
def over():
    return cuda.cuStreamQuery(stream) == 0
"""

RULES = [
    # bits, how, the value waited for, words that do not do, one that does
    (32, "AT_LEAST", 5, [0, 4, 0x80000006], 5),
    (32, "AT_LEAST", 0xFFFFFFFF, [0xFFFFFFFE, 0x7FFFFFFF], 3),
    (32, "EQUAL", 5, [0, 4, 6], 5),
    (32, "ANY_BIT", 6, [0, 1, 8], 4),
    (32, "NEITHER", 0xFFFF0000, [0x0000FFFF, 0xFFFFFFFF], 0x0000FFFE),
    (64, "AT_LEAST", 1 << 40, [0, (1 << 40) - 1], 1 << 40),
    (64, "EQUAL", (1 << 40) + 5, [5, 1 << 40], (1 << 40) + 5),
    (64, "ANY_BIT", 1 << 40, [1, 1 << 41], 3 << 40),
    (64, "NEITHER", 1 << 40, [(1 << 64) - 1], 1),
]


@pytest.mark.parametrize(("bits", "how", "value", "others", "reached"), RULES)
def test_a_stream_waits_until_the_word_compares(
    make_simgpu: MakeSimgpu, run: Run, bits: int, how: str, value: int, others: list[int], reached: int
) -> None:
    text = f"""
write({others[0]}, {bits})
wait({value}, {how}, {bits})
for word in {others}:
    write(word, {bits})
    print(over())
write({reached}, {bits})
ok(cuda.cuStreamSynchronize(stream))
print(over())
"""
    output = run(make_simgpu(), PREPARE + text)
    assert output.split() == ["False"] * len(others) + ["True"]


def test_a_wait_holds_its_stream_alone_and_is_over_when_the_write_is(make_simgpu: MakeSimgpu, run: Run) -> None:
    text = """
begin, end, free = new_event(), new_event(), new_event()
wait(1, EQUAL)
ok(launch(kernel(module, "after_1ms"), stream))
ok(cuda.cuEventRecord(end, stream))
# All is queued before any of it runs: what is measured is the device's time alone, not the host's between two calls.
ok(cuda.cuStreamWaitValue32_v2(other, c_uint64(memory + 8), c_uint32(1), EQUAL))
ok(cuda.cuEventRecord(begin, other))
ok(launch(kernel(module, "before_10ms"), other))
ok(cuda.cuStreamWriteValue32(other, c_uint64(memory), 1, 0))
ok(cuda.cuEventRecord(free, other))
ok(cuda.cuStreamWriteValue32_v2(new_stream(), c_uint64(memory + 8), c_uint32(1), 0))
ok(cuda.cuStreamSynchronize(stream))
print(round(elapsed_us(begin, free)), round(elapsed_us(free, end)))
"""
    first, then = map(int, run(make_simgpu(), PREPARE + text).split())
    assert (first, then) == (10_000, 1_000)


def test_the_hosts_own_store_is_seen_by_a_thread_that_waits(make_simgpu: MakeSimgpu, run: Run) -> None:
    text = """
import threading
host = c_void_p()
ok(cuda.cuMemHostAlloc(byref(host), c_size_t(64), 0))
ok(cuda.cuStreamWaitValue64(stream, c_uint64(host.value), c_uint64(7), EQUAL))
word = c_uint64.from_address(host.value)
def store():
    word.value = 7
timer = threading.Timer(0.05, store)
timer.start()
start_s = time.monotonic()
ok(cuda.cuStreamSynchronize(stream))
print(0.04 < time.monotonic() - start_s < 0.5)
timer.join()
"""
    assert run(make_simgpu(), PREPARE + text) == "True\n"


@pytest.mark.parametrize("call", ["cuStreamBatchMemOp", "cuStreamBatchMemOp_v2", "cuStreamBatchMemOp_v2_ptsz"])
def test_a_batch_is_done_in_order(make_simgpu: MakeSimgpu, run: Run, call: str) -> None:
    text = f"""
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
"""
    assert run(make_simgpu(), PREPARE + text).splitlines() == ["[1, 0] False", "[2, 3] True"]


def test_words_that_nobody_could_reach_are_refused(make_simgpu: MakeSimgpu, run: Run) -> None:
    text = """
plain, call = (c_uint32 * 4)(), cuda.cuStreamWaitValue32_v2
print(call(stream, c_uint64(ctypes.addressof(plain)), 1, 0), call(stream, c_uint64(memory + 1), 1, 0),
      call(stream, c_uint64(memory), 1, 4), call(stream, c_uint64(), 1, 0))
words = operations((WRITE_32, memory, 1, 0), (99, memory, 1, 0))
print(cuda.cuStreamBatchMemOp_v2(stream, 2, words, 0), cuda.cuStreamBatchMemOp_v2(stream, 0, words, 0), over())
"""
    assert run(make_simgpu(), PREPARE + text).splitlines() == ["1 1 1 1", "1 1 True"]


def test_work_that_waits_for_a_word_ends_with_its_process(make_simgpu: MakeSimgpu, run: Run) -> None:
    gpu = make_simgpu()
    run(gpu, PREPARE + "wait(1, EQUAL)\nok(launch(kernel(module, 'k_1ms'), stream))")
    assert run(gpu, PREPARE + "print(over())") == "True\n"
