"""Devices as a program sees them, names as cuGetProcAddress answers them, handles that are no longer good."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from rig import REPO_ROOT
from rig.gpu import MakeSimgpu
from sharepod.simgpu.truth import Truth

Run = Callable[..., str]

LOOKUP = """
    def find(name, version, flags=0):
        address, status = c_void_p(), c_int(-1)
        result = cuda.cuGetProcAddress_v2(name.encode(), byref(address), version, c_uint64(flags), byref(status))
        return result, status.value, address.value

    def at(name):
        return ctypes.cast(getattr(cuda, name), c_void_p).value
    """


@pytest.mark.parametrize(
    ("name", "version", "flags", "symbol"),
    [
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
    ],
)
def test_a_name_and_a_version_give_the_exported_symbol_of_that_abi(
    make_simgpu: MakeSimgpu, run: Run, name: str, version: int, flags: int, symbol: str
) -> None:
    output = run(make_simgpu(), f"{LOOKUP}\n    print(find({name!r}, {version}, {flags}) == (0, 0, at({symbol!r})))")
    assert output == "True\n"


def test_unknown_names_and_versions_too_old_are_told_apart(make_simgpu: MakeSimgpu, run: Run) -> None:
    output = run(
        make_simgpu(),
        f"""{LOOKUP}
    print(find("cuNoSuchCall", 13000), find("cuMemAlloc_v2", 13000), find("cuLaunchKernelEx", 11000))
    """,
    )
    assert output == "(500, 1, None) (500, 1, None) (500, 2, None)\n"


def test_the_private_tables_of_the_runtime_are_not_answered(make_simgpu: MakeSimgpu, run: Run) -> None:
    output = run(make_simgpu(), "t = c_void_p(1); print(cuda.cuGetExportTable(byref(t), bytes(16)), t.value)")
    assert output == "801 None\n"


DEVICES = """
    result, count, name = cuda.cuInit(0), c_int(), ctypes.create_string_buffer(64)
    print(result, cuda.cuDeviceGetCount(byref(count)), count.value)
    for n in range(count.value):
        ok(cuda.cuDeviceGetName(name, 64, n))
        print(name.value.decode())
    """


@pytest.mark.parametrize(
    ("visible", "names"),
    [
        (None, ["NVIDIA H200", "NVIDIA H200", "NVIDIA A10"]),
        ("2,0", ["NVIDIA A10", "NVIDIA H200"]),
        ("GPU-53474750-0000-0000-8000-000000000002", ["NVIDIA A10"]),
        ("1,7,0", ["NVIDIA H200"]),
    ],
)
def test_a_program_sees_the_devices_that_its_environment_names(
    make_simgpu: MakeSimgpu, run: Run, visible: str | None, names: list[str]
) -> None:
    settings = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    lines = run(make_simgpu("2xH200,1xA10", **settings), DEVICES).splitlines()
    assert lines == [f"0 0 {len(names)}", *names]


def test_no_visible_device_is_an_error_of_cu_init(make_simgpu: MakeSimgpu, run: Run) -> None:
    assert run(make_simgpu(CUDA_VISIBLE_DEVICES=""), DEVICES) == "100 100 0\n"


def test_uuids_are_the_same_in_the_driver_and_in_the_truth(make_simgpu: MakeSimgpu, run: Run) -> None:
    gpu = make_simgpu("2xL4")
    output = run(
        gpu,
        """
        ok(cuda.cuInit(0))
        uuid = ctypes.create_string_buffer(16)
        for n in (0, 1):
            ok(cuda.cuDeviceGetUuid_v2(uuid, n))
            print(uuid.raw.hex())
        """,
    )
    with Truth(gpu.state) as truth:
        assert [d.uuid.removeprefix("GPU-").replace("-", "") for d in truth.devices()] == output.split()


def test_only_what_ptx_declares_is_found_in_it_and_anything_in_other_images(make_simgpu: MakeSimgpu, run: Run) -> None:
    output = run(
        make_simgpu(),
        """
        module, function = start(), c_void_p()
        ptx = b".version 8.0\\n.target sm_90\\n.visible .entry one(.param .u64 p) { ret; }\\n.entry two() { ret; }\\n"
        for image in (ptx, b"\\x7fELF" + bytes(64)):
            ok(cuda.cuModuleLoadData(byref(module), image))
            print([cuda.cuModuleGetFunction(byref(function), module, n) for n in (b"one", b"two", b"three")])
        """,
    )
    assert output.splitlines() == ["[0, 0, 500]", "[0, 0, 0]"]


def test_stale_and_foreign_handles_are_refused(make_simgpu: MakeSimgpu, run: Run) -> None:
    output = run(
        make_simgpu(),
        """
        print(cuda.cuCtxSynchronize())
        ok(cuda.cuInit(0))
        print(cuda.cuCtxSynchronize())
        f, stream, event = kernel(start(), "k"), new_stream(), new_event()
        ok(cuda.cuStreamDestroy_v2(stream))
        ok(cuda.cuEventDestroy_v2(event))
        print(launch(f, stream), cuda.cuEventQuery(event), launch(event), launch(f, grid=0))
        """,
    )
    assert output.split() == ["3", "201", "400", "400", "400", "1"]


def test_what_is_not_simulated_says_so_and_is_logged(make_simgpu: MakeSimgpu, run: Run, tmp_path: Path) -> None:
    log = tmp_path / "log"
    assert run(make_simgpu(SIMGPU_LOG=str(log)), "start(); print(cuda.cuTexObjectCreate(None, None))") == "801\n"
    assert log.read_text() == "simgpu: not simulated: cuTexObjectCreate\n"


def test_every_function_that_is_not_simulated_says_so_and_never_crashes(
    make_simgpu: MakeSimgpu, run: Run, tmp_path: Path
) -> None:
    rows = (REPO_ROOT / "simgpu" / "unsupported.def").read_text()
    names = re.findall(r"^X\((\w+)\)$", rows, re.MULTILINE)
    assert len(names) > 150
    log = tmp_path / "log"
    output = run(
        make_simgpu(SIMGPU_LOG=str(log)),
        """
        start()
        print({cuda[name](*[c_uint64(64 + n) for n in range(8)]) for name in sys.argv[1:]})
        """,
        *names,
    )
    assert output == "{801}\n"
    assert log.read_text().splitlines() == [f"simgpu: not simulated: {name}" for name in names]
