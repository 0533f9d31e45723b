"""Test that copies between device memories count as launches by every call, and copies of the host do not.

A batch of copies is one launch if at least one of its copies is inside a device.
"""

from pathlib import Path

from metered import run_metered

from rig.gpu import MakeSimgpu
from sharepod.agent.shares.share import NO_COPIES, Copies
from sharepod.simgpu.truth import Truth

BYTES = 64 << 20
# Every call copies this much between kinds of memory: 1 is the host's, 2 a device's, 4 lets the address tell.
PROGRAM = f"""
from rig.structs import Copy2D, Copy3D, End2D, End3D
start()
BYTES, PITCH, context = {BYTES}, 1 << 20, c_void_p()
ok(cuda.cuCtxGetCurrent(byref(context)))
host = c_void_p()
ok(cuda.cuMemAllocHost_v2(byref(host), c_size_t(BYTES)))
memory = {{"host": host.value, "device": allocate(BYTES), "other": allocate(BYTES)}}

def flat(name, *more):
    return lambda target, source: cuda[name](
        c_uint64(memory[target]), c_uint64(memory[source]), c_size_t(BYTES), *more)
def peer(name, *more):
    return lambda target, source: cuda[name](
        c_uint64(memory[target]), context, c_uint64(memory[source]), context, c_size_t(BYTES), *more)
def box(name, unified, *more):
    def side(which):
        kind = 4 if unified else 1 if which == "host" else 2
        place = dict(kind=kind, host=memory[which], device=memory[which], pitch=PITCH)
        return End3D(**place, height=BYTES // PITCH) if "3D" in name else End2D(**place)
    def copy(target, source):
        sizes = (PITCH, BYTES // PITCH)
        what = (Copy3D if "3D" in name else Copy2D)(side(source), side(target), *sizes, *([1] if "3D" in name else []))
        return cuda[name](byref(what), *more)
    return copy
"""
STREAM = "c_void_p()"
CALLS = [
    'flat("cuMemcpy")',
    'flat("cuMemcpy_ptds")',
    f'flat("cuMemcpyAsync", {STREAM})',
    f'flat("cuMemcpyAsync_ptsz", {STREAM})',
    *(f'box("{name}{own}", {unified})' for name in ("cuMemcpy2D", "cuMemcpy2DUnaligned", "cuMemcpy3D")
      for own in ("_v2", "_v2_ptds") for unified in (False, True)),
    *(f'box("{name}{own}", {unified}, {STREAM})' for name in ("cuMemcpy2DAsync", "cuMemcpy3DAsync")
      for own in ("_v2", "_v2_ptsz") for unified in (False, True)),
]  # fmt: skip
PEER_CALLS = [
    'peer("cuMemcpyPeer")',
    'peer("cuMemcpyPeer_ptds")',
    f'peer("cuMemcpyPeerAsync", {STREAM})',
    f'peer("cuMemcpyPeerAsync_ptsz", {STREAM})',
]


def copy_by(calls: list[str], target: str, source: str) -> str:
    """Return a program that makes one copy by each of these calls."""
    lines = [f"ok({call}({target!r}, {source!r}))\nok(cuda.cuCtxSynchronize())" for call in calls]
    idle = "time.sleep(0.3)  # the idle turn is given back, and with it the last counts"
    return "\n".join([PROGRAM, *lines, idle])


def test_every_copy_inside_a_device_is_billed(make_simgpu: MakeSimgpu, tmp_path: Path) -> None:
    gpu = make_simgpu(SIMGPU_LOG_KERNELS="100")
    done = run_metered(gpu, tmp_path, copy_by([*CALLS, *PEER_CALLS], "other", "device"))
    [account], [busy_ns] = done.usage, done.busy_ns
    with Truth(gpu.state) as truth:
        copies = [kernel for kernel in truth.kernels(0) if kernel.name == "memcpy"]
    assert account.launches == len(copies) == len([*CALLS, *PEER_CALLS])
    assert account.copies == NO_COPIES
    assert account.used_ns >= busy_ns * 0.995 > 0


BATCHES = f"""{PROGRAM}
from rig.structs import BatchAttributes, BatchBox, BatchEnd
stream = new_stream()
def numbers(values):
    return (c_uint64 * len(values))(*values)
def flat_batch(target, source, sizes):
    count = len(sizes)
    targets, sources = (numbers([memory[which]] * count) for which in (target, source))
    return cuda.cuMemcpyBatchAsync_v2(targets, sources, numbers(sizes), c_size_t(count), byref(BatchAttributes(1)),
                                      numbers([0]), c_size_t(1), stream)
def one_box(target, source, *sizes):
    return BatchBox(BatchEnd(1, memory[source]), BatchEnd(1, memory[target]), numbers(sizes), 1, 0)
def box_batch(*boxes):
    return cuda.cuMemcpy3DBatchAsync_v2(c_size_t(len(boxes)), (BatchBox * len(boxes))(*boxes), c_uint64(0), stream)
"""
COUNTS = (1, 31, 32, 33, 1000)
"""Lengths of batches; of a long batch the hook looks at some copies only."""


def test_a_batch_inside_a_device_is_one_launch_however_many_copies_it_has(
    make_simgpu: MakeSimgpu, tmp_path: Path
) -> None:
    body = f"""{BATCHES}
for count in {COUNTS}:
    ok(flat_batch("other", "device", [64] * count))
    ok(box_batch(*[one_box("other", "device", 8, 8, 1)] * count))
ok(box_batch(one_box("device", "host", 8, 8, 1), one_box("other", "device", 8, 8, 1)))  # one of two is enough
ok(cuda.cuCtxSynchronize())
time.sleep(0.3)  # the idle turn is given back, and with it the last counts
"""
    account = run_metered(make_simgpu(), tmp_path, body).usage[0]
    assert (account.launches, account.copies) == (2 * len(COUNTS) + 1, NO_COPIES)
    assert account.used_ns > 0


def test_each_copy_of_a_batch_of_host_memory_is_counted_in_its_direction(
    make_simgpu: MakeSimgpu, tmp_path: Path
) -> None:
    body = f"""{BATCHES}
for count in {COUNTS}:
    ok(flat_batch("device", "host", range(1, count + 1)))
    ok(box_batch(*[one_box("host", "device", 8, 8, size) for size in range(1, count + 1)]))
ok(cuda.cuCtxSynchronize())
"""
    account = run_metered(make_simgpu(), tmp_path, body).usage[0]
    copies, total = sum(COUNTS), sum(sum(range(1, count + 1)) for count in COUNTS)
    assert account.copies == Copies(
        to_device_bytes=total, to_device_count=copies, to_host_bytes=64 * total, to_host_count=copies
    )
    assert (account.launches, account.turns) == (0, 0)
