"""Copies from device memory to device memory are launches, by whatever call; those of the host are not."""

from pathlib import Path

import pytest
from metered import run_metered

from rig.gpu import MakeSimgpu
from sharepod.simgpu.truth import Truth

BYTES = 64 << 20
# Every call copies this much from one kind of memory to another: 1 the host's, 2 a device's, 4 the address tells.
PROGRAM = f"""
class Flat(ctypes.Structure):
    _fields_ = [("x", c_size_t), ("y", c_size_t), ("kind", c_uint), ("host", c_void_p), ("device", c_uint64),
                ("array", c_void_p), ("pitch", c_size_t)]
class Deep(ctypes.Structure):
    _fields_ = [("x", c_size_t), ("y", c_size_t), ("z", c_size_t), ("level", c_size_t), ("kind", c_uint),
                ("host", c_void_p), ("device", c_uint64), ("array", c_void_p), ("context", c_void_p),
                ("pitch", c_size_t), ("height", c_size_t)]
class Copy2D(ctypes.Structure):
    _fields_ = [("source", Flat), ("target", Flat), ("width", c_size_t), ("height", c_size_t)]
class Copy3D(ctypes.Structure):
    _fields_ = [("source", Deep), ("target", Deep), ("width", c_size_t), ("height", c_size_t), ("depth", c_size_t)]
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
        return Deep(**place, height=BYTES // PITCH) if "3D" in name else Flat(**place)
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
    """Return a program that copies once by each call."""
    lines = [f"ok({call}({target!r}, {source!r}))\nok(cuda.cuCtxSynchronize())" for call in calls]
    idle = "time.sleep(0.3)  # the idle turn is given back, and with it the last counts"
    return "\n".join([PROGRAM, *lines, idle])


def test_every_copy_inside_a_device_is_billed(make_simgpu: MakeSimgpu, tmp_path: Path) -> None:
    gpu = make_simgpu(SIMGPU_LOG_KERNELS="100")
    account = run_metered(gpu, tmp_path, copy_by([*CALLS, *PEER_CALLS], "other", "device")).usage[0]
    with Truth(gpu.state) as truth:
        copies = [kernel for kernel in truth.kernels(0) if kernel.name == "memcpy"]
        busy_ns = truth.devices()[0].busy_ns
    assert account.launches == len(copies) == len([*CALLS, *PEER_CALLS])
    assert account.used_ns >= busy_ns * 0.995 > 0


@pytest.mark.parametrize(("target", "source"), [("host", "device"), ("device", "host"), ("host", "host")])
def test_no_copy_of_host_memory_is_gated(make_simgpu: MakeSimgpu, tmp_path: Path, target: str, source: str) -> None:
    account = run_metered(make_simgpu(), tmp_path, copy_by(CALLS, target, source)).usage[0]
    assert (account.launches, account.turns, account.used_ns) == (0, 0, 0)


def test_a_copy_into_a_capturing_stream_is_part_of_the_graph(make_simgpu: MakeSimgpu, tmp_path: Path) -> None:
    stream = "stream := new_stream()"
    body = f"""{PROGRAM}
graph, executable = c_void_p(), c_void_p()
copy = flat("cuMemcpyAsync", ({stream}))
ok(cuda.cuStreamBeginCapture_v2(stream, GLOBAL))
ok(copy("other", "device"))
ok(cuda.cuStreamEndCapture(stream, byref(graph)))
ok(cuda.cuGraphInstantiateWithFlags(byref(executable), graph, c_uint64(0)))
ok(cuda.cuGraphLaunch(executable, stream))
ok(cuda.cuStreamSynchronize(stream))
time.sleep(0.3)
"""
    assert run_metered(make_simgpu(), tmp_path, body).usage[0].launches == 1
