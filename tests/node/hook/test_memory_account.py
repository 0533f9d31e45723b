"""Test linear memory: it is charged exactly, refused over the cap and given back once; a share sees only its own.

Pools and graphs are in test_pooled_memory.py. For every other kind of memory see tests/node/agent/test_agent_memory.py.
"""

import subprocess
from pathlib import Path

from cuda.bindings import driver
from memory_script import PROGRAM, Run
from simgpu_fixtures import MIB, NewGpu

from rig.arbiter import Arbiter
from rig.gpu import MakeSimgpu
from rig.script import script


def test_the_cap_is_exact_to_the_byte_and_nothing_is_given_back_twice(capped: Run) -> None:
    capped("""
result, a = take(600)
assert result == 0 and memory() == (400, 1000)
assert take(401)[0] == 2 and memory() == (400, 1000)
result, b = take(400)
assert result == 0 and memory() == (0, 1000) and take(1)[0] == 2
assert cuda.cuMemFree_v2(a) == 0 and memory() == (600, 1000)
assert cuda.cuMemFree_v2(a) != 0 and memory() == (600, 1000)
assert cuda.cuMemFree_v2(b) == 0 and memory() == (1000, 1000)
""")


def test_an_allocation_or_a_free_that_the_driver_refuses_changes_nothing(capped: Run) -> None:
    capped("""
_, a = take(600)
stream, graph = new_stream(), c_void_p()
for _ in range(100):
    ok(cuda.cuStreamBeginCapture_v2(stream, GLOBAL))
    assert take(400)[0] == 900 and cuda.cuMemFree_v2(a) == 900  # a capture forbids them
    cuda.cuStreamEndCapture(stream, byref(graph))
assert memory() == (400, 1000)
assert cuda.cuMemFree_v2(a) == 0 and memory() == (1000, 1000)
ok(cuda.cuCtxSetCurrent(None))
assert take(100)[0] == 201  # without a context, whatever the cap
assert take(2000)[0] == 201
""")


def test_memory_dies_with_its_context_and_only_with_it(capped: Run) -> None:
    capped(
        """
primary, own, pooled = c_void_p(), c_void_p(), c_uint64()
ok(cuda.cuCtxGetCurrent(byref(primary)))
assert take(7)[0] == 0
ok(cuda.cuCtxCreate_v2(byref(own), 0, 0))
for _ in range(1900):  # so many that some stand in each other's places in the table
    assert take(10)[0] == 0
new_array(25, 40)
assert memory() == (79_993, 100_000)
assert cuda.cuCtxDestroy_v2(c_void_p(8)) != 0  # there is none: nothing has died
assert memory() == (79_993, 100_000)
ok(cuda.cuCtxDestroy_v2(own))
ok(cuda.cuCtxSetCurrent(primary))
assert memory() == (99_993, 100_000)
ok(cuda.cuDevicePrimaryCtxRetain(byref(primary), 0))
ok(cuda.cuDevicePrimaryCtxRelease_v2(0))  # it is still held once
assert memory() == (99_993, 100_000)
ok(cuda.cuDevicePrimaryCtxRelease_v2(0))
start()
assert memory() == (100_000, 100_000)
""",
        100_000,
    )


def test_what_a_context_turns_out_not_to_take_can_be_had_but_does_not_show_as_free(
    arbiter: Arbiter, make_simgpu: MakeSimgpu, tmp_path: Path
) -> None:
    share = arbiter.share(tmp_path / "share", memory_bytes=1000)
    arbiter.native.context_bytes(arbiter.device(0), 300)
    body = """
import pynvml
pynvml.nvmlInit()
gpu = pynvml.nvmlDeviceGetHandleByIndex(0)
for _ in range(5):
    assert cuda.cuCtxCreate_v2(None, 0, 0) == 1  # a context that is refused takes nothing
own = c_void_p()
ok(cuda.cuCtxCreate_v2(byref(own), 0, 0))
assert memory() == (400, 1000)
ok(cuda.cuCtxDestroy_v2(own))
start()
for _ in range(2):
    assert memory() == (700, 1000) and pynvml.nvmlDeviceGetMemoryInfo(gpu).free == 700
    print("seen", flush=True)
    sys.stdin.readline()
assert take(900)[0] == 0 and take(1)[0] == 2 and memory() == (0, 1000)
"""
    command, pipe = script(PROGRAM + body), subprocess.PIPE
    with subprocess.Popen(command, env=make_simgpu().env | share.env, stdin=pipe, stdout=pipe, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline() == "seen\n"
        (holding,) = arbiter.native.read_holdings(share.handle, 0)
        assert (holding.memory_used_bytes, holding.context_bytes) == (300, 300)
        arbiter.native.set_overhead(share.handle, 0, holding, -200)
        assert share.usage().memory_used_bytes == 100
        process.stdin.write("\n\n")
        process.stdin.close()
        assert process.wait(timeout=20) == 0


def test_free_memory_does_not_grow_by_itself_beside_another_process_either(
    arbiter: Arbiter, new_gpu: NewGpu, tmp_path: Path
) -> None:
    share, gpu = arbiter.share(tmp_path / "share", memory_bytes=1000 * MIB), new_gpu()
    arbiter.native.context_bytes(arbiter.device(0), 300 * MIB)
    asks = f"""{PROGRAM}
start()
while True:
    print(memory()[0] >> 20, flush=True)
    sys.stdin.readline()
"""
    programs = [gpu.start(asks, **share.env) for _ in "ab"]
    for program in programs:
        program.line()
    for holding, overhead in zip(arbiter.native.read_holdings(share.handle, 0), (100, -200), strict=True):
        arbiter.native.set_overhead(share.handle, 0, holding, overhead * MIB)
        assert programs[0].ask("") == 300
    assert share.usage().memory_used_bytes == (600 + 100 - 200) * MIB


def test_a_handle_that_comes_back_for_mapped_memory_keeps_it_charged(capped: Run) -> None:
    capped(
        """
def release(handle):
    return cuda.cuMemRelease(handle)
at, beside = reserve(4 * MIB), reserve(2 * MIB)
kept, second = physical(2 * MIB), physical(2 * MIB)
map_at(at, 2 * MIB, kept)
map_at(at + 2 * MIB, 2 * MIB, second)
assert release(kept) == release(second) == 0 and memory()[0] == 4 * MIB  # the mappings keep both
again = c_uint64()
ok(cuda.cuMemRetainAllocationHandle(byref(again), c_void_p(at + 3 * MIB)))  # from the middle of the second
assert unmap(at, 4 * MIB) == 0 and memory()[0] == 6 * MIB
map_at(beside, 2 * MIB, again)
assert unmap(beside, 2 * MIB) == 0 and memory()[0] == 6 * MIB
assert release(again) == 0 and memory()[0] == 8 * MIB
assert release(again) != 0 and memory()[0] == 8 * MIB
""",
        8 << 20,
    )


def test_a_handle_that_was_retained_is_released_twice(capped: Run) -> None:
    capped(
        """
handle, at, again = physical(2 * MIB, 1), reserve(2 * MIB), c_uint64()
map_at(at, 2 * MIB, handle)
assert unmap(at + MIB, MIB) != 0 and memory()[0] == 6 * MIB  # not a whole mapping
ok(cuda.cuMemRetainAllocationHandle(byref(again), c_void_p(at)))
assert again.value == handle.value
assert cuda.cuMemRelease(handle) == 0 and unmap(at, 2 * MIB) == 0 and memory()[0] == 6 * MIB
assert cuda.cuMemRelease(handle) == 0 and memory()[0] == 8 * MIB
""",
        8 << 20,
    )


def test_an_array_is_charged_by_its_format(capped: Run) -> None:
    capped(
        """
def charged(*shape, **kind):
    before, array = memory()[0], new_array(*shape, **kind)
    taken = before - memory()[0]
    ok(cuda.cuArrayDestroy(array))
    assert memory() == (CAP, CAP)
    return taken
whole = {1: (0x01, 0x08), 2: (0x02, 0x09, 0x10), 4: (0x03, 0x0a, 0x20)}
for size, formats in whole.items():
    assert [charged(60, 30, texel=one, channels=2) for one in formats] == [60 * 30 * 2 * size] * len(formats)
sizes = [charged(60, 30, texel=one, channels=1 << (one % 3)) for one in range(0xc0, 0xcc)]  # normalised integers
assert sizes == [60 * 30 * size for size in (1, 2, 4, 2, 4, 8)] * 2, sizes
""".replace("CAP", str(1 << 20)),
        1 << 20,
    )


def test_a_mipmap_is_charged_all_its_levels_and_none_that_it_has_not(capped: Run) -> None:
    capped("""
from rig.structs import Array3D
LAYERED = 1
for width, height, depth, levels, flags, size in (
    (8, 0, 0, 99, 0, 8 + 4 + 2 + 1),
    (8, 4, 0, 99, 0, 32 + 8 + 2 + 1),
    (4, 8, 0, 99, 0, 32 + 8 + 2 + 1),
    (4, 4, 8, 99, 0, 128 + 16 + 2 + 1),
    (8, 8, 8, 2, 0, 512 + 64),
    (8, 8, 3, 99, LAYERED, 3 * (64 + 16 + 4 + 1)),
):
    whole, before = c_void_p(), memory()[0]
    ok(cuda.cuMipmappedArrayCreate(byref(whole), byref(Array3D(width, height, depth, 1, 1, flags)), levels))
    assert before - memory()[0] == size, (width, height, depth)
    ok(cuda.cuMipmappedArrayDestroy(whole))
    assert memory()[0] == before
""")


def test_memory_in_the_stream_of_another_device_is_charged_there(capped: Run) -> None:
    capped(
        """
contexts, address = [c_void_p(), c_void_p()], c_uint64()
for device in (0, 1):
    start(device)
    ok(cuda.cuCtxGetCurrent(byref(contexts[device])))
stream = new_stream()  # of device 1
ok(cuda.cuCtxSetCurrent(contexts[0]))
ok(cuda.cuMemAllocAsync(byref(address), c_size_t(64 * MIB), stream))
assert memory()[0] == 256 * MIB
ok(cuda.cuCtxSetCurrent(contexts[1]))
assert memory()[0] <= 192 * MIB
""",
        256 << 20,
        "2xH200",
    )


def test_allocations_beyond_what_any_table_holds_are_all_charged(capped: Run) -> None:
    capped(
        """
held = [take(1)[1] for _ in range(60_000)]
assert memory()[0] == 40_000
for address in held:
    ok(cuda.cuMemFree_v2(address))
assert memory()[0] == 100_000
""",
        100_000,
    )


def test_allocations_that_come_and_go_leave_the_process_no_larger(capped: Run) -> None:
    capped("""
def size_kib():
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmSize"))
ok(cuda.cuMemFree_v2(take(1)[1]))
before = size_kib()
for _ in range(200):
    for address in [take(1)[1] for _ in range(100)]:
        ok(cuda.cuMemFree_v2(address))
assert size_kib() - before < 600, size_kib() - before  # a table for all that ever was would take twice as much
""")


def test_thousands_of_random_allocations_on_two_devices_leave_nothing(capped: Run) -> None:
    capped(
        """
import random
contexts = [c_void_p(), c_void_p()]
for device in (0, 1):
    start(device)
    ok(cuda.cuCtxGetCurrent(byref(contexts[device])))
dice, live, left = random.Random(7), [], [CAP, CAP]
for step in range(5000):
    device = dice.randrange(2)
    ok(cuda.cuCtxSetCurrent(contexts[device]))
    if live and dice.random() < 0.45:
        address, size, owner = live.pop(dice.randrange(len(live)))
        ok(cuda.cuMemFree_v2(address))
        left[owner] += size
    else:
        size = dice.randrange(1, CAP // 100)
        result, address = take(size)
        assert result == (0 if size <= left[device] else 2)
        if result == 0:
            live.append((address, size, device))
            left[device] -= size
    assert memory()[0] == left[device]
assert min(left) < CAP // 4
for address, _, _ in live:
    ok(cuda.cuMemFree_v2(address))
assert memory()[0] == CAP
""".replace("CAP", str(1 << 28)),
        1 << 28,
        "2xH200",
    )


def test_a_forked_child_owns_nothing_of_its_parent(capped: Run) -> None:
    capped("""
_, a = take(600)
child = os.fork()
if child == 0:
    cuda.cuMemFree_v2(a)
    take(8)
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
assert memory() == (400, 1000)
assert cuda.cuMemFree_v2(a) == 0 and memory() == (1000, 1000)
""")


def test_a_share_never_shows_more_free_memory_than_the_device_has(
    arbiter: Arbiter, new_gpu: NewGpu, tmp_path: Path
) -> None:
    gpu, cap, left = new_gpu(), 1 << 30, 1 << 20
    gpu.ready(f"{PROGRAM}allocate(memory()[0] - {left}); print('ready', flush=True); sys.stdin.read()")
    share = arbiter.share(tmp_path, memory_bytes=cap)
    assert gpu.play(f"{PROGRAM}print(*memory())", **share.env) == [f"{left} {cap}"]


ATTRIBUTES = """
ok(cuda.cuInit(0))
value = c_int()
for attribute in range(-1, 300):
    value.value = -7
    print(attribute, cuda.cuDeviceGetAttribute(byref(value), attribute, 0), value.value)
"""


def test_every_attribute_of_the_device_reads_in_a_share_as_without_one(
    arbiter: Arbiter, new_gpu: NewGpu, tmp_path: Path
) -> None:
    gpu = new_gpu()
    bare = gpu.play(ATTRIBUTES)
    told = {int(line.split()[0]) for line in bare if line.split()[1] == "0"}
    assert {int(attribute) for attribute in driver.CUdevice_attribute} <= told
    assert gpu.play(ATTRIBUTES, **arbiter.share(tmp_path).env) == bare


def test_memory_in_a_context_with_the_handle_of_a_dead_one_is_charged_where_it_lies(capped: Run) -> None:
    capped(
        """
first, second = c_void_p(), c_void_p()
ok(cuda.cuCtxCreate_v2(byref(first), 0, 0))
assert take(100)[0] == 0
ok(cuda.cuCtxDestroy_v2(first))
ok(cuda.cuCtxCreate_v2(byref(second), 0, 1))
assert second.value == first.value and take(100)[0] == 0
start(0)
assert memory() == (1000, 1000)
start(1)
assert memory() == (900, 1000)
""",
        1000,
        "2xH200",
    )


def test_mappings_are_taken_away_one_by_one_and_what_is_refused_keeps_nothing(capped: Run) -> None:
    capped(
        """
from rig.structs import Prop, Location
at, handles = reserve(6 * MIB), [physical(2 * MIB) for _ in range(3)]
for n, handle in enumerate(handles):
    map_at(at + n * 2 * MIB, 2 * MIB, handle)
    assert cuda.cuMemMap(c_uint64(at + n * 2 * MIB), c_size_t(2 * MIB), c_size_t(0), handle, c_uint64(0)) != 0
    assert cuda.cuMemRetainAllocationHandle(byref(c_uint64(handle.value)), c_void_p(8)) != 0
    assert cuda.cuMemRelease(handle) == 0
assert cuda.cuMemCreate(byref(c_uint64()), c_size_t(1000), byref(Prop(1, 0, Location(1, 0))), c_uint64(0)) != 0
assert memory()[0] == 2 * MIB
for n, left in ((1, 4), (0, 6), (2, 8)):  # the middle one first
    assert unmap(at + n * 2 * MIB, 2 * MIB) == 0 and memory()[0] == left * MIB
""",
        8 << 20,
    )


def test_rows_with_a_pitch_need_what_they_take_and_pools_make_room_for_them(capped: Run) -> None:
    capped(
        """
pool, stream, address, pitch = make_pool(), new_stream(), c_uint64(), c_size_t()
def rows(width, height):
    return cuda.cuMemAllocPitch_v2(byref(address), byref(pitch), c_size_t(width), c_size_t(height), 4)
assert rows(1024, 131072) == 0 and memory()[0] == 0
ok(cuda.cuMemFree_v2(address))
assert set_attribute(pool, THRESHOLD, 2**64 - 1) == 0
free_in(from_pool(pool, 64 * MIB, stream), stream)
ok(cuda.cuStreamSynchronize(stream))
assert memory()[0] == 64 * MIB
assert rows(1025, 43691) == 0 and pitch.value == 1536
""",
        128 << 20,
    )


def test_a_cap_above_the_device_shows_the_device(capped: Run) -> None:
    capped("assert memory() == (23028 * MIB, 23028 * MIB)", 1 << 40, "1xA10")
