"""Test how an agent starts, stops and is followed by the next: what it refuses, what it leaves, what it adopts."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest
from agent_fixtures import failed_start
from bad_input import overwrite
from dialogue import Dialogue

from rig.agent import MakeAgent, RunningAgent, metered, program, python, usage
from rig.script import script
from rig.until import until
from sharepod.proto import v1_pb2 as pb

GIB = 2**30
PRIVATE = 0o711 if os.getuid() == 0 else 0o700
"""Mode of an agent's runtime directory where only the agent's user may use the socket."""


def troubles(agent: RunningAgent) -> list[str]:
    """Return what the agent tells an operator of itself and of its shares."""
    return list(agent.stub.GetNode(pb.GetNodeRequest()).troubles)


@pytest.mark.parametrize("within", [(), ("unshare", "--net")], ids=["same-network", "another-network-namespace"])
def test_an_agent_in_another_directory_may_not_take_the_same_devices(
    make_agent: MakeAgent, monkeypatch: pytest.MonkeyPatch, within: tuple[str, ...]
) -> None:
    if within and subprocess.run([*within, "true"], stderr=subprocess.DEVNULL, timeout=60, check=False).returncode:
        pytest.skip("network namespaces cannot be made here")
    first, second = make_agent(), make_agent()
    second.wrapper = list(within)
    monkeypatch.setenv("SIMGPU_STATE", str(first.directory.parent / "devices"))
    first.start()
    said = (
        f"device 0 belongs to another agent on this host (pid {first.pid}, in {first.directory}): use that one, or stop"
    )
    assert failed_start(second) == (1, f"sharepod agent: {said} it with `kill {first.pid}`\n")
    assert not second.directory.exists()
    assert first.shares() == []


def test_the_second_agent_on_a_host_gets_one_line_and_disturbs_nothing(agent: RunningAgent) -> None:
    share = agent.register(30).share
    who = f"an agent already runs in {agent.directory} (pid {agent.pid})"
    said = f"sharepod agent: {who}: use it, or stop it with `kill {agent.pid}`\n"
    assert failed_start(agent) == (1, said)
    assert agent.directories() == {share.id}
    assert len(agent.shares()) == 1


def test_a_killed_agent_is_followed_by_one_that_adopts_its_shares_as_they_were_last(agent: RunningAgent) -> None:
    kept = agent.register(30, 60, GIB, name="kept", labels={"pod": "p"}).share
    agent.stub.PauseShare(pb.PauseShareRequest(share="kept"))
    with subprocess.Popen(["sleep", "60"]) as owner:
        orphan = agent.register(20, owner_pid=owner.pid).share
        alive = agent.register(10, owner_pid=os.getpid()).share
        change = [pb.DeviceChange(limit_millipercent=50_000)]
        for _ in range(2):  # a container that restarts repeats its terms
            agent.stub.UpdateShare(pb.UpdateShareRequest(share="kept", devices=change))
        assert agent.stop(signal.SIGKILL) == -signal.SIGKILL
        owner.kill()
    assert (agent.directory / "shares" / orphan.id).exists()
    agent.start()
    assert {share.id for share in agent.shares()} == {kept.id, alive.id}
    assert agent.directories() == {kept.id, alive.id}
    adopted, other = agent.shares()
    assert (adopted.name, adopted.paused, adopted.labels["pod"]) == ("kept", True, "p")
    assert adopted.registered_unix_ns == kept.registered_unix_ns
    assert adopted.devices[0].device_uuid == kept.devices[0].device_uuid
    assert adopted.devices[0].memory_limit_bytes == GIB
    assert [share.devices[0].limit_millipercent for share in (adopted, other)] == [50_000, 100_000]
    assert agent.log().count("share updated") == 1, "the same terms change nothing"


def test_a_program_that_started_while_no_agent_ran_rings_the_next_one(agent: RunningAgent) -> None:
    answer = agent.register(30, name="early")
    agent.stop()

    def bells(pid: int) -> list[str]:
        links: list[str] = []
        for fd in Path(f"/proc/{pid}/fd").iterdir():
            with suppress(FileNotFoundError):  # the descriptor was closed meanwhile
                links.append(str(fd.readlink()))
        return [path for path in links if path.endswith("/bell")]

    with program(metered(answer)) as running:
        assert bells(running.pid) == []
        agent.start()
        for _ in range(2):  # the program opens the bell when it first waits, and keeps it open
            agent.stub.PauseShare(pb.PauseShareRequest(share="early"))
            until(lambda: bells(running.pid) == [f"{answer.share.directory}/bell"])
            agent.stub.ResumeShare(pb.ResumeShareRequest(share="early"))


CLOSES = """
import os
function = kernel(start(), "work_1ms")
held = allocate(300 << 20)
os.closerange(3, 4096)
print("closed", flush=True)
input()
for _ in range(40):
    ok(launch(function))
    ok(cuda.cuCtxSynchronize())
print("ended", flush=True)
input()
ok(cuda.cuMemFree_v2(c_uint64(held)))
allocate(100 << 20)
allocate(500 << 20)  # of 1 GiB, with its context
print("allocated", flush=True)
"""


def test_a_daemon_that_closes_its_descriptors_before_the_agent_has_seen_it_is_metered(agent: RunningAgent) -> None:
    answer = agent.register(30, memory=GIB, name="daemon")
    os.kill(agent.pid, signal.SIGSTOP)
    with python(metered(answer), *script(CLOSES)[1:]) as (process, said):
        assert said == "closed\n"
        os.kill(agent.pid, signal.SIGCONT)
        time.sleep(2.5)  # after one second the agent takes a claim without a lock for a dead process's
        daemon = Dialogue(process)
        assert daemon("go") == "ended"
        until(lambda: usage(agent, "daemon").launches >= 30)
        until(lambda: usage(agent, "daemon").memory_used_bytes >= 300 << 20)
        assert daemon("go") == "allocated"


NEWER = b'{"format": 9, "boot_id": "", "shares": {}}'


@pytest.mark.parametrize(
    "content", [b"{", b"\xff\xfe", None, NEWER], ids=["no-json", "no-text", "directory", "newer-format"]
)
def test_a_checkpoint_that_cannot_be_read_costs_no_share_its_terms(
    make_agent: MakeAgent, content: bytes | None
) -> None:
    agent = make_agent("--overcommit").start()
    running = agent.register(30, 60, GIB, device="1", name="running", share_class=pb.SHARE_CLASS_LATENCY)
    pb_asks = [pb.DeviceAsk(device=place, request_millipercent=20_000, limit_millipercent=40_000) for place in "01"]
    both = agent.stub.RegisterShare(pb.RegisterShareRequest(devices=pb_asks)).share
    agent.stub.PauseShare(pb.PauseShareRequest(share=both.id))
    owned = agent.register(10, owner_pid=os.getpid()).share
    with program(metered(running), "busy") as process:
        until(lambda: usage(agent, "running").used_ns > 0)
        used_ns = usage(agent, "running").used_ns
        agent.stop(signal.SIGKILL)
        path = agent.directory / "checkpoint.json"
        path.unlink()
        path.mkdir() if content is None else path.write_bytes(content)
        agent.start()
        found = {share.id: share for share in agent.shares()}
        assert found.keys() == agent.directories() == {running.share.id, both.id, owned.id}
        terms = {
            share.id: [
                (held.device_uuid, held.request_millipercent, held.limit_millipercent, held.memory_limit_bytes)
                for held in share.devices
            ]
            for share in (*found.values(), running.share, both)
        }
        assert terms[running.share.id] == [(running.share.devices[0].device_uuid, 30_000, 60_000, GIB)]
        assert [held[1:] for held in terms[both.id]] == [(20_000, 40_000, 0)] * 2
        assert found[running.share.id].share_class == pb.SHARE_CLASS_LATENCY
        assert (found[running.share.id].paused, found[both.id].paused) == (False, True)
        assert [one.pid for one in found[running.share.id].processes] == [process.pid]
        assert found[running.share.id].devices[0].usage.used_ns >= used_ns
        until(lambda: usage(agent, running.share.id).used_ns > used_ns + 20_000_000)
        assert process.poll() is None
    until(lambda: any("checkpoint is unreadable" in text and "register them" in text for text in troubles(agent)))
    assert agent.stop() == 0
    assert "checkpoint is unreadable" in agent.log()
    aside = agent.directory / "checkpoint.json.unreadable"
    assert (aside.read_bytes() if aside.exists() else None) == content
    if content is not None:  # the record no longer knows the owner, only that there was one
        records = [one["share"] for one in json.loads(path.read_text(encoding="utf-8"))["shares"]]
        assert [record["id"] for record in records if record.get("ownerless")] == [owned.id]


def test_a_record_that_says_nothing_costs_its_share_no_more_than_its_name(agent: RunningAgent) -> None:
    first, second = (agent.register(30, name=name).share for name in ("first", "second"))
    agent.stop(signal.SIGKILL)
    path = agent.directory / "checkpoint.json"
    left = json.loads(path.read_text(encoding="utf-8"))
    left["shares"][0] = {"?": "x"}
    path.write_text(json.dumps(left), encoding="utf-8")
    agent.start()
    assert {share.id: share.name for share in agent.shares()} == {first.id: "", second.id: "second"}
    assert agent.directories() == {first.id, second.id}


def test_a_region_without_a_record_is_adopted_while_a_process_lives_in_it_and_else_removed(
    agent: RunningAgent,
) -> None:
    used, empty = agent.register(30, name="used"), agent.register(30, name="empty")
    with program(metered(used), "busy"):
        until(lambda: usage(agent, "used").processes == 1)
        agent.stop(signal.SIGKILL)
        (agent.directory / "checkpoint.json").unlink()
        agent.start()
        assert agent.directories() == {used.share.id}
        assert [share.id for share in agent.shares()] == [used.share.id]
        (line,) = [line for line in agent.log().splitlines() if "directory without a share removed" in line]
        assert empty.share.id in line


@pytest.mark.early
def test_a_region_that_cannot_be_adopted_is_left_alone_until_no_process_lives_in_it(agent: RunningAgent) -> None:
    answer = agent.register(30, name="newer")
    with program(metered(answer), "busy") as process:
        until(lambda: usage(agent, "newer").processes == 1)
        agent.stop()
        overwrite(Path(answer.share.directory, "terms"), 8, (99).to_bytes(4, "little"))
        for _ in range(2):  # the record is kept for an agent that can read the region
            agent.start()
            assert agent.shares() == []
            time.sleep(2.5)
            assert agent.directories() == {answer.share.id}
            assert "newer" in (agent.directory / "checkpoint.json").read_text(encoding="utf-8")
            agent.stop()
        agent.start()
        process.kill()
        until(lambda: agent.directories() == set(), timeout_s=10.0)
    until(lambda: "newer" not in (agent.directory / "checkpoint.json").read_text(encoding="utf-8"))
    assert agent.log().count("directory without a share removed") == 1
    assert "share not adopted" in agent.log()


def test_one_share_that_cannot_be_read_costs_no_other_and_comes_back_with_an_agent_that_can(
    agent: RunningAgent,
) -> None:
    first, second = (agent.register(30, name=name).share for name in ("first", "second"))
    agent.stop(signal.SIGKILL)
    path = agent.directory / "checkpoint.json"
    readable = path.read_text(encoding="utf-8")
    path.write_text(readable.replace('"share_class"', '"share_klass"', 1), encoding="utf-8")
    assert [share.name for share in agent.start().shares()] == ["second"]
    assert agent.directories() == {Path(share.directory).name for share in (first, second)}
    until(lambda: any(text.startswith(f"share {first.id} cannot be read") for text in troubles(agent)))
    agent.stop()
    assert "share not read" in agent.log()
    kept = path.read_text(encoding="utf-8")
    assert "share_klass" in kept
    path.write_text(kept.replace("share_klass", "share_class"), encoding="utf-8")
    assert {share.name for share in agent.start().shares()} == {"first", "second"}


def test_a_new_agent_lets_a_gang_go_on_once_the_share_that_was_paused_is_resumed(agent: RunningAgent) -> None:
    for name, device in (("a", "0"), ("b", "1")):
        agent.register(30, name=name, device=device, gang="job")
    agent.stub.PauseShare(pb.PauseShareRequest(share="a"))

    def states() -> list[tuple[bool, bool]]:
        """Return for each share whether it is paused itself, and whether its gate is closed by a pause."""
        paused = pb.SHARE_STATE_PAUSED
        return [(share.paused, share.devices[0].state == paused) for share in agent.shares()]

    for _ in range(2):
        until(lambda: states() == [(True, True), (False, True)])
        agent.stop(signal.SIGKILL)
        agent.start()
    agent.stub.ResumeShare(pb.ResumeShareRequest(share="a"))
    until(lambda: states() == [(False, False)] * 2)


def test_an_agent_that_cannot_write_its_checkpoint_goes_on_and_says_so_once(agent: RunningAgent) -> None:
    in_the_way = agent.directory / "checkpoint.json.new"
    in_the_way.mkdir()
    agent.register(30, name="a")
    agent.register(30, name="b")
    time.sleep(2.5)  # time for two checkpoints
    assert [share.name for share in agent.shares()] == ["a", "b"]
    until(lambda: any("checkpoint" in text and "is not written: Is a directory" in text for text in troubles(agent)))
    in_the_way.rmdir()
    until(lambda: "checkpoint written again" in agent.log())
    until(lambda: not troubles(agent))
    assert agent.log().count("checkpoint not written") == 1
    in_the_way.mkdir()
    assert agent.stop() == 0
    assert "Traceback" not in agent.log()


def test_an_agent_whose_directory_is_gone_says_what_keeps_it(agent: RunningAgent) -> None:
    agent.register(30, name="a")
    shutil.rmtree(agent.directory)  # what systemd does at the end of a user's last session
    until(lambda: "checkpoint not written" in agent.log(), timeout_s=10)
    [line] = [line for line in agent.log().splitlines() if "checkpoint not written" in line]
    assert "loginctl enable-linger" in line
    until(lambda: "its region is gone, with its directory" in agent.log(), timeout_s=10)
    assert "has ended" not in agent.log()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP])
def test_a_stop_by_ctrl_c_or_a_closed_terminal_is_a_planned_stop(agent: RunningAgent, number: int) -> None:
    assert agent.stop(number) == 0
    assert not agent.directory.exists()


def test_the_socket_is_this_users_alone_unless_the_operator_opens_it_whatever_the_umask(make_agent: MakeAgent) -> None:
    closed = make_agent().start()
    # grpc makes the socket 0755, in a directory that no user can pass that could write to it; then it gets its mode.
    until(lambda: (closed.directory / "agent.sock").stat().st_mode & 0o777 == 0o600)
    assert closed.directory.stat().st_mode & 0o777 == PRIVATE
    assert not (closed.directory / "users.sock").exists()
    opened = make_agent("--users-socket-mode", "0666")
    before = os.umask(0o177)  # the umask of the agent's parent must not matter
    try:
        opened.start()
    finally:
        os.umask(before)
    until(lambda: (opened.directory / "users.sock").exists())  # it is made after the operators' socket
    until(lambda: (opened.directory / "users.sock").stat().st_mode & 0o777 == 0o666)
    until(lambda: (opened.directory / "agent.sock").stat().st_mode & 0o777 == 0o600)
    for directory in (opened.directory, opened.directory / "shares"):
        assert directory.stat().st_mode & 0o777 == 0o711


@pytest.mark.parametrize(
    ("flags", "code", "text"),
    [
        (["--polcy", "open"], 2, "sharepod agent: unknown flag --polcy: did you mean --policy?"),
        (["--simulate", "1xH20"], 1, "devices 1xH20 cannot be simulated: NVML says "),
        (["--runtime-directory", "/dev/shm"], 2, "/dev/shm is everybody's: give the agent one of its own, like "),
        (["--runtime-directory", "/dev/shm/a b"], 2, "has a space or a colon, which LD_PRELOAD takes for the end"),
        (["--runtime-directory", f"/dev/shm/{'x' * 100}"], 2, "bytes long, the kernel's limit is 107: choose a short"),
        (["--state-directory", "/proc/nowhere"], 2, "sharepod agent: /proc/nowhere: "),
        (
            ["--runtime-directory", "/proc/nowhere"],
            2,
            "sharepod agent: runtime directory /proc/nowhere is not on tmpfs",
        ),
    ],
)
def test_a_wrong_start_says_what_and_how_to_put_it_right(
    make_agent: MakeAgent, flags: list[str], code: int, text: str
) -> None:
    agent = make_agent()
    found, output = failed_start(agent, *agent.flags, *flags)
    assert (found, text in output) == (code, True), output
    assert not agent.directory.exists()


@pytest.mark.parametrize("name", ["agent.sock", "agent.lock", "shares", "hook"])
def test_what_is_in_the_way_of_a_start_is_named(make_agent: MakeAgent, name: str) -> None:
    agent = make_agent()
    in_the_way = agent.directory / name
    if name in ("shares", "hook"):
        agent.directory.mkdir(mode=0o700)
        in_the_way.touch()
    else:
        in_the_way.mkdir(parents=True)
    code, output = failed_start(agent)
    assert code in (1, 2)
    assert str(in_the_way) in output


def test_the_agent_refuses_too_few_open_files(make_agent: MakeAgent) -> None:
    agent = make_agent()
    agent.wrapper = ("sh", "-c", 'ulimit -n 64; exec "$@"', "sh")
    code, output = failed_start(agent)
    assert code == 1
    assert output.startswith("sharepod agent: the limit of open files is 64, at least 256 are needed: raise it")


def test_a_machine_without_a_gpu_is_told_of_the_simulated_one(
    make_agent: MakeAgent, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "libnvidia-ml.so.1").touch()  # hides a real library: the loader stops at the first file of this name
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
    agent = make_agent()
    code, output = failed_start(agent, "--metrics-listen", "off")
    assert code == 1
    assert output.startswith("sharepod agent: no GPU on this machine: NVML says ")
    assert "install the NVIDIA driver, or use --simulate 1xH200" in output
    assert not agent.directory.exists()


HANGING = """
#include <unistd.h>
int nvmlInit_v2(void) {
  for (;;)
    pause();
}
int nvmlInitWithFlags(unsigned flags) {
  (void)flags;
  return nvmlInit_v2();
}
"""
STARTS = """
import sys
from sharepod.agent import main
from sharepod.agent.devices import inventory
main.SLOW_OPEN_S, inventory.OPEN_TIMEOUT_S = 0.1, float(sys.argv[1])
sys.exit(main.run_agent(main.OPTIONS.start(["--runtime-directory", sys.argv[2]])))
"""


@pytest.fixture
def hanging(tmp_path: Path) -> dict[str, str]:
    """Return an environment in which NVML never answers."""
    source = tmp_path / "hanging.c"
    source.write_text(HANGING)
    subprocess.run(["cc", "-shared", "-fPIC", "-o", tmp_path / "libnvidia-ml.so.1", source], check=True)
    return {"LD_LIBRARY_PATH": str(tmp_path)}


def test_an_agent_whose_driver_does_not_answer_says_so_and_ends_with_1(
    hanging: dict[str, str], make_agent: MakeAgent
) -> None:
    directory = make_agent().directory
    command = [sys.executable, "-c", STARTS, "0.5", str(directory)]
    done = subprocess.run(command, env={**os.environ, **hanging}, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    slow, error = done.stderr.splitlines()
    assert "NVML opens slowly" in slow
    assert error == (
        "sharepod agent: NVML has not answered for 0.5 s: look at dmesg, and at whether `nvidia-smi` answers"
    )
    assert not directory.exists()


def test_an_agent_that_is_to_wait_for_the_driver_begins_when_that_is_loaded(
    make_agent: MakeAgent, tmp_path: Path
) -> None:
    driver = tmp_path / "version"
    agent = make_agent("--wait-for", str(driver))
    for loaded in (False, True):
        process = agent.spawn()
        assert process.stderr is not None
        said = process.stderr.readline()
        assert "no NVIDIA driver on this node: waiting" in said
        assert "sharepod.io/agent=disabled" in said
        assert not agent.directory.exists(), "it has begun nothing"
        if loaded:
            driver.touch()
            until(agent.ready)
        process.terminate()
        assert process.wait(10) == 0
        process.stderr.close()
    agent.start()  # at once


def test_a_signal_ends_an_agent_that_still_waits_for_its_driver(hanging: dict[str, str], make_agent: MakeAgent) -> None:
    directory = make_agent().directory
    command = [sys.executable, "-c", STARTS, "1000", str(directory)]
    with subprocess.Popen(command, env={**os.environ, **hanging}, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        assert "NVML opens slowly" in process.stderr.readline()
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 0
    assert not directory.exists()
