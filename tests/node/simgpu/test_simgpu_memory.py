"""Test every kind of device memory: it counts to the byte, ends when it should, and its pointers have attributes."""

import json
import resource
import subprocess

import pytest
from simgpu_fixtures import NewGpu

from rig.programs import fill_command


def test_a_device_gives_its_memory_to_the_last_byte_by_every_kind_of_allocation_and_gets_it_back(
    new_gpu: NewGpu,
) -> None:
    env = new_gpu(SIMGPU_MEMORY_MIB="256").env
    command = [word for word in fill_command("kinds", {"count": 2}) if word != "wait=1"]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60, check=True)
    told = json.loads(done.stdout.splitlines()[-1])
    assert len(told["kinds"]) >= 9
    assert set(told["kinds"].values()) == {"exact"}, told
    assert (told["free_bytes"], told["lost_bytes"]) == (256 << 20, 0)


def test_huge_allocations_take_no_ram(new_gpu: NewGpu) -> None:
    before_kib = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    lines = new_gpu().play("""
        start()
        free, total = c_size_t(), c_size_t()
        ok(cuda.cuMemGetInfo_v2(byref(free), byref(total)))
        address = allocate(free.value)
        ok(cuda.cuMemsetD8_v2(c_uint64(address), 0, free))
        print(used() == total.value)
        """)
    assert lines == ["True"]
    assert max(0, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss - before_kib) < 200 * 1024


@pytest.mark.parametrize("kind", ["cuModuleLoadData", "cuLibraryLoadData"])
def test_modules_take_what_is_set_and_give_it_back(new_gpu: NewGpu, kind: str) -> None:
    library = ", None, None, 0, None, None, 0" if "Library" in kind else ""
    lines = new_gpu(SIMGPU_MODULE_KIB="300", SIMGPU_CONTEXT_MIB="5").play(f"""
        start()
        one, before = c_void_p(), used()
        ok(cuda.{kind}(byref(one), b"\\x7fELF" + bytes(64){library}))
        after = used()
        ok(cuda.{kind.replace("LoadData", "Unload")}(one))
        print(before, after, used(), account().contexts_bytes)
        """)
    one = (5 << 20) + 300 * 1024  # start() has loaded one module
    assert lines == [f"{one} {one + 300 * 1024} {one} {one}"]


def test_pointers_tell_what_they_are(new_gpu: NewGpu) -> None:
    lines = new_gpu("2xH200").play("""
        start(1)
        device, host, kind, where = allocate(100), c_void_p(), c_uint(), c_int()
        base, size = c_uint64(), c_size_t()
        ok(cuda.cuMemAllocHost_v2(byref(host), c_size_t(100)))
        for address in (device + 50, host.value, 64):
            print(cuda.cuPointerGetAttribute(byref(kind), 2, c_uint64(address)), kind.value)
        ok(cuda.cuPointerGetAttribute(byref(where), 9, c_uint64(device)))
        ok(cuda.cuMemGetAddressRange_v2(byref(base), byref(size), c_uint64(device + 50)))
        print(where.value, base.value == device, size.value)
        """)
    assert lines[:2] == ["0 2", "0 1"]
    assert lines[2].startswith("1 ")
    assert lines[3] == "1 True 100"
