"""Test the real agent over its socket: as a process, with the real arbiter, on simulated devices."""

import os
import re
import signal
import subprocess
import time
from pathlib import Path

import grpc
import pytest

from rig import REPO_ROOT
from rig.agent import MakeAgent, RunningAgent
from rig.until import until
from sharepod.agent.shares.share import DEVICES_MAX
from sharepod.hook import LIBRARY
from sharepod.proto import v1_pb2 as pb

GIB = 2**30
ID = "abcdefghjk"
DROP = ["setpriv", "--reuid=65534"] if os.getuid() == 0 else []
"""The command that changes to another user, where that is possible."""


def refused(call: object, *arguments: object, **fields: object) -> tuple[grpc.StatusCode, str]:
    """Make a call that must fail with one line of text; return its code and text."""
    with pytest.raises(grpc.RpcError) as caught:
        call(*arguments, **fields)  # type: ignore[operator]
    text = caught.value.details()  # type: ignore[attr-defined]
    assert text.count("\n") == 0
    return caught.value.code(), text  # type: ignore[attr-defined]


def test_a_share_lives_from_register_to_release_and_leaves_nothing(agent: RunningAgent) -> None:
    answer = agent.register(30, 60, GIB, name="train", labels={"pod": "p"})
    share = answer.share
    assert re.fullmatch("[a-z0-9]{10}", share.id)
    modes = {path.name: path.stat().st_mode & 0o777 for path in Path(share.directory).iterdir()}
    assert modes == {"terms": 0o644, "slots": 0o666, "bell": 0o622}, "a tenant writes its slots and rings, no more"
    assert answer.environment["SHAREPOD_REGION"] == share.directory
    assert answer.environment["CUDA_VISIBLE_DEVICES"] == share.devices[0].device_uuid
    assert Path(answer.environment["LD_LIBRARY_PATH"], "libnvidia-ml.so.1").exists()
    served = Path(answer.hook_path)
    assert served.parent == agent.directory / "hook"
    assert re.fullmatch(r"libsharepod-[0-9][^-]*-[0-9a-f]{12}\.so", served.name)
    assert served.read_bytes() == LIBRARY.read_bytes()
    assert (served.parent.stat().st_mode & 0o777, served.stat().st_mode & 0o777) == (0o711, 0o644)
    assert agent.stub.GetNode(pb.GetNodeRequest()).hook_path == answer.hook_path
    (listed,) = agent.shares()
    assert (listed.id, listed.name, listed.labels["pod"]) == (share.id, "train", "p")
    assert (listed.devices[0].request_millipercent, listed.devices[0].limit_millipercent) == (30_000, 60_000)
    ended = agent.stub.ReleaseShare(pb.ReleaseShareRequest(share="train")).share
    assert ended.id == share.id
    assert agent.directories() == set()
    assert agent.stop() == 0
    assert not agent.directory.exists()


def test_a_share_is_of_the_class_that_was_asked_for_and_otherwise_standard(agent: RunningAgent) -> None:
    standard = pb.SHARE_CLASS_STANDARD
    asked = [pb.SHARE_CLASS_UNSPECIFIED, pb.SHARE_CLASS_LATENCY, standard, pb.SHARE_CLASS_BATCH]
    got = [agent.register(10, share_class=share_class).share.share_class for share_class in asked]
    assert got == [share.share_class for share in agent.shares()] == [standard, *asked[1:]]


def test_a_share_yields_its_time_over_a_crash_of_the_agent_and_has_it_back_when_it_fits(agent: RunningAgent) -> None:
    def resume() -> pb.Share:
        return agent.stub.ResumeShare(pb.ResumeShareRequest(share="batch")).share

    agent.register(100, device="0", name="batch")
    share = agent.stub.PauseShare(pb.PauseShareRequest(share="batch", yielding=True)).share
    assert (share.paused, share.yielding) == (True, True)
    agent.register(60, device="0", name="serve")
    agent.stop(signal.SIGKILL)
    agent.start()
    batch, serve = agent.shares()
    assert (batch.paused, batch.yielding, serve.paused) == (True, True, False)
    [device, *_] = agent.stub.GetNode(pb.GetNodeRequest()).devices
    assert device.requested_millipercent == 60_000
    [explained] = agent.stub.ExplainShare(pb.ExplainShareRequest(share="batch")).devices
    assert explained.reason.startswith(
        "yields: it is paused to make room, and its request 100 % counts as not promised"
    )
    assert "device 0: 60 % of its time is promised, and 100 % is yielded" in explained.facts
    for call in (resume, lambda: agent.stub.PauseShare(pb.PauseShareRequest(share="batch"))):
        code, text = refused(call)
        assert code is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert text == (
            "share batch stays paused: its request 100 % does not fit on device 0 again, 40 % of its time is free: "
            "wait until others end there, or lower a request"
        )
    assert agent.shares()[0].yielding
    agent.stub.ReleaseShare(pb.ReleaseShareRequest(share="serve"))
    share = resume()
    assert (share.paused, share.yielding) == (False, False)


BAD_REGISTRATIONS = {
    "above 100": ({"request": 101}, "INVALID_ARGUMENT", "request 101 % is outside 1–100 %: give a percentage"),
    "below 0": ({"request": -1}, "INVALID_ARGUMENT", "request -1 % is outside 1–100 %: give a percentage"),
    "limit above 100": ({"limit": 101}, "INVALID_ARGUMENT", "limit 101 % is outside 1–100 %: give the most"),
    "unknown device": ({"device": "7"}, "NOT_FOUND", "unknown device '7': this node has 0 (GPU-"),
    "more memory than any has": ({"memory": 200 * GIB}, "INVALID_ARGUMENT", "memory 200 GiB is more than any device"),
    "negative memory": ({"memory": -5}, "INVALID_ARGUMENT", "memory -5 bytes is below 0: give a size, or 0 for no cap"),
    "taken name": ({"name": "first"}, "ALREADY_EXISTS", "name 'first' belongs to share "),
    "bad class": ({"share_class": 9}, "INVALID_ARGUMENT", "class 9 is unknown here: use latency, standard or batch"),
    "dead owner": (
        {"owner_pid": 2**22 + 1},
        "INVALID_ARGUMENT",
        "owner 4194305 is not running: give the pid of a live",
    ),
    "no gang": ({"gang": "no spaces"}, "INVALID_ARGUMENT", "gang 'no spaces' is no gang's name: use 1–253 letters"),
    "negative owner": ({"owner_pid": -2}, "INVALID_ARGUMENT", "owner pid -2 is below 0"),
}


def test_bad_input_gets_what_limit_and_remedy_and_leaves_nothing(agent: RunningAgent) -> None:
    first = agent.register(70, 0, 60 * GIB, "0", name="first").share
    for case, (fields, code, text) in BAD_REGISTRATIONS.items():
        got_code, got_text = refused(agent.register, **fields)
        assert (got_code.name, got_text[: len(text)]) == (code, text), case
        assert agent.directories() == {first.id}, case
    for count in (0, 17):
        request = pb.RegisterShareRequest(devices=[pb.DeviceAsk()] * count)
        code, text = refused(agent.stub.RegisterShare, request)
        assert (code.name, text) == ("INVALID_ARGUMENT", f"{count} devices asked for, outside 1–16: split the share")
    assert [share.id for share in agent.shares()] == [first.id]


def test_a_share_that_is_not_there_is_named_in_every_call(agent: RunningAgent) -> None:
    stub = agent.stub
    calls = (
        (stub.UpdateShare, pb.UpdateShareRequest(share="x")),
        (stub.ReleaseShare, pb.ReleaseShareRequest(share="x")),
        (stub.PauseShare, pb.PauseShareRequest(share="x")),
        (stub.ResumeShare, pb.ResumeShareRequest(share="x")),
        (stub.ExplainShare, pb.ExplainShareRequest(share="x")),
        (stub.ListShares, pb.ListSharesRequest(shares=["x"])),
        (lambda request: next(iter(stub.WatchUsage(request))), pb.WatchUsageRequest(shares=["x"])),
    )
    for call, request in calls:
        code, text = refused(call, request)
        assert code is grpc.StatusCode.NOT_FOUND
        assert text == "no share 'x' on this node: `sharepod ps` lists those that are there"


def test_a_share_of_a_pod_is_found_by_what_ps_shows_of_it(agent: RunningAgent) -> None:
    labels = {"namespace": "default", "pod": "train-0", "container": "main"}
    share = agent.register(10, labels=labels).share
    agent.register(10, name="other", labels=labels | {"pod": "train-1"})
    with pytest.raises(grpc.RpcError, match="name 'default/train-0/main'"):  # no name can pass for it
        agent.register(10, name="default/train-0/main")
    for reference in (share.id, "default/train-0/main"):
        found = agent.stub.ExplainShare(pb.ExplainShareRequest(share=reference)).share
        assert found.id == share.id
    for reference in ("default/train-0", "train-0/main", ""):
        code, _ = refused(agent.stub.ExplainShare, pb.ExplainShareRequest(share=reference))
        assert code is grpc.StatusCode.NOT_FOUND


def test_bad_intervals_and_page_sizes_are_refused(agent: RunningAgent) -> None:
    request = pb.WatchUsageRequest()
    request.interval.FromMilliseconds(1)
    code, text = refused(lambda: next(iter(agent.stub.WatchUsage(request))))
    assert (code.name, text) == ("INVALID_ARGUMENT", "interval 0.001 s is outside 0.1 s–1 h: choose one between")
    code, text = refused(agent.stub.ListTurns, pb.ListTurnsRequest(max_turns=100_000))
    assert (code.name, text) == ("INVALID_ARGUMENT", "max_turns 100000 is above 16384: ask for less and call again")
    assert list(agent.stub.ListTurns(pb.ListTurnsRequest()).turns) == []


def test_a_share_of_a_chosen_id_is_returned_after_a_crash_and_what_is_left_under_its_id_is_removed(
    agent: RunningAgent,
) -> None:
    first = agent.register(30, id=ID, labels={"pod": "p", "pod_uid": "u"})
    assert first.share.id == ID
    assert first.environment["SHAREPOD_REGION"].endswith(f"/shares/{ID}")
    agent.stop(signal.SIGKILL)
    agent.start()
    again = agent.register(50, id=ID, name="other")
    assert again.share.registered_unix_ns == first.share.registered_unix_ns
    assert (again.share.name, dict(again.share.labels)) == ("", {"pod": "p", "pod_uid": "u"})
    assert again.share.devices[0].request_millipercent == 30_000
    assert again.environment == first.environment
    assert again.hook_path == first.hook_path
    agent.stub.ReleaseShare(pb.ReleaseShareRequest(share=ID))
    directory = agent.directory / "shares" / ID
    (directory / "deep").mkdir(parents=True)
    for left in ("deep/old", "terms"):
        (directory / left).write_text("of before")
    agent.register(50, id=ID)
    assert sorted(path.name for path in directory.iterdir()) == ["bell", "slots", "terms"]
    assert directory.stat().st_mode & 0o777 == 0o711
    assert b"of before" not in (directory / "terms").read_bytes()
    assert agent.directories() == {ID}


def test_memory_is_given_in_proportion_to_the_request(agent: RunningAgent) -> None:
    [device, _] = agent.stub.GetNode(pb.GetNodeRequest()).devices
    item = pb.DeviceAsk(request_millipercent=30_000, memory_in_proportion=True)
    share = agent.stub.RegisterShare(pb.RegisterShareRequest(devices=[item])).share
    assert share.devices[0].memory_limit_bytes == device.memory_total_bytes * 3 // 10 >> 20 << 20


def test_overcommit_is_the_operators_choice(make_agent: MakeAgent) -> None:
    agent = make_agent("--overcommit").start()
    for _ in range(3):
        agent.register(80, device="0", memory=100 * GIB)
    assert refused(agent.register, 1, device="0", memory=200 * GIB)[0] is grpc.StatusCode.INVALID_ARGUMENT
    node = agent.stub.GetNode(pb.GetNodeRequest())
    assert node.devices[0].requested_millipercent == 240_000
    assert "overcommit" in node.features


@pytest.mark.parametrize("name", ["slots", "bell"])
def test_only_the_owners_user_may_write_the_slots_and_ring(agent: RunningAgent, name: str) -> None:
    ours = Path(agent.register(10, owner_pid=os.getpid()).share.directory, name).stat()
    assert (ours.st_uid, ours.st_mode & 0o777) == (os.getuid(), 0o600)
    if os.getuid() == 0:  # only root can serve and start programs of other users
        with subprocess.Popen(["sleep", "60"], user=65534, group=65534, extra_groups=[]) as owner:
            theirs = Path(agent.register(10, owner_pid=owner.pid).share.directory, name).stat()
            owner.kill()
        assert (theirs.st_uid, theirs.st_mode & 0o777) == (65534, 0o600)


def test_a_share_ends_with_its_first_owner(agent: RunningAgent) -> None:
    with subprocess.Popen(["sleep", "60"]) as owner:
        agent.register(30, id=ID, owner_pid=owner.pid)
        assert agent.register(30, id=ID, owner_pid=os.getpid()).share.owner_pid == owner.pid
        assert agent.directories() == {ID}
        owner.kill()
    until(lambda: agent.directories() == set(), timeout_s=2.0)
    assert agent.shares() == []


def test_watching_sends_usage_at_once_and_then_every_interval_until_the_share_ends(agent: RunningAgent) -> None:
    agent.register(30, name="a")
    agent.register(30, name="b")
    request = pb.WatchUsageRequest(shares=["a"])
    request.interval.FromMilliseconds(200)
    began = time.monotonic()
    times: list[int] = []
    for response in agent.stub.WatchUsage(request):
        assert [share.name for share in response.shares] == ["a"]
        assert len(response.devices) == 2
        times.append(response.now_ns)
        if len(times) == 4:
            agent.stub.ReleaseShare(pb.ReleaseShareRequest(share="a"))
    assert len(times) == 4
    assert 0.6 <= (times[-1] - times[0]) / 1e9 <= 1.5
    assert time.monotonic() - began < 5


def test_a_served_hook_stays_while_a_share_lives_and_goes_with_the_last(agent: RunningAgent) -> None:
    answer = agent.register(30, name="a")
    served = Path(answer.hook_path)
    before = served.stat()
    earlier = served.with_name("libsharepod-0.0.1-0123456789ab.so")
    earlier.write_bytes(b"mapped by a program of the share")
    assert agent.stop() == 0
    assert earlier.exists()
    assert not {"agent.sock", "agent.lock"} & {path.name for path in agent.directory.iterdir()}
    agent.start()
    assert agent.register(30, name="b").hook_path == answer.hook_path
    assert (served.stat().st_ino, served.stat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns)
    assert earlier.exists()
    for name in ("a", "b"):
        agent.stub.ReleaseShare(pb.ReleaseShareRequest(share=name))
    agent.stop(signal.SIGKILL)
    served.with_name("libsharepod-0.0.2-0123456789ab.new").touch()
    agent.start()
    assert [path.name for path in served.parent.iterdir()] == [served.name]
    assert agent.stop() == 0
    assert not agent.directory.exists()


def test_a_policy_a_node_name_and_a_hook_directory_are_what_programs_and_clients_are_told(
    make_agent: MakeAgent, tmp_path: Path
) -> None:
    flags = ("--policy", "closed", "--node-name", "node-7", "--hook-directory", str(tmp_path / "lib"))
    agent = make_agent(*flags).start()
    node = agent.stub.GetNode(pb.GetNodeRequest())
    assert (node.node_name, node.policy) == ("node-7", "closed")
    assert Path(node.hook_path).parent == tmp_path / "lib" / "hook"
    assert not (agent.directory / "hook").exists()
    answer = agent.register(30, name="a")
    assert answer.environment["SHAREPOD_POLICY"] == "closed"
    assert answer.hook_path == node.hook_path
    agent.stub.ReleaseShare(pb.ReleaseShareRequest(share="a"))
    assert agent.stop() == 0
    assert not Path(node.hook_path).parent.exists()


def test_a_program_that_root_starts_and_that_drops_its_privileges_finds_the_hook(agent: RunningAgent) -> None:
    agent.directory.parent.chmod(0o711)
    environment = {**os.environ, "LD_PRELOAD": agent.register(30).hook_path}
    # setpriv changes the user: subprocess would fork this process with its threads, and 1 of 20,000 dies by signal 11.
    command = [*DROP, "grep", "-c", "/hook/libsharepod-", "/proc/self/maps"]
    found = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert (found.returncode, found.stderr) == (0, "")


def test_an_idle_agent_costs_next_to_nothing(agent: RunningAgent) -> None:
    for _ in range(20):
        agent.register(5)
    ticks = os.sysconf("SC_CLK_TCK")

    def cpu_s() -> float:
        stat = Path(f"/proc/{agent.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(stat[11]) + int(stat[12])) / ticks

    time.sleep(0.5)
    before, began = cpu_s(), time.monotonic()
    time.sleep(3)
    assert (cpu_s() - before) / (time.monotonic() - began) < 0.05


def test_the_node_tells_the_abi_version_of_the_region(agent: RunningAgent) -> None:
    header = (REPO_ROOT / "region" / "region.h").read_text()
    version = agent.stub.GetNode(pb.GetNodeRequest()).region_abi_version
    assert re.search(rf"#define SP_ABI +{version}u\n", header)
    assert re.search(rf"#define SP_DEVICES_MAX +{DEVICES_MAX}u\n", header)
