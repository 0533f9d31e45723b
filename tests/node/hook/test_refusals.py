"""Test that what the driver refuses is refused unchanged and counts for nothing, and that errno stays the program's."""

import sys
from pathlib import Path

from hooklab import clean_environment, run
from metered import run_metered
from simgpu_fixtures import NewGpu

from rig.arbiter import Arbiter
from rig.gpu import MakeSimgpu
from rig.script import script
from rig.until import until
from sharepod.hook import LIBRARY

REFUSED = """
f, stream, three = kernel(start(), "k_20us"), new_stream(), c_size_t(3)
print(
    launch(None),
    cuda.cuLaunchKernelEx(None, f, None, None),
    cuda.cuGraphLaunch(None, stream),
    cuda.cuMemcpyBatchAsync_v2(None, None, None, three, None, None, c_size_t(0), stream),
    cuda.cuMemcpyBatchAsync_v2(None, None, None, c_size_t(0), None, None, c_size_t(0), stream),
    cuda.cuMemcpy3DBatchAsync_v2(three, None, c_uint64(0), stream),
    cuda.cuMemcpy2D_v2(None),
)
time.sleep(0.3)  # the idle turn is given back, and with it the last counts
"""
ERRNO = """
quiet, address = ctypes.CDLL("libcuda.so.1", use_errno=True), c_uint64()
f = kernel(start(), "k_20us")
ctypes.set_errno(77)
ok(quiet.cuInit(0))
ok(quiet.cuLaunchKernel(f, 1, 1, 1, 32, 1, 1, 0, None, None, None))
ok(quiet.cuMemAlloc_v2(byref(address), c_size_t(4096)))
ok(quiet.cuCtxSynchronize())
print(ctypes.get_errno())
"""
DRIVERLESS = """
import ctypes
hook = ctypes.CDLL(None, use_errno=True)
ctypes.set_errno(77)
print(hook.cuInit(0), hook.cuLaunchKernel(*[None] * 11), ctypes.get_errno())
"""
NOT_INITIALIZED = 3


def test_what_the_driver_refuses_has_its_result_and_is_not_counted(make_simgpu: MakeSimgpu, tmp_path: Path) -> None:
    bare = run(script(REFUSED), make_simgpu().env)
    assert len(bare.stdout.split()) == REFUSED.count("cuda.") + 1, bare.stderr
    assert "0" not in bare.stdout.split()
    done = run_metered(make_simgpu(), tmp_path, REFUSED)
    assert done.stdout == bare.stdout
    assert (done.usage[0].launches, done.usage[0].memory_used_bytes) == (0, 0)


def test_errno_survives_a_wait_at_the_gate_and_every_kind_of_call(
    arbiter: Arbiter, new_gpu: NewGpu, tmp_path: Path
) -> None:
    share = arbiter.share(tmp_path)
    arbiter.native.pause_share(share.handle, True)
    program = new_gpu().start(ERRNO, **share.env)
    until(lambda: share.usage().waited_ns > 0)
    arbiter.native.pause_share(share.handle, False)
    assert program.lines() == ["77"]


def test_without_a_driver_a_wrapper_says_not_initialized() -> None:
    done = run([sys.executable, "-c", DRIVERLESS], clean_environment() | {"LD_PRELOAD": str(LIBRARY)})
    assert done.stdout == f"{NOT_INITIALIZED} {NOT_INITIALIZED} 77\n", done.stderr
