"""Test devices that are lost, hang or are drawn on: each is told with its reason, and the other devices go on."""

import os
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
from agent_fixtures import devices, reasons

from rig.agent import MakeAgent, RunningAgent, metered, program, usage
from rig.until import until
from sharepod.proto import v1_pb2 as pb
from sharepod.simgpu.truth import Truth

GIB = 1 << 30


@pytest.fixture
def truth(agent: RunningAgent) -> Iterator[Truth]:
    """Yield the simulator's controls of the agent's devices; at the end no device hangs."""
    with Truth(f"{agent.directory}/simgpu") as truth:
        yield truth
        for place in (0, 1):
            truth.hang(place, hangs=False)


# ---- lost


def fail_by_xid(agent: RunningAgent, truth: Truth, place: int, xid: int) -> None:
    """Let a device have a critical Xid, once more each second: an agent that has just started may not listen yet."""
    until(lambda: truth.inject_xid(place, xid) or reasons(agent)[place] == f"Xid {xid}", timeout_s=30, poll_s=1)


@pytest.mark.early
def test_a_new_agent_keeps_the_shares_of_a_lost_device_and_serves_the_others(agent: RunningAgent, truth: Truth) -> None:
    before = [agent.register(30, memory=GIB, name=name, device=place).share for name, place in (("a", "0"), ("b", "1"))]
    truth.inject_xid(0, 79)
    until(lambda: reasons(agent)[0] == "Xid 79", timeout_s=5.0)
    explained = agent.stub.ExplainShare(pb.ExplainShareRequest(share="a")).devices[0].reason
    assert explained.startswith("its device is unhealthy (Xid 79)")
    for _ in range(2):  # a restart loop must not change this
        agent.stop(signal.SIGKILL)
        agent.start()
        assert reasons(agent) == ["Xid 79", ""]
        assert [(share.id, share.devices[0].device_index) for share in agent.shares()] == [
            (share.id, index) for index, share in enumerate(before)
        ]
    explained = agent.stub.ExplainShare(pb.ExplainShareRequest(share="a")).devices[0].reason
    assert explained.startswith("its device is unhealthy (Xid 79)")
    assert "shares=['a']" in [line for line in agent.log().splitlines() if "device unhealthy" in line][-1]
    assert agent.register(30, name="c").share.devices[0].device_index == 1
    truth.recover(0)
    until(lambda: reasons(agent) == ["", ""], timeout_s=20.0)
    assert "device healthy again" in agent.log()
    assert [device.memory_total_bytes for device in devices(agent)] == [devices(agent)[1].memory_total_bytes] * 2
    answer = agent.register(30, memory=GIB, name="d", device="0")
    with program(metered(answer), "idle") as process:
        until(lambda: usage(agent, "d").processes == 1)
        assert process.poll() is None


def test_a_device_that_nvml_no_longer_lists_keeps_its_shares_until_it_does(
    make_agent: MakeAgent, tmp_path: Path
) -> None:
    agent = make_agent()
    for name in ("nvidiactl", "nvidia0", "nvidia1"):
        (tmp_path / name).touch()
    agent.environment = {**os.environ, "SIMGPU_DEVICE_NODES": str(tmp_path)}
    agent.start()
    shares = [agent.register(30, name=name, device=place).share for name, place in (("a", "0"), ("b", "1"))]
    told = {device.uuid: (device.name, device.memory_total_bytes) for device in devices(agent)}
    agent.stop()
    (tmp_path / "nvidia0").unlink()
    agent.start()
    assert [share.id for share in agent.shares()] == [share.id for share in shares]
    found = {device.uuid: device for device in devices(agent)}
    assert {uuid: (device.name, device.memory_total_bytes) for uuid, device in found.items()} == told
    assert found[shares[0].devices[0].device_uuid].health_reason == "NVML does not list it"
    assert found[shares[1].devices[0].device_uuid].healthy
    assert sorted(device.index for device in devices(agent)) == [0, 1]
    agent.stop()
    (tmp_path / "nvidia0").touch()
    agent.start()
    assert reasons(agent) == ["", ""]
    assert {share.name for share in agent.shares()} == {"a", "b"}


def test_a_device_without_a_share_that_nvml_no_longer_lists_is_told_too(make_agent: MakeAgent, tmp_path: Path) -> None:
    agent = make_agent()
    for name in ("nvidiactl", "nvidia0", "nvidia1"):
        (tmp_path / name).touch()
    agent.environment = {**os.environ, "SIMGPU_DEVICE_NODES": str(tmp_path)}
    agent.start()
    agent.register(30, name="b", device="1")
    agent.stop()
    (tmp_path / "nvidia0").unlink()
    for _ in range(2):
        agent.start()
        assert sorted(reasons(agent)) == ["", "NVML does not list it"]
        agent.stop()
    (tmp_path / "nvidia0").touch()
    agent.start()
    assert reasons(agent) == ["", ""]


# ---- NVML itself


@pytest.mark.early
def test_nvml_is_opened_anew_when_no_device_answers(agent: RunningAgent, truth: Truth) -> None:
    answer = agent.register(30, name="a", device="0")
    truth.reload_driver()
    until(lambda: reasons(agent) == ["NVML: Unknown Error"] * 2, timeout_s=10)
    until(lambda: "NVML opened anew" in agent.log(), timeout_s=40)
    until(lambda: reasons(agent) == ["", ""], timeout_s=30)
    with program(metered(answer), "idle") as process:  # the agent finds processes through NVML's new handles
        until(lambda: usage(agent, "a").processes == 1)
        assert process.poll() is None


@pytest.mark.early
@pytest.mark.parametrize("started_by", ["systemd", "a person"])
def test_an_agent_whose_nvml_does_not_come_back_ends_where_something_starts_it_again(
    make_agent: MakeAgent, started_by: str
) -> None:
    agent = make_agent("--simulate", "2xH200")
    agent.wrapper = ["sh", "-c", 'SYSTEMD_EXEC_PID=$$ exec "$@"', "sh"] if started_by == "systemd" else []
    agent.start()
    agent.register(30, name="a", device="0")
    with Truth(f"{agent.directory}/simgpu") as truth:
        truth.refuse_nvml()
        until(lambda: "NVML does not come back" in agent.log(), timeout_s=60)
        if started_by == "systemd":
            assert agent.process is not None
            assert agent.process.wait(timeout=10) == 1
            assert "NVML does not come back: devices 2xH200" in agent.log().splitlines()[-1]
            return
        truth.refuse_nvml(refuses=False)
        until(lambda: reasons(agent) == ["", ""], timeout_s=60)


# ---- released for a reset, a change of MIG, an upgrade of the driver

RELEASED = "released by an operator: `sharepod device resume {}` takes it back"


def files(agent: RunningAgent) -> set[str]:
    """Return the files of NVML's devices that the agent has open or mapped."""
    assert agent.process is not None
    maps = Path(f"/proc/{agent.process.pid}/maps").read_text(encoding="utf-8")
    return {line.split()[-1] for line in maps.splitlines() if line.endswith("/simgpu")}


def release(agent: RunningAgent, device: str) -> pb.ReleaseDeviceResponse:
    return agent.stub.ReleaseDevice(pb.ReleaseDeviceRequest(device=device))


def resume(agent: RunningAgent, device: str) -> pb.Device:
    return agent.stub.ResumeDevice(pb.ResumeDeviceRequest(device=device)).device


def test_a_device_that_is_released_is_in_nobody_s_hands_until_it_is_resumed(agent: RunningAgent, truth: Truth) -> None:
    answer = agent.register(30, name="a", device="0")
    with program(metered(answer), "idle"):
        until(lambda: usage(agent, "a").processes == 1)
        assert files(agent)
        released = release(agent, "0")
        assert (released.device.index, released.device.health_reason) == (0, RELEASED.format(0))
        assert [(share.name, len(share.processes)) for share in released.shares] == [("a", 1)]
        assert not files(agent)
        assert reasons(agent) == [RELEASED.format(0), ""]
        assert "shares=['a']" in [line for line in agent.log().splitlines() if "device unhealthy" in line][-1]
        with pytest.raises(grpc.RpcError, match="device 0 is unhealthy"):
            agent.register(30, device="0")
    release(agent, "1")
    assert release(agent, "1").device.index == 1, "again: nothing changes"
    resume(agent, "0")
    assert not files(agent), "the other one is still released"
    assert reasons(agent)[1] == RELEASED.format(1)
    truth.reload_driver()
    assert resume(agent, "1").index == 1
    until(lambda: reasons(agent) == ["", ""], timeout_s=10)
    assert files(agent)
    assert "NVML opened anew" not in agent.log(), "it was closed when the driver was loaded anew"
    with program(metered(answer), "idle"):
        until(lambda: usage(agent, "a").processes == 1)


def test_a_release_whose_caller_gives_up_is_done_all_the_same(agent: RunningAgent) -> None:
    with pytest.raises(grpc.RpcError, match="Deadline Exceeded"):  # a look at a device takes longer than the deadline
        agent.stub.ReleaseDevice(pb.ReleaseDeviceRequest(device="0"), timeout=0.2)
    until(lambda: reasons(agent)[0] == RELEASED.format(0), timeout_s=10)
    assert not files(agent)
    resume(agent, "0")
    until(lambda: reasons(agent) == ["", ""], timeout_s=10)


def test_a_device_that_had_a_critical_xid_is_believed_after_a_release(agent: RunningAgent, truth: Truth) -> None:
    fail_by_xid(agent, truth, 0, 95)
    release(agent, devices(agent)[0].uuid)
    truth.recover(0)
    resume(agent, "0")
    until(lambda: reasons(agent) == ["", ""], timeout_s=10)


def test_a_critical_xid_is_remembered_across_restarts_until_the_device_was_in_an_operators_hands(
    agent: RunningAgent, truth: Truth
) -> None:
    agent.register(30, name="a", device="0")
    fail_by_xid(agent, truth, 0, 62)
    for _ in range(2):
        agent.stop(signal.SIGKILL)
        agent.start()
        assert reasons(agent) == ["Xid 62", ""]
    assert "shares=['a']" in [line for line in agent.log().splitlines() if "device unhealthy" in line][-1]
    assert agent.register(30, name="b").share.devices[0].device_index == 1
    release(agent, "0")
    resume(agent, "0")
    until(lambda: reasons(agent) == ["", ""], timeout_s=10)
    agent.stop()
    agent.start()
    assert reasons(agent) == ["", ""]


def test_a_critical_xid_is_remembered_if_nvml_hangs_on_its_device_when_an_agent_starts(
    agent: RunningAgent, truth: Truth
) -> None:
    fail_by_xid(agent, truth, 0, 62)
    agent.stop(signal.SIGKILL)
    truth.hang(0)
    agent.start()
    assert reasons(agent) == ["Xid 62", ""]
    truth.hang(0, hangs=False)
    until(lambda: "missing device found" in agent.log(), timeout_s=20)
    time.sleep(11)  # longer than the probation
    assert reasons(agent) == ["Xid 62", ""]


@pytest.mark.parametrize("way", ["released", "another driver"])
def test_a_device_is_believed_by_a_new_agent_if_it_may_have_been_reset(
    agent: RunningAgent, truth: Truth, way: str
) -> None:
    agent.register(30, name="a", device="0")
    fail_by_xid(agent, truth, 0, 62)
    if way == "released":
        release(agent, "0")
    agent.stop()
    if way == "another driver":
        path = agent.directory / "checkpoint.json"
        text = path.read_text()
        path.write_text(re.sub('"driver": "[^"]+"', '"driver": "1.2"', text))
        assert path.read_text() != text
    agent.start()
    assert reasons(agent) == ["", ""]


@pytest.mark.early
def test_a_release_that_cannot_be_says_why(agent: RunningAgent, truth: Truth) -> None:
    with pytest.raises(grpc.RpcError, match=r"unknown device '7': this node has 0 \(GPU-.*: name one of them"):
        release(agent, "7")
    with pytest.raises(grpc.RpcError, match="device 1 is not released"):
        resume(agent, "1")
    release(agent, "1")
    truth.refuse_nvml()
    with pytest.raises(grpc.RpcError, match=r"device 1 stays released: .*restart the agent"):
        resume(agent, "1")
    assert reasons(agent)[1] == RELEASED.format(1)
    truth.refuse_nvml(refuses=False)
    resume(agent, "1")
    until(lambda: reasons(agent) == ["", ""], timeout_s=10)
    truth.hang(0)
    time.sleep(3)  # by then its thread is in the driver, for longer than the agent waits for a thread
    with pytest.raises(grpc.RpcError, match="a call of NVML has not come back for 10 s: stop the agent"):
        release(agent, "0")
    assert RELEASED.format(0) not in reasons(agent)


# ---- at the start


def forget(agent: RunningAgent, truth: Truth, lost: int) -> None:
    """Stop the agent, and let the next one be the first of this boot, on a machine that has lost a GPU meanwhile."""
    # The simulated machine ends with the last agent without a share; a share of the earlier agent keeps the machine.
    agent.register(30, name="b")
    agent.stop()
    (agent.directory / "checkpoint.json").unlink()
    truth.inject_xid(lost, 79)
    agent.start()


def test_a_device_that_no_agent_has_seen_well_is_there_by_its_place_until_it_tells_its_name(
    agent: RunningAgent, truth: Truth
) -> None:
    uuids = [device.uuid for device in devices(agent)]
    forget(agent, truth, 0)
    assert [device.uuid for device in devices(agent)] == ["GPU-at-place-0", uuids[1]]
    assert reasons(agent) == ["NVML: GPU is lost", ""]
    [line] = [line for line in agent.log().splitlines() if "device unhealthy" in line]
    assert "GPU-at-place-0" in line
    assert agent.register(30).share.devices[0].device_index == 1
    with pytest.raises(grpc.RpcError, match="NVML: GPU is lost"):
        agent.register(30, device="0")
    agent.stop(signal.SIGKILL)
    agent.start()  # its checkpoint names the device by its place only
    assert reasons(agent) == ["NVML: GPU is lost", ""]
    truth.recover(0)
    until(lambda: reasons(agent) == ["", ""], timeout_s=20.0)
    assert [device.uuid for device in devices(agent)] == uuids
    truth.reload_driver()  # the name that stood for it counts no more among those that have to fail
    until(lambda: "NVML opened anew" in agent.log(), timeout_s=40)
    until(lambda: reasons(agent) == ["", ""], timeout_s=30)
    answer = agent.register(30, memory=GIB, name="found", device="0")
    with program(metered(answer), "idle") as process:
        until(lambda: usage(agent, "found").processes == 1)
        assert process.poll() is None


def test_an_agent_whose_only_device_is_lost_waits_for_it(make_agent: MakeAgent) -> None:
    agent = make_agent("--simulate", "1xH200")
    agent.start()
    with Truth(f"{agent.directory}/simgpu") as truth:
        forget(agent, truth, 0)
        assert reasons(agent) == ["NVML: GPU is lost"]
        truth.recover(0)
        until(lambda: reasons(agent) == [""], timeout_s=20.0)
    assert "at-place" not in devices(agent)[0].uuid


def test_an_instance_that_may_not_be_looked_at_takes_no_other_with_it(make_agent: MakeAgent) -> None:
    agent = make_agent("--simulate", "1xH100:3g.40gb+4g.40gb")
    agent.start()
    uuids = [device.uuid for device in devices(agent)]
    with Truth(f"{agent.directory}/simgpu") as truth:
        agent.register(30, name="a", device="1")
        agent.stop()
        truth.mute(2)
        for known in (True, False):  # by an earlier agent
            if not known:
                agent.stop()
                (agent.directory / "checkpoint.json").unlink()
            agent.start()
            assert [device.uuid for device in devices(agent)] == uuids
            assert reasons(agent) == ["", "NVML: Insufficient Permissions"]
            assert [share.name for share in agent.shares()] == ["a"] * known
        truth.mute(2, mute=False)
        until(lambda: reasons(agent) == ["", ""], timeout_s=20.0)
        assert all(device.memory_total_bytes > GIB for device in devices(agent))


# ---- hanging


@pytest.mark.early
def test_a_device_that_hangs_is_unhealthy_after_ten_seconds_and_holds_up_nothing(
    agent: RunningAgent, truth: Truth
) -> None:
    agent.register(30, name="a", device="0")
    until(lambda: "agent started" in agent.log())
    truth.hang(0)
    began = time.monotonic()
    truth.inject_xid(1, 79)
    until(lambda: reasons(agent)[1] == "Xid 79", timeout_s=5.0)
    truth.recover(1)
    until(lambda: reasons(agent)[0].startswith("it could not be looked at for 10 s"), timeout_s=16.0)
    assert time.monotonic() - began > 7
    until(lambda: reasons(agent)[1] == "", timeout_s=20.0)  # the agent has looked at it all the time
    assert "shares=['a']" in [line for line in agent.log().splitlines() if "device unhealthy" in line][-1]
    began = time.monotonic()
    assert agent.stop() == 0
    assert time.monotonic() - began < 2


@pytest.mark.early
def test_an_agent_starts_beside_a_device_that_hangs(agent: RunningAgent, truth: Truth) -> None:
    agent.register(30, name="a", device="0")
    agent.stop()
    truth.hang(0)
    agent.start()
    assert reasons(agent)[0].startswith("NVML has not answered")
    assert reasons(agent)[1] == ""
    assert [share.name for share in agent.shares()] == ["a"]
    truth.hang(0, hangs=False)
    until(lambda: reasons(agent) == ["", ""], timeout_s=20.0)


# ---- graphics


def test_a_process_that_draws_without_a_share_is_found_and_counts_once_if_it_computes_too(
    agent: RunningAgent, truth: Truth
) -> None:
    environment = dict(agent.stub.GetNode(pb.GetNodeRequest()).environment)
    with subprocess.Popen(["sleep", "60"]) as drawer, program(environment, "idle") as both:
        truth.draw(0, both.pid)
        truth.draw(1, drawer.pid)
        until(lambda: all(device.foreign_processes for device in devices(agent)), timeout_s=6.0)
        found = [list(device.foreign_processes) for device in devices(agent)]
        assert [[process.pid for process in here] for here in found] == [[both.pid], [drawer.pid]]
        assert found[1][0].memory_used_bytes == 64 << 20
        assert agent.log().count("process without a share") == 2
        drawer.kill()
