"""Test the agent with programs: metered ones, one without a share, on a failing device, and with a killed agent."""

import os
import shutil
import struct
import subprocess
import tempfile
import time
from pathlib import Path

import pytest
from agent_fixtures import devices
from bad_input import facts_of, overwrite
from capped_share import memory_program

from rig.agent import PROGRAM, MakeAgent, RunningAgent, metered, program, python, usage
from rig.until import until
from sharepod.agent.shares import environ
from sharepod.proto import v1_pb2 as pb

MS = 1_000_000


def test_a_turn_that_ends_before_its_first_launch_is_drained_at_once(
    make_agent: MakeAgent, monkeypatch: pytest.MonkeyPatch
) -> None:
    # On a `typical` device a marker would also wait for its context's slice of the rotation.
    monkeypatch.setenv("SIMGPU_PROFILE", "ideal")
    agent = make_agent().start()
    slow = {**metered(agent.register(50, name="slow", device="0")), "SIMGPU_RECORD_COST_NS": str(12 * MS)}
    with program(slow), program(metered(agent.register(50, name="other", device="0"))):
        until(lambda: usage(agent, "slow").turns > 0)
        before = {name: usage(agent, name) for name in ("slow", "other")}
        until(lambda: usage(agent, "slow").turns > before["slow"].turns + 20)
        until(lambda: usage(agent, "other").used_ns > before["other"].used_ns + 500 * MS)
        after = {name: usage(agent, name) for name in before}
    grown = {
        field: getattr(after["slow"], field) - getattr(before["slow"], field)
        for field in ("turns", "launches", "cogrants", "used_ns")
    }
    # Entering takes longer than the quantum, so few turns come to a launch, and the other turns need no drain. After a
    # launch a marker is recorded. On a loaded machine that may take longer than the bound of a drain.
    assert grown["launches"] < grown["turns"]
    assert grown["cogrants"] <= grown["launches"]
    assert grown["used_ns"] < (grown["launches"] + 4) * 30 * MS


def test_turns_of_two_shares_are_told_with_their_names_and_without_gaps(agent: RunningAgent) -> None:
    with (
        program(metered(agent.register(50, name="a", device="0"))),
        program(metered(agent.register(50, name="b", device="0"))),
    ):
        until(lambda: min(usage(agent, "a").turns, usage(agent, "b").turns) > 5)
        turns = agent.stub.ListTurns(pb.ListTurnsRequest()).turns
        assert {turn.share_name for turn in turns} == {"a", "b"}
        sequences = [turn.sequence for turn in turns]
        assert sequences == list(range(sequences[0], sequences[0] + len(sequences)))
        assert all(turn.end != pb.TURN_END_UNSPECIFIED and turn.granted_ns <= turn.drained_ns for turn in turns)
        later = agent.stub.ListTurns(pb.ListTurnsRequest(after_sequence=sequences[-1], max_turns=1)).turns
        assert [turn.sequence for turn in later] in ([], [sequences[-1] + 1])


def test_a_process_without_a_share_is_found_within_five_seconds_unless_it_is_a_monitoring_daemon(
    make_agent: MakeAgent,
) -> None:
    agent = make_agent("--monitoring", "memory_prog*").start()
    environment = dict(agent.stub.GetNode(pb.GetNodeRequest()).environment)
    with (
        python(environment, of=memory_program()),
        program(environment, "idle") as stranger,
        program(metered(agent.register(30)), "idle"),
    ):
        until(lambda: devices(agent)[0].foreign_processes, timeout_s=5.0)
        time.sleep(1.5)
        assert [p.pid for p in devices(agent)[0].foreign_processes] == [stranger.pid]
        assert devices(agent)[0].foreign_processes[0].name.startswith("python")
    until(lambda: not devices(agent)[0].foreign_processes, timeout_s=5.0)
    assert agent.log().count("process without a share") == 1
    assert f"pid={stranger.pid}" in agent.log()


def test_a_program_of_a_share_that_runs_unmetered_is_told_with_the_cause(agent: RunningAgent, tmp_path: Path) -> None:
    names = ("lost", "damaged", "bare", "outside", "client", "hidden")
    lost, damaged, bare, outside, client, hidden = (agent.register(10, name=name, device="0") for name in names)
    hide = f'mount -t tmpfs tmpfs {Path(hidden.share.directory).parent} && exec "$@"'
    apart = ["unshare", "-rm", "sh", "-c", hide, "sh"]
    elsewhere = {**metered(outside), "CUDA_VISIBLE_DEVICES": devices(agent)[1].uuid}
    (tmp_path / "nvidia-cuda-mps-control.pid").write_text(f"{os.getpid()}\n")  # the file of a running MPS daemon
    with program(metered(lost), "idle") as left:
        until(lambda: usage(agent, "lost").processes == 1)
        agent.stub.ReleaseShare(pb.ReleaseShareRequest(share="lost"))
        overwrite(Path(damaged.share.directory, "terms"), 8, b"\2")
        with (
            program(metered(damaged), "idle") as refused,
            program(dict(bare.environment), "idle") as without,
            program(elsewhere, "idle") as stray,
            program({**metered(client), "CUDA_MPS_PIPE_DIRECTORY": str(tmp_path)}, "idle") as of_mps,
            python(metered(hidden), str(PROGRAM), "idle", within=apart) as (hides, _),
        ):
            until(lambda: agent.log().count("process of a share runs unmetered") == 6, timeout_s=6.0)
            for process, region, cause in (
                (left, lost.share.directory, "its region is gone"),
                (refused, damaged.share.directory, "its region has another ABI"),
                (without, bare.share.directory, "it has not attached"),
                (stray, outside.share.directory, "its share does not hold this device"),
                (of_mps, client.share.directory, "it is a client of MPS"),
                (hides, hidden.share.directory, "its mount namespace hides the share's files"),
            ):
                lines = [line for line in agent.log().splitlines() if "runs unmetered" in line]
                (line,) = [line for line in lines if f"pid={process.pid} " in line]
                assert region in line
                assert cause in line
                found = [one for device in devices(agent) for one in device.foreign_processes if one.pid == process.pid]
                assert [cause in one.unmetered_cause for one in found] == [True]
            for share, fact in (
                (bare.share, f"({without.pid}) runs unmetered: it has not"),
                (outside.share, f"({stray.pid}) runs unmetered on device 1: its share does not"),
            ):
                assert [fact in one for one in facts_of(agent, share)].count(True) == 1
            assert usage(agent, "client").processes == 0
    time.sleep(2.5)
    assert agent.log().count("process of a share runs unmetered") == 6
    assert "process without a share" not in agent.log()


@pytest.mark.skipif(os.getuid() != 0, reason="gives a file capabilities and becomes another user")
@pytest.mark.parametrize("rights", ["none", "file capabilities", "set-user-ID"])
def test_a_program_that_the_loader_gives_no_hook_is_known_by_its_file(agent: RunningAgent, rights: str) -> None:
    answer = agent.register(10)
    with tempfile.TemporaryDirectory() as directory:
        Path(directory).chmod(0o755)
        own = Path(directory, "sleeper")
        shutil.copy("/bin/sleep", own)
        if rights == "set-user-ID":
            own.chmod(0o4755)
        elif rights == "file capabilities":  # cap_net_raw, permitted and effective: vfs_cap_data of linux/capability.h
            os.setxattr(own, "security.capability", struct.pack("<5I", 0x02000001, 1 << 13, 0, 0, 0))
        library = shutil.copy(answer.hook_path, Path(directory, "libsharepod.so"))  # where the other user may read it
        environment = {**os.environ, **metered(answer), "LD_PRELOAD": str(library)}
        with subprocess.Popen(
            [own, "60"], env=environment, user=65534, group=65534, stderr=subprocess.DEVNULL
        ) as process:
            try:
                maps = Path(f"/proc/{process.pid}/maps")
                until(lambda: "libc" in maps.read_text(encoding="utf-8"))
                assert ("libsharepod" in maps.read_text(encoding="utf-8")) == (rights == "none"), "what the loader does"
                cause = environ.without_hook(process.pid, answer.share.directory)
                assert ("gains rights at its start" in cause) == (rights != "none")
            finally:
                process.kill()
