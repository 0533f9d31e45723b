"""Test which device work counts on: CUDA's and NVML's numbers, MIG instances, MPS, programs on devices not theirs."""

import ast
import contextlib
import json
import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path

import grpc
import pytest
from agent_fixtures import devices, reasons

from rig.agent import MakeAgent, RunningAgent, metered, program, python, usage
from rig.script import script
from rig.until import until
from sharepod.agent.devices import bus
from sharepod.proto import v1_pb2 as pb
from sharepod.simgpu.truth import Truth

MIB = 1 << 20
MS = 1_000_000
GPU = "GPU-53474750-0000-0000-8000-0000000000"
MIG = "MIG-53474750-0000-0000-8000-0000000000"
MIXED = "1xA10,1xH200,1xL4,1xH200"  # order by bus: 0, 1, 2, 3; order by speed: 1, 3, 0, 2
CUT = "1xH100:3g.40gb+4g.40gb,1xA10"

ON_EVERY_DEVICE = f"""
import json, uuid
ok(cuda.cuInit(0))
count, raw, seen = c_int(), ctypes.create_string_buffer(16), []
ok(cuda.cuDeviceGetCount(byref(count)))
for n in range(count.value):
    function = kernel(start(n), "work_500us")
    ok(cuda.cuDeviceGetUuid_v2(raw, n))
    seen.append(str(uuid.UUID(bytes=raw.raw)))
    allocate((n + 1) * {64 * MIB})
    for _ in range(100 * (n + 1)):
        ok(launch(function))
    ok(cuda.cuCtxSynchronize())
print(json.dumps(seen), cuda.cuDeviceGet(byref(count), len(seen)), flush=True)
sys.stdin.read()
"""


def running(
    environment: dict[str, str], text: str, **settings: str
) -> AbstractContextManager[tuple[subprocess.Popen[str], str]]:
    """Run a program on the driver until the block ends; yield it and the first line that it printed."""
    return python({**environment, **settings}, *script(text)[1:])


def on(agent: RunningAgent, devices: Sequence[str], memory: int = 0, name: str = "") -> pb.RegisterShareResponse:
    """Register a share of 20 % on each of these devices."""
    asks = [pb.DeviceAsk(device=device, request_millipercent=20_000, memory_limit_bytes=memory) for device in devices]
    return agent.stub.RegisterShare(pb.RegisterShareRequest(devices=asks, name=name))


@pytest.mark.parametrize(
    ("order", "visible", "seen"),
    [
        (None, "given", "2 0 1"),
        ("PCI_BUS_ID", "given", "2 0 1"),
        (None, "0,1,2,3", "2 0 1"),  # the numbers count the share's devices
        ("FASTEST_FIRST", " 2,0", "1 2"),
        ("PCI_BUS_ID", "2,0", "1 2"),
        (None, "1,-1,0", "0"),
        (None, "1gpu,elsewhere,0", "0"),
        ("PCI_BUS_ID", f"{GPU}01,{GPU}00", "1 0"),
    ],
)
def test_work_on_a_cuda_device_is_billed_to_the_device_with_its_uuid(
    make_agent: MakeAgent, order: str | None, visible: str, seen: str
) -> None:
    agent = make_agent("--simulate", MIXED).start()
    answer = on(agent, ["2", "0", "1"], name="a")
    settings = {} if visible == "given" else {"CUDA_VISIBLE_DEVICES": visible}
    settings |= {"CUDA_DEVICE_ORDER": order} if order else {}
    with running(metered(answer), ON_EVERY_DEVICE, **settings) as (_, line):
        uuids, beyond = json.loads(line.rpartition(" ")[0]), line.split()[-1]
        assert uuids == [f"{GPU}0{number}".removeprefix("GPU-") for number in seen.split()]
        assert beyond == "101"  # CUDA_ERROR_INVALID_DEVICE for a number beyond the share's devices
        launches = 50 * len(uuids) * (len(uuids) + 1)
        until(lambda: sum(held.usage.launches for held in agent.shares()[0].devices) == launches)
        (share,) = agent.shares()
        with Truth(f"{agent.directory}/simgpu") as truth:
            busy = {device.uuid: device.busy_ns for device in truth.devices()}
        for held in share.devices:
            n = uuids.index(held.device_uuid.removeprefix("GPU-")) + 1 if held.device_uuid[4:] in uuids else 0
            assert held.usage.memory_used_bytes == n * 64 * MIB
            assert busy[held.device_uuid] == pytest.approx(n * 50 * MS, abs=MS)
            assert held.usage.launches == n * 100
            assert (held.usage.used_ns >= 0.95 * n * 50 * MS) if n else (held.usage.used_ns == 0)


# ---- MIG

LOOK_AROUND = """
import pynvml
pynvml.nvmlInit()
module = start()
raw, count = ctypes.create_string_buffer(16), c_int()
ok(cuda.cuDeviceGetCount(byref(count)))
ok(cuda.cuDeviceGetUuid_v2(raw, 0))
allocate(512 << 20)
parent = pynvml.nvmlDeviceGetHandleByIndex(0)
def look(handle):
    memory = pynvml.nvmlDeviceGetMemoryInfo(handle)
    return memory.total >> 20, memory.used >> 20, [p.pid for p in pynvml.nvmlDeviceGetComputeRunningProcesses(handle)]
views = []
for n in range(pynvml.nvmlDeviceGetMaxMigDeviceCount(parent)):
    try:
        views.append(look(pynvml.nvmlDeviceGetMigDeviceHandleByIndex(parent, n)))
    except pynvml.NVMLError_NotFound:
        pass  # of the other share, or not made
assert pynvml.nvmlDeviceGetCount() == 1 and pynvml.nvmlDeviceGetIndex(parent) == 0
whole = [p.pid for p in pynvml.nvmlDeviceGetComputeRunningProcesses(parent)]
print(repr((count.value, raw.raw.hex()[-2:], views, whole)), flush=True)
function = kernel(module, "work_2ms")
for _ in range(50):
    for _ in range(4):
        ok(launch(function))
    ok(cuda.cuCtxSynchronize())
sys.stdin.read()
"""


def test_instances_are_devices_with_their_own_processes_and_their_gpus_health_and_the_gpu_that_is_cut_is_none(
    make_agent: MakeAgent,
) -> None:
    agent = make_agent("--simulate", CUT).start()
    found = devices(agent)
    assert [(d.index, d.uuid) for d in found] == [(0, f"{MIG}10"), (1, f"{MIG}20"), (2, f"{GPU}01")]
    assert [d.name for d in found[:2]] == [f"NVIDIA H100 80GB HBM3 MIG {profile}" for profile in ("3g.40gb", "4g.40gb")]
    assert [d.memory_total_bytes // MIB for d in found] == [40779, 40779, 23028]
    with pytest.raises(grpc.RpcError, match="unknown device"):
        on(agent, [f"{GPU}00"])
    environment = dict(agent.stub.GetNode(pb.GetNodeRequest()).environment)
    with program({**environment, "CUDA_VISIBLE_DEVICES": f"{MIG}20"}, "idle") as stranger:
        until(lambda: "process without a share" in agent.log(), timeout_s=6.0)
        assert [[p.pid for p in device.foreign_processes] for device in devices(agent)] == [[], [stranger.pid], []]
    with program(metered(on(agent, ["1"])), "idle"), Truth(f"{agent.directory}/simgpu") as truth:
        truth.inject_xid(0, 79)
        until(lambda: reasons(agent) == ["Xid 79", "Xid 79", ""], timeout_s=5.0)
    empty = make_agent("--simulate", "1xH100:mig,1xA10").start()
    assert [d.uuid for d in devices(empty)] == [f"{GPU}01"]


def test_two_shares_on_two_instances_of_a_gpu_see_and_pay_for_their_own(make_agent: MakeAgent) -> None:
    agent = make_agent("--simulate", CUT).start()
    first, second = (on(agent, [device], memory, device) for device, memory in (("0", 4096 * MIB), ("1", 8192 * MIB)))
    with (
        running(metered(first), LOOK_AROUND) as (one, said_first),
        running(metered(second), LOOK_AROUND) as (two, said_second),
        Truth(f"{agent.directory}/simgpu") as truth,
    ):
        assert ast.literal_eval(said_first) == (1, "10", [(4096, 512, [one.pid])], [one.pid])
        assert ast.literal_eval(said_second) == (1, "20", [(8192, 512, [two.pid])], [two.pid])
        until(lambda: [usage(agent, name).launches for name in "01"] == [200, 200])
        places = {device.uuid: device.index for device in truth.devices()}
        own = [places[f"{MIG}{n}0"] for n in (1, 2)]
        until(lambda: [truth.devices()[place].busy_ns for place in own] == [400 * MS] * 2)  # all kernels have ended
        assert min(usage(agent, name).used_ns for name in "01") >= 0.95 * 400 * MS


def test_of_two_instances_that_a_share_holds_the_one_that_a_program_chose_is_charged(make_agent: MakeAgent) -> None:
    agent = make_agent("--simulate", CUT).start()
    share = metered(on(agent, ["0", "1"], 4096 * MIB, "both"))
    work = """
import os
function = kernel(start(), "work_2ms")
free, total = c_size_t(), c_size_t()
told = cuda.cuMemGetInfo_v2(byref(free), byref(total))
allocate(int(os.environ["SIZE"]))
for _ in range(50):
    ok(launch(function))
ok(cuda.cuMemcpyHtoD_v2(c_uint64(allocate(4096)), bytes(4096), c_size_t(4096)))
ok(cuda.cuCtxSynchronize())
print(told, total.value >> 20, flush=True)
sys.stdin.read()
"""

    def rows() -> list[pb.Usage]:
        return [term.usage for term in agent.shares()[0].devices]

    def run_on(chosen: int, size: int) -> list[tuple[int, int, int]]:
        before = rows()
        visible = f"{MIG}20" if chosen else "0"
        with running(share, work, CUDA_VISIBLE_DEVICES=visible, SIZE=str(size)) as (_, said):
            assert said == "0 4096\n"
            until(lambda: rows()[chosen].launches >= before[chosen].launches + 50)
            after = rows()
        until(lambda: all(row.processes == 0 for row in rows()))
        return [
            (new.memory_used_bytes, new.launches - old.launches, new.host_to_device_copies - old.host_to_device_copies)
            for old, new in zip(before, after, strict=True)
        ]

    assert [term.device_uuid for term in agent.shares()[0].devices] == [f"{MIG}10", f"{MIG}20"]
    for chosen, size in ((1, 512 * MIB), (0, 256 * MIB)):  # the second instance, then the first
        expected = [(0, 0, 0), (0, 0, 0)]
        expected[chosen] = (size + 4096, 50, 1)
        assert run_on(chosen, size) == expected


# ---- MPS


@contextlib.contextmanager
def mps_server(directory: Path) -> Iterator[int]:
    """Run a process that has an MPS server's name."""
    copy = directory / "nvidia-cuda-mps-server"
    shutil.copy("/bin/sleep", copy)
    with subprocess.Popen([copy, "60"]) as process:
        try:
            yield process.pid
        finally:
            process.kill()


def test_a_device_that_mps_serves_takes_no_share_until_it_is_stopped(agent: RunningAgent, tmp_path: Path) -> None:
    with Truth(f"{agent.directory}/simgpu") as truth, mps_server(tmp_path) as pid:
        truth.serve_by_mps(0, pid)  # the server is there, but no client yet
        until(lambda: reasons(agent)[0].startswith("MPS serves it"), timeout_s=5.0)
        assert reasons(agent)[1] == ""
        with pytest.raises(grpc.RpcError, match=r"device 0 is unhealthy \(MPS serves it, .*mps-control` stops it\)"):
            on(agent, ["0"])
        assert on(agent, [""]).share.devices[0].device_uuid == f"{GPU}01"  # the best fit is now on the other device
        truth.serve_by_mps(0, 0)
        until(lambda: reasons(agent) == ["", ""], timeout_s=5.0)
        on(agent, ["0"])
    assert agent.log().count("device unhealthy") == agent.log().count("device healthy again") == 1
    assert "process without a share" not in agent.log()


def test_a_device_that_lets_one_process_in_takes_no_share_until_its_compute_mode_is_changed(
    agent: RunningAgent,
) -> None:
    with Truth(f"{agent.directory}/simgpu") as truth:
        truth.set_compute_mode(0, 3)
        until(lambda: reasons(agent)[0].startswith("its compute mode EXCLUSIVE_PROCESS"), timeout_s=5.0)
        with pytest.raises(grpc.RpcError, match=r"device 0 is unhealthy \(its compute mode .*nvidia-smi -c DEFAULT"):
            on(agent, ["0"])
        truth.set_compute_mode(0, 0)
        until(lambda: reasons(agent) == ["", ""], timeout_s=5.0)
        on(agent, ["0"])


def test_the_second_program_on_a_device_that_lets_one_in_gets_an_error_and_its_share_tells_why(
    agent: RunningAgent,
) -> None:
    environments = [metered(on(agent, ["0"])) for _ in "ab"]
    with Truth(f"{agent.directory}/simgpu") as truth:
        truth.set_compute_mode(0, 3)  # the shares have the device already
        with running(environments[0], "start(); print('in', flush=True); input()") as (_, line):
            assert line == "in\n"
            for make in ("cuDevicePrimaryCtxRetain(byref(it), 0)", "cuCtxCreate_v2(byref(it), 0, 0)"):
                with running(environments[1], f"cuda.cuInit(0); it = c_void_p(); print(cuda.{make})") as (_, line):
                    assert line == "46\n"
            until(lambda: agent.log().count("cuda_error=46") == 2, timeout_s=5.0)
        truth.set_compute_mode(0, 0)
    told = next(line for line in agent.log().splitlines() if "cuda_error=46" in line)
    assert "set its compute mode to DEFAULT" in told


def test_under_the_closed_policy_cuda_does_not_start_for_a_client_of_mps(make_agent: MakeAgent, tmp_path: Path) -> None:
    (tmp_path / "nvidia-cuda-mps-control.pid").write_text(f"{os.getpid()}\n")  # the file of a running daemon
    environment = metered(on(make_agent("--policy", "closed").start(), ["0"]))
    for directory, result in ((tmp_path, 802), (tmp_path / "none", 0)):
        with running(environment, "print(cuda.cuInit(0))", CUDA_MPS_PIPE_DIRECTORY=str(directory)) as (_, line):
            assert line == f"{result}\n"


def test_the_memory_node_is_what_the_kernel_says_of_the_bus(tmp_path: Path) -> None:
    for place, text in (("0000:17:00.0", "1"), ("10000:02:00.0", "0"), ("0000:18:00.0", "-1"), ("0000:19:00.0", "")):
        (tmp_path / place).mkdir()
        (tmp_path / place / "numa_node").write_text(text + "\n")
    places = ("00000000:17:00.0", "00010000:02:00.0", "00000000:18:00.0", "00000000:19:00.0", "00000000:1A:00.0", "?")
    assert [bus.numa_node_of(bus.address_of(place), tmp_path) for place in places] == [1, 0, -1, -1, -1, -1]
