"""Test the answers of cuGetProcAddress, functions that are not simulated, stale handles, and every launch call."""

import re
import subprocess
import sys
from pathlib import Path

from simgpu_fixtures import NewGpu

from rig import REPO_ROOT
from rig.gpu import LIBRARIES, MakeSimgpu
from sharepod.driver.coverage import read_functions

CUDA, NVML = "libcuda.so.1", "libnvidia-ml.so.1"


def test_a_name_and_a_version_give_the_exported_symbol_of_that_abi(new_gpu: NewGpu) -> None:
    lines = new_gpu().play("""
        def find(name, version, flags=0):
            address, status = c_void_p(), c_int(-1)
            result = cuda.cuGetProcAddress_v2(name.encode(), byref(address), version, c_uint64(flags), byref(status))
            return result, status.value, address.value

        for name, version, flags, symbol in (
            ("cuMemAlloc", 3019, 0, "cuMemAlloc"),
            ("cuMemAlloc", 3020, 0, "cuMemAlloc_v2"),
            ("cuMemAlloc", 13000, 2, "cuMemAlloc_v2"),
            ("cuLaunchKernel", 13000, 0, "cuLaunchKernel"),
            ("cuLaunchKernel", 13000, 1, "cuLaunchKernel"),
            ("cuLaunchKernel", 13000, 2, "cuLaunchKernel_ptsz"),
            ("cuMemcpyHtoD", 13000, 2, "cuMemcpyHtoD_v2_ptds"),
            ("cuCtxCreate", 12000, 0, "cuCtxCreate_v3"),
            ("cuCtxCreate", 12050, 0, "cuCtxCreate_v4"),
            ("cuStreamBeginCapture", 10000, 0, "cuStreamBeginCapture"),
            ("cuStreamBeginCapture", 10010, 0, "cuStreamBeginCapture_v2"),
            ("cuGetProcAddress", 11030, 0, "cuGetProcAddress"),
            ("cuGetProcAddress", 12000, 0, "cuGetProcAddress_v2"),
        ):
            expected = ctypes.cast(cuda[symbol], c_void_p).value
            assert find(name, version, flags) == (0, 0, expected), (name, version, flags)
        # Names that there are not, and versions that are too old.
        print(find("cuNoSuchCall", 13000), find("cuMemAlloc_v2", 13000), find("cuLaunchKernelEx", 11000))
        """)
    assert lines == ["(500, 1, None) (500, 1, None) (500, 2, None)"]


def test_the_private_tables_of_the_runtime_are_not_answered(new_gpu: NewGpu) -> None:
    assert new_gpu().play("t = c_void_p(1); print(cuda.cuGetExportTable(byref(t), bytes(16)), t.value)") == ["801 None"]


def test_only_what_ptx_declares_is_found_in_it_and_anything_in_other_images(new_gpu: NewGpu) -> None:
    lines = new_gpu().play("""
        module, function = start(), c_void_p()
        ptx = b".version 8.0\\n.target sm_90\\n.visible .entry one(.param .u64 p) { ret; }\\n.entry two() { ret; }\\n"
        for image in (ptx, b"\\x7fELF" + bytes(64)):
            ok(cuda.cuModuleLoadData(byref(module), image))
            print([cuda.cuModuleGetFunction(byref(function), module, n) for n in (b"one", b"two", b"three")])
        """)
    assert lines == ["[0, 0, 500]", "[0, 0, 0]"]


def test_a_library_is_a_module_that_every_context_may_use(new_gpu: NewGpu) -> None:
    lines = new_gpu("2xH200").play("""
        library, wanted, unknown, function, text = c_void_p(), c_void_p(), c_void_p(), c_void_p(), c_char_p()
        start(0)
        ptx = b".version 7.0\\n.target sm_70\\n.visible .entry work_200us() { ret; }\\n\\0"
        ok(cuda.cuLibraryLoadData(byref(library), ptx, None, None, 0, None, None, 0))
        ok(cuda.cuLibraryGetKernel(byref(wanted), library, b"work_200us"))
        missing = cuda.cuLibraryGetKernel(byref(unknown), library, b"nowhere")
        for device in (0, 1):
            start(device)
            ok(cuda.cuKernelGetFunction(byref(function), wanted))
            ok(launch(function))
            ok(cuda.cuCtxSynchronize())
        ok(cuda.cuKernelGetName(byref(text), wanted))
        ok(cuda.cuLibraryUnload(library))
        print(missing, text.value.decode())
        """)
    assert lines == ["500 work_200us"]


def test_stale_and_foreign_handles_are_refused(new_gpu: NewGpu) -> None:
    lines = new_gpu().play("""
        print(cuda.cuCtxSynchronize())
        ok(cuda.cuInit(0))
        print(cuda.cuCtxSynchronize())
        f, stream, event = kernel(start(), "k"), new_stream(), new_event()
        ok(cuda.cuStreamDestroy_v2(stream))
        ok(cuda.cuEventDestroy_v2(event))
        print(launch(f, stream), cuda.cuEventQuery(event), launch(event), launch(f, grid=0))
        """)
    assert lines == ["3", "201", "400 400 400 1"]


def exported(library: str, kinds: str = "TW") -> set[str]:
    """Return the functions that a simulated library exports: those with a model (T) and those without (W)."""
    done = subprocess.run(["nm", "-D", LIBRARIES / library], capture_output=True, text=True, check=True)
    symbols = (line.split()[-2:] for line in done.stdout.splitlines())
    return {name for kind, name in symbols if kind in kinds and name.startswith(("cu", "nvml"))}


def test_it_exports_every_function_that_a_driver_for_linux_has() -> None:
    assert exported(CUDA) == {function.name for function in read_functions() if function.reason != "absent"}
    rows = re.findall(r"^NVML\w*\((\w+)\)$", (REPO_ROOT / "driver" / "nvml.def").read_text(), re.MULTILINE)
    assert rows == sorted(set(rows))
    assert exported(NVML) == set(rows)
    said = f"{len(rows)}, of which {len(exported(NVML, 'T'))} have a model"
    assert said in (REPO_ROOT / "docs" / "simulated-gpu.md").read_text()


def test_a_library_is_loaded_once_under_its_name_with_and_without_a_version(new_gpu: NewGpu) -> None:
    text = "print(*(ctypes.CDLL(name)._handle == ctypes.CDLL(name + '.1')._handle for name in sys.argv[1:]))"
    assert new_gpu().play(text, "libcuda.so", "libnvidia-ml.so") == ["True True"]


def test_a_function_that_has_a_model_is_the_one_that_is_exported() -> None:
    sources = "".join(path.read_text() for path in (REPO_ROOT / "simgpu").glob("*/*.c"))
    written = set(re.findall(r"^(?:NVML_)?EXPORT \w+ (cu\w+|nvml\w+)\(", sources, re.MULTILINE))
    assert len(written) > 300
    assert written & (exported(CUDA, "W") | exported(NVML, "W")) == set()


def test_every_function_that_is_not_simulated_says_so_is_logged_and_never_crashes(
    new_gpu: NewGpu, tmp_path: Path
) -> None:
    names = sorted(exported(CUDA, "W"))
    log = tmp_path / "log"
    text = "start(); print({cuda[name](*[c_uint64(64 + n) for n in range(8)]) for name in sys.argv[1:]})"
    assert new_gpu(SIMGPU_LOG=str(log)).play(text, *names) == ["{801}"]
    assert log.read_text().splitlines() == [f"simgpu: not simulated: {name}" for name in names]


def test_what_nvml_has_no_model_of_is_not_supported(make_simgpu: MakeSimgpu) -> None:
    names = sorted(exported(NVML, "W"))
    assert len(names) > 300
    text = f"""
import ctypes, sys
nvml = ctypes.CDLL({str(LIBRARIES / NVML)!r})
def answers():
    return {{nvml[name](*[ctypes.c_uint64(64 + n) for n in range(8)]) for name in sys.argv[1:]}}
print(answers(), nvml.nvmlInit_v2(), answers())
"""
    command = [sys.executable, "-c", text, *names]
    done = subprocess.run(command, env=make_simgpu().env, capture_output=True, text=True, check=True)
    assert done.stdout == "{1} 0 {3}\n"


def test_every_way_to_launch_takes_the_kernels_time(new_gpu: NewGpu) -> None:
    gpu = new_gpu()
    gpu.play("""
        class Config(ctypes.Structure):
            _fields_ = [("sizes", c_uint * 7), ("stream", c_void_p), ("attributes", c_void_p), ("count", c_uint)]
        class One(ctypes.Structure):
            _fields_ = [("function", c_void_p), ("sizes", c_uint * 7), ("stream", c_void_p), ("parameters", c_void_p)]
        module = start()
        stream = new_stream()
        sizes = (c_uint * 7)(1, 1, 1, 32, 1, 1, 0)
        for own in ("", "_ptsz"):
            ok(cuda["cuLaunchKernel" + own](kernel(module, "plain_10us"), *sizes, stream, None, None))
            ok(cuda["cuLaunchKernelEx" + own](byref(Config(sizes, stream)), kernel(module, "ex_20us"), None, None))
            ok(cuda["cuLaunchCooperativeKernel" + own](kernel(module, "together_30us"), *sizes, stream, None))
        several = (One * 1)(One(kernel(module, "several_40us"), sizes, stream, None))
        ok(cuda.cuLaunchCooperativeKernelMultiDevice(several, 1, 0))
        old = kernel(module, "old_50us")
        ok(cuda.cuFuncSetBlockShape(old, 32, 1, 1))
        ok(cuda.cuParamSetSize(old, 0))
        ok(cuda.cuLaunch(old))
        ok(cuda.cuLaunchGrid(old, 2, 2))
        ok(cuda.cuLaunchGridAsync(old, 2, 2, stream))
        ok(cuda.cuCtxSynchronize())
        """)
    ran = sorted((kernel.name, kernel.busy_ns) for kernel in gpu.kernels())
    twice = [("ex_20us", 20_000), ("plain_10us", 10_000), ("together_30us", 30_000)]
    assert ran == sorted([*twice, *twice, ("several_40us", 40_000), *[("old_50us", 50_000)] * 3])
