"""CUDA_VISIBLE_DEVICES and CUDA_DEVICE_ORDER as the real driver reads them, where PCI order is not speed order."""

from collections.abc import Callable

import pytest

from rig.gpu import MakeSimgpu

Run = Callable[..., str]

MIXED = "1xA10,1xH200,1xL4,1xH200"  # by bus 0, 1, 2, 3; fastest first 1, 3, 0, 2
CUT = "1xA10,1xH100:3g.40gb+4g.40gb,1xA100"
GPU = "GPU-53474750-0000-0000-8000-0000000000"
MIG = "MIG-53474750-0000-0000-8000-0000000000"
PROGRAM = """
    import uuid
    result, count, raw = cuda.cuInit(0), c_int(), ctypes.create_string_buffer(16)
    cuda.cuDeviceGetCount(byref(count))
    last = []
    for n in range(count.value):
        ok(cuda.cuDeviceGetUuid_v2(raw, n))
        last.append(raw.raw.hex()[-2:])
    print(result, *last)
    """


@pytest.mark.parametrize(
    ("order", "visible", "seen"),
    [
        ("", None, "01 03 00 02"),
        ("FASTEST_FIRST", None, "01 03 00 02"),
        ("PCI_BUS_ID", None, "00 01 02 03"),
        ("", "0", "01"),
        ("PCI_BUS_ID", "0", "00"),
        ("PCI_BUS_ID", "3,1", "03 01"),
        ("", "3,1", "02 03"),
        ("", f"{GPU}02,{GPU}01", "02 01"),
        ("PCI_BUS_ID", f"{GPU}02,{GPU}01", "02 01"),
        ("PCI_BUS_ID", "1,9,0", "01"),
        ("PCI_BUS_ID", "1,-1,0", "01"),
        ("PCI_BUS_ID", "1gpu, 2x", "01 02"),
        ("PCI_BUS_ID", f"1,{GPU}02", "01"),
        ("PCI_BUS_ID", f"{GPU}02,1", "02"),
        ("PCI_BUS_ID", f"{GPU}02,GPU-0,{GPU}01", "02"),
    ],
)
def test_a_list_picks_from_the_order_that_is_asked_for(
    make_simgpu: MakeSimgpu, run: Run, order: str, visible: str | None, seen: str
) -> None:
    settings = {"CUDA_DEVICE_ORDER": order} if order else {}
    settings |= {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    assert run(make_simgpu(MIXED, **settings), PROGRAM) == f"0 {seen}\n"


@pytest.mark.parametrize("visible", ["", "-1", "none", "GPU-", "GPU-5347", f"{GPU}00,{GPU}00", "1,2,1", f"{MIG}11"])
def test_a_list_that_picks_nothing_leaves_no_device(make_simgpu: MakeSimgpu, run: Run, visible: str) -> None:
    assert run(make_simgpu(MIXED, CUDA_VISIBLE_DEVICES=visible), PROGRAM) == "100\n"


def test_a_state_has_its_header_from_the_beginning_so_that_a_full_tmpfs_is_an_error(
    make_simgpu: MakeSimgpu, run: Run
) -> None:
    gpu = make_simgpu("1xA10")
    run(gpu, "ok(cuda.cuInit(0))")
    header = gpu.state.stat().st_blocks * 512
    assert 20_000 < header < 4 << 20  # all devices that there can be; the rest of the file stays sparse


def test_a_uuid_may_be_cut_short_while_it_names_one_device(make_simgpu: MakeSimgpu, run: Run) -> None:
    assert run(make_simgpu("1xA10", CUDA_VISIBLE_DEVICES="GPU-5347"), PROGRAM) == "0 00\n"
    assert run(make_simgpu(CUT, CUDA_VISIBLE_DEVICES=MIG + "2"), PROGRAM) == "0 21\n"
    assert run(make_simgpu(CUT, CUDA_VISIBLE_DEVICES=MIG), PROGRAM) == "100\n"


@pytest.mark.parametrize(
    ("visible", "seen"),
    [
        (None, "0 11"),  # the first instance, and beside it no GPU
        ("0", "0 11"),  # the fastest GPU is the one that is cut
        ("1,2", "0 02 00"),
        ("1,0", "0 11"),
        (f"{GPU}01", "0 11"),
        (f"{MIG}21", "0 21"),
        (f"{MIG}21,{MIG}11", "0 21"),
        (f"{GPU}00,{GPU}02", "0 00 02"),
        (f"{MIG}31", "100"),
    ],
)
def test_a_process_sees_one_mig_instance_or_gpus(
    make_simgpu: MakeSimgpu, run: Run, visible: str | None, seen: str
) -> None:
    settings = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    assert run(make_simgpu(CUT, **settings), PROGRAM) == f"{seen}\n"


def test_a_gpu_in_mig_mode_without_instances_is_no_device(make_simgpu: MakeSimgpu, run: Run) -> None:
    assert run(make_simgpu("1xH100:mig"), PROGRAM) == "100\n"
    assert run(make_simgpu("1xH100:mig,1xA10"), PROGRAM) == "0 01\n"


def test_an_instance_is_a_device_with_its_part_of_the_gpu(make_simgpu: MakeSimgpu, run: Run) -> None:
    output = run(
        make_simgpu(CUT, CUDA_VISIBLE_DEVICES=f"{MIG}11", SIMGPU_MEMORY_MIB="8000"),
        """
        module = start()
        name, raw, bus = (ctypes.create_string_buffer(size) for size in (64, 16, 32))
        total, free, value, address = c_size_t(), c_size_t(), c_int(), c_uint64()
        ok(cuda.cuDeviceGetName(name, 64, 0))
        ok(cuda.cuDeviceGetUuid(raw, 0))
        ok(cuda.cuMemGetInfo_v2(byref(free), byref(total)))
        ok(cuda.cuDeviceGetAttribute(byref(value), 16, 0))
        print(name.value.decode(), raw.raw.hex()[-2:], total.value >> 20, value.value)
        print(*(cuda.cuMemAlloc_v2(byref(address), c_size_t(mib << 20)) for mib in (4001, 3999)))
        ok(cuda.cuDeviceGetPCIBusId(bus, 32, 0))
        print(bus.value.decode())
        """,
    )
    # The older call for the UUID tells the GPU's.
    assert output == "NVIDIA H100 80GB HBM3 MIG 3g.40gb 01 4000 60\n2 0\n0000:18:00.0\n"
