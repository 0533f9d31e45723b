"""Test that CUDA_VISIBLE_DEVICES and CUDA_DEVICE_ORDER are read as by the real driver; PCI order is not speed order."""

import pytest
from simgpu_fixtures import COUNTED, NewGpu

MIXED = "1xA10,1xH200,1xL4,1xH200"  # order by bus: 0, 1, 2, 3; order by speed: 1, 3, 0, 2
CUT = "1xA10,1xH100:3g.40gb+4g.40gb,1xA100"
GPU = "GPU-53474750-0000-0000-8000-0000000000"
MIG = "MIG-53474750-0000-0000-8000-0000000000"


@pytest.mark.parametrize(
    ("order", "visible", "seen"),
    [
        ("", None, "0 01 03 00 02"),
        ("FASTEST_FIRST", None, "0 01 03 00 02"),
        ("PCI_BUS_ID", None, "0 00 01 02 03"),
        ("", "0", "0 01"),
        ("PCI_BUS_ID", "3,1", "0 03 01"),
        ("", "3,1", "0 02 03"),
        ("", f"{GPU}02,{GPU}01", "0 02 01"),
        ("PCI_BUS_ID", f"{GPU}02,{GPU}01", "0 02 01"),
        ("PCI_BUS_ID", "1,9,0", "0 01"),
        ("PCI_BUS_ID", "1,-1,0", "0 01"),
        ("PCI_BUS_ID", "1gpu, 2x", "0 01 02"),
        ("PCI_BUS_ID", f"1,{GPU}02", "0 01"),
        ("PCI_BUS_ID", f"{GPU}02,1", "0 02"),
        ("PCI_BUS_ID", f"{GPU}02,GPU-0,{GPU}01", "0 02"),
        *(
            ("", none, "100")
            for none in ("", "-1", "none", "GPU-", "GPU-5347", f"{GPU}00,{GPU}00", "1,2,1", f"{MIG}11")
        ),
    ],
)
def test_a_list_picks_from_the_order_that_is_asked_for(
    new_gpu: NewGpu, order: str, visible: str | None, seen: str
) -> None:
    settings = {"CUDA_DEVICE_ORDER": order} if order else {}
    settings |= {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    assert new_gpu(MIXED, **settings).play(COUNTED) == [seen]


@pytest.mark.parametrize(
    ("devices", "visible", "seen"),
    [
        (CUT, None, "0 11"),  # the first instance, and no GPU beside it
        (CUT, "0", "0 11"),  # the fastest GPU is the one with MIG instances
        (CUT, "1,2", "0 02 00"),
        (CUT, "1,0", "0 11"),
        (CUT, f"{GPU}01", "0 11"),
        (CUT, f"{MIG}21", "0 21"),
        (CUT, f"{MIG}21,{MIG}11", "0 21"),
        (CUT, f"{GPU}00,{GPU}02", "0 00 02"),
        (CUT, f"{MIG}31", "100"),
        (CUT, f"{MIG}2", "0 21"),  # a UUID that is cut short, but still names one instance
        (CUT, MIG, "100"),  # a UUID that is cut too short
        ("1xH100:mig", None, "100"),  # a GPU in MIG mode without instances
        ("1xH100:mig,1xA10", None, "0 01"),
        ("1xA10", "GPU-5347", "0 00"),
    ],
)
def test_a_process_sees_one_mig_instance_or_gpus(new_gpu: NewGpu, devices: str, visible: str | None, seen: str) -> None:
    settings = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    assert new_gpu(devices, **settings).play(COUNTED) == [seen]


def test_an_instance_is_a_device_with_its_part_of_the_gpu(new_gpu: NewGpu) -> None:
    lines = new_gpu(CUT, CUDA_VISIBLE_DEVICES=f"{MIG}11", SIMGPU_MEMORY_MIB="8000").play("""
        start()
        name, raw, bus = (ctypes.create_string_buffer(size) for size in (64, 16, 32))
        total, free, value = c_size_t(), c_size_t(), c_int()
        ok(cuda.cuDeviceGetName(name, 64, 0))
        ok(cuda.cuDeviceGetUuid(raw, 0))
        ok(cuda.cuMemGetInfo_v2(byref(free), byref(total)))
        ok(cuda.cuDeviceGetAttribute(byref(value), 16, 0))
        print(name.value.decode(), raw.raw.hex()[-2:], total.value >> 20, value.value)
        print(*(cuda.cuMemAlloc_v2(byref(c_uint64()), c_size_t(mib << 20)) for mib in (4001, 3999)))
        ok(cuda.cuDeviceGetPCIBusId(bus, 32, 0))
        print(bus.value.decode())
        """)
    # The older call for the UUID returns the GPU's UUID.
    assert lines == ["NVIDIA H100 80GB HBM3 MIG 3g.40gb 01 4000 60", "2 0", "0000:18:00.0"]


def test_a_state_has_its_header_from_the_beginning_so_that_a_full_tmpfs_is_an_error(new_gpu: NewGpu) -> None:
    gpu = new_gpu("1xA10", SIMGPU_LOG_KERNELS="0")
    gpu.play("ok(cuda.cuInit(0))")
    header = gpu.simulated.state.stat().st_blocks * 512
    assert 20_000 < header < 4 << 20  # room for the most devices possible; the rest of the file stays sparse


def test_a_device_says_that_it_has_the_kinds_of_memory_that_are_simulated(new_gpu: NewGpu) -> None:
    # Without the attribute for pools, programs allocate in another way: Quadrants does so from within its kernels.
    lines = new_gpu("1xH200,1xT4").play("""
        from cuda.bindings import driver
        ok(cuda.cuInit(0))
        names = ["MEMORY_POOLS_SUPPORTED", "MEMPOOL_SUPPORTED_HANDLE_TYPES", "VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED",
                 "HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED", "SPARSE_CUDA_ARRAY_SUPPORTED",
                 "DEFERRED_MAPPING_CUDA_ARRAY_SUPPORTED", "HANDLE_TYPE_FABRIC_SUPPORTED", "MULTICAST_SUPPORTED"]
        kinds = [getattr(driver.CUdevice_attribute, "CU_DEVICE_ATTRIBUTE_" + name) for name in names]
        for device in (0, 1):
            print([driver.cuDeviceGetAttribute(kind, device)[1] for kind in kinds])
        """)
    assert lines == ["[1, 1, 1, 1, 1, 1, 0, 0]"] * 2
