"""Test programs that are pid 1 in a pid namespace, as in containers: the agent charges and finds them by its pids."""

import re

import pytest
from agent_fixtures import devices

from rig.agent import MakeAgent, free_port, metered, python, scrape, usage
from rig.pid_namespaces import alone, first_of
from rig.until import until
from sharepod.proto import v1_pb2 as pb
from sharepod.simgpu.truth import Truth

MIB = 1 << 20
CONTEXT_MIB, MODULE_MIB = 300, 10
# Holds a context with the given numbers of modules and MiB.
PROGRAM = """
import ctypes, os, sys
cuda, context = ctypes.CDLL("libcuda.so.1"), ctypes.c_void_p()
assert not cuda.cuInit(0)
assert not cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0)
assert not cuda.cuCtxSetCurrent(context)
for _ in range(int(sys.argv[1])):
    assert not cuda.cuModuleLoadData(ctypes.byref(ctypes.c_void_p()), b"\\x7fELF" + bytes(64))
assert not cuda.cuMemAlloc_v2(ctypes.byref(ctypes.c_uint64()), ctypes.c_size_t(int(sys.argv[2]) << 20))
print(os.getpid(), flush=True)
sys.stdin.read()
"""


@pytest.mark.early
def test_programs_that_are_both_pid_1_are_charged_what_each_of_them_takes(
    make_agent: MakeAgent, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SIMGPU_CONTEXT_MIB", str(CONTEXT_MIB))
    monkeypatch.setenv("SIMGPU_MODULE_KIB", str(MODULE_MIB * 1024))
    address = f"127.0.0.1:{free_port()}"
    agent = make_agent("--metrics-listen", address).start()
    first, second = (metered(agent.register(30, memory=4 << 30, name=name, device="0")) for name in ("first", "second"))
    stranger = dict(agent.stub.GetNode(pb.GetNodeRequest()).environment)

    def charged(name: str) -> tuple[int, int]:
        told = usage(agent, name)
        return told.memory_used_bytes // MIB, told.memory_overhead_bytes // MIB

    def foreign() -> list[int]:
        return [process.pid for process in devices(agent)[0].foreign_processes]

    def foreign_metrics() -> list[float]:
        """Return how many processes without a share device 0 has, and how many were ever found on it."""
        rows = r'^sharepod_device_foreign_processes(?:_seen_total)?\{[^}]*gpu="0"[^}]*\} (\S+)$'
        return [float(value) for value in re.findall(rows, scrape(address), re.MULTILINE)]

    with (
        python(first, "-c", PROGRAM, "1", "100", within=alone()) as (one, there),
        python(second, "-c", PROGRAM, "3", "500", within=alone()) as (other, here),
    ):
        assert (there, here) == ("1\n", "1\n")
        until(lambda: charged("first") == (410, 310) and charged("second") == (830, 330), timeout_s=30)
        assert foreign() == []
        assert foreign_metrics() == [0, 0]
        with (
            python(stranger, "-c", PROGRAM, "0", "50", within=alone()) as (third, _),
            Truth(f"{agent.directory}/simgpu") as truth,
        ):
            until(foreign, timeout_s=30)  # the other two have been there for longer, so they would have been found
            assert foreign() == [first_of(third)]
            assert {process.pid: process.memory_bytes // MIB for process in truth.processes(0)} == {
                first_of(one): 410,
                first_of(other): 830,
                first_of(third): 350,
            }
            until(lambda: foreign_metrics() == [1, 1])
        until(lambda: not foreign(), timeout_s=30)
        assert (charged("first"), charged("second")) == ((410, 310), (830, 330))
    assert agent.log().count("process without a share") == 1
    for name in ("first", "second"):
        agent.stub.ReleaseShare(pb.ReleaseShareRequest(share=name))
    agent.stop()
    assert not list(agent.directory.glob("simgpu*"))
