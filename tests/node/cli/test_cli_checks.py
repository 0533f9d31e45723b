"""Test each check of `doctor` on findings that are made by hand."""

import errno
import fcntl
import json
import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest
from cli_fixtures import Agent, Sharepod

from rig.gpu import MakeSimgpu
from sharepod import hook
from sharepod.agent.devices import health, unmanaged
from sharepod.agent.devices.device import MODE_REASONS, MPS_REASON
from sharepod.agent.shares import environ
from sharepod.cli.commands import checks
from sharepod.cli.connection.client import no_agent
from sharepod.cli.demo import program
from sharepod.proto import v1_pb2 as pb

MOUNTS = """\
proc /proc proc rw 0 0
/dev/sda1 / ext4 rw 0 0
tmpfs /run tmpfs rw 0 0
/dev/sdb1 /run/my\\040disk ext4 rw 0 0
/dev/sdc1 /run/memory\\134 ext4 rw 0 0
tmpfs /run/memory\\134 tmpfs rw 0 0
"""


@pytest.mark.parametrize(
    ("check", "status"),
    [
        *((checks.check_kernel(release), "OK") for release in ("5.3.0", "6.1.0-18-amd64")),
        *((checks.check_kernel(release), "FAIL") for release in ("5.2.9", "4.19")),  # these lack pidfd_open
        (checks.check_kernel("x"), "WARN"),
        *((checks.check_tmpfs(Path(path), MOUNTS), "OK") for path in ("/run/sharepod", "/run/memory\\/x")),
        *((checks.check_tmpfs(Path(path), MOUNTS), "FAIL") for path in ("/var/lib/x", "/run/my disk/x", "/runner")),
        *((checks.check_open_files(hard), "OK") for hard in (1024, resource.RLIM_INFINITY)),
        (checks.check_open_files(256), "WARN"),
    ],
    ids=lambda check: getattr(check, "text", check),
)
def test_the_kernel_the_place_of_regions_and_the_limit_of_files_are_judged(check: checks.Check, status: str) -> None:
    assert check.status == status


def test_a_missing_hook_and_one_that_does_not_load_fail_with_a_remedy_and_a_good_one_is_well(tmp_path: Path) -> None:
    path = tmp_path / "libsharepod.so"
    missing = checks.check_hook(path)
    path.write_bytes(b"no library")
    broken = checks.check_hook(path)
    assert "is missing" in missing.text
    assert "does not load" in broken.text
    for check in (missing, broken):
        assert check.status == checks.FAIL
        assert "make" in check.remedy
    assert checks.check_hook(hook.LIBRARY).status == checks.OK


def test_a_driver_that_is_missing_names_the_simulated_one(tmp_path: Path) -> None:
    empty = {"LD_LIBRARY_PATH": str(tmp_path), "LD_PRELOAD": ""}
    check = checks.check_driver(empty, simulated=False)
    if check.status == checks.OK:  # this machine has a driver and a GPU of its own
        assert "device" in check.text
    else:
        assert "--simulate" in check.remedy


def node(
    *devices: pb.Device, hook_path: str = "/run/sharepod/hook/libsharepod-0.1.0-0123456789ab.so"
) -> pb.GetNodeResponse:
    return pb.GetNodeResponse(devices=devices, hook_path=hook_path)


def test_each_device_is_checked_for_health_and_strangers() -> None:
    well = pb.Device(healthy=True)
    strange = pb.Device(healthy=True, foreign_processes=[pb.ForeignProcess(pid=99, name="miner")])
    found = checks.check_devices(node(well, pb.Device(health_reason="XID 79"), strange))
    assert [check.status for check in found] == ["OK", "FAIL", "WARN"]
    assert [check.status for check in checks.check_devices(node())] == ["FAIL"]


@pytest.mark.parametrize(
    ("reason", "remedy"),
    [
        ("Xid 79", "reset it (or reboot), and resume it"),
        ("NVML: GPU is lost", "reset it (or reboot), and resume it"),
        (health.TAKEN_BACK, "wait for some seconds"),
        ("it could not be looked at for 10 s: NVML does not come back", "stop the agent, reset the device"),
        ("NVML has not answered for 5 s", "stop the agent, reset the device"),
        ("NVML does not list it", "nvidia-smi -L"),
        ("NVML: Insufficient Permissions", "NVIDIA_MIG_MONITOR_DEVICES=all"),
        ("device 1 belongs to another agent on this host (pid 7): use that one, or stop it", "use that one, or stop"),
    ],
)
def test_what_helps_an_unhealthy_device_depends_on_its_reason(reason: str, remedy: str) -> None:
    check, _ = checks.check_devices(node(pb.Device(health_reason=reason), pb.Device(healthy=True)))
    assert (check.status, check.text) == ("FAIL", f": {reason}")
    assert remedy in check.remedy


def test_where_nvml_fails_on_every_device_no_device_is_to_be_reset() -> None:
    for reasons in (("NVML: Unknown Error", "NVML: Uninitialized"), ("NVML: Unknown Error",)):
        beside = checks.check_devices(node(*(pb.Device(health_reason=reason) for reason in ("Xid 79", *reasons))))
        assert all("restart the agent" in check.remedy for check in list(beside)[1:])
        found = list(checks.check_devices(node(*(pb.Device(health_reason=reason) for reason in reasons))))
        assert all("restart the agent" in check.remedy and "reset" not in check.remedy for check in found)
    found = list(checks.check_devices(node(*[pb.Device(health_reason="NVML: GPU is lost")] * 2)))
    assert all("reset it (or reboot), and resume it" in check.remedy for check in found)
    found = list(checks.check_devices(node(*[pb.Device(health_reason="NVML: Insufficient Permissions")] * 2)))
    assert all("NVIDIA_MIG_MONITOR_DEVICES=all" in check.remedy for check in found)


def test_a_program_of_a_share_that_runs_unmetered_is_told_with_its_cause() -> None:
    stranger = pb.ForeignProcess(pid=98, name="miner")
    shed = pb.ForeignProcess(pid=99, name="ping", unmetered_cause="it gains rights at its start: use a copy")
    found = list(checks.check_devices(node(pb.Device(name="H200", healthy=True, foreign_processes=[stranger, shed]))))
    assert [(check.status, check.text) for check in found] == [
        ("WARN", "H200: miner (98) runs without a share"),
        ("WARN", "H200: ping (99) runs unmetered in its share: it gains rights at its start"),
    ]
    assert ["sharepod run" in found[0].remedy, found[1].remedy] == [True, "use a copy"]


CAUSES = [
    (environ._HIDDEN, "bind the directories of its region and of the hook"),
    (environ._SHED, "start a copy of its file without them"),
    (unmanaged.MPS_CAUSE, "stop MPS"),
    (unmanaged.OUTSIDE_CAUSE, "take devices from the list"),
    (unmanaged.unmetered_cause(0), "start it anew in its share"),
    (unmanaged.unmetered_cause(errno.ENOENT), "start it in a new share"),
    *((unmanaged.unmetered_cause(one), "register the share anew") for one in (errno.EPROTO, errno.EPIPE, errno.EIO)),
]


@pytest.mark.parametrize(("cause", "remedy"), CAUSES)
def test_each_cause_that_the_agent_finds_for_an_unmetered_program_ends_in_its_remedy(cause: str, remedy: str) -> None:
    process = pb.ForeignProcess(pid=99, name="ping", unmetered_cause=cause)
    (check,) = checks.check_devices(node(pb.Device(name="H200", healthy=True, foreign_processes=[process])))
    assert check.remedy.startswith(remedy)
    assert f"{check.text}: {check.remedy}" == f"H200: ping (99) runs unmetered in its share: {cause}"


def test_what_the_agent_tells_of_itself_and_of_shares_is_a_warning_with_its_last_words_as_the_remedy() -> None:
    answer = node()
    answer.troubles.extend(
        ["share a: its process 7: it has too many threads: use fewer", "the checkpoint is not written: disk full: wait"]
    )
    found = [(check.name, check.text, check.remedy) for check in checks.check_troubles(answer)]
    assert found == [
        ("share", "share a: its process 7: it has too many threads", "use fewer"),
        ("agent", "the checkpoint is not written: disk full", "wait"),
    ]


@pytest.mark.parametrize(("error", "remedy"), [(46, "compute mode"), (803, "reboot"), (804, "the driver's own")])
def test_an_error_of_the_driver_has_its_own_remedy(monkeypatch: pytest.MonkeyPatch, error: int, remedy: str) -> None:
    answer = subprocess.CompletedProcess((), 0, json.dumps({"result": error, "version": 13000, "devices": 0}), "")
    monkeypatch.setattr(checks, "_probe", lambda *_: answer)
    check = checks.check_driver({}, simulated=False)
    assert (check.status, check.text) == ("FAIL", f"CUDA 13.0, but cuInit returns {error}")
    assert remedy in check.remedy


def test_a_driver_that_hangs_or_crashes_is_told_with_what_helps(monkeypatch: pytest.MonkeyPatch) -> None:
    told = []
    for answer in (None, subprocess.CompletedProcess((), -11, "", "")):
        monkeypatch.setattr(checks, "_probe", lambda *_, answer=answer: answer)
        told.append(checks.check_driver({}, simulated=False))
    assert [check.status for check in told] == ["FAIL", "FAIL"]
    assert ["has not started" in told[0].text, "crashed" in told[1].text] == [True, True]
    assert ["nvidia-smi answers" in told[0].remedy, "reinstall" in told[1].remedy] == [True, True]


def test_an_agent_that_waits_for_its_driver_is_told_as_one_that_starts(tmp_path: Path) -> None:
    with (tmp_path / "agent.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        error = no_agent(str(tmp_path / "agent.sock"), "there is no such socket")
        assert "start one" in no_agent(str(tmp_path / "users.sock"), "there is no such socket").remedy
    check = checks.check_agent(None, error)
    assert f"there is no such socket, though pid {os.getpid()} is one there: it awaits the driver" in check.text
    assert "nvidia-smi" in check.remedy
    assert "start one" in no_agent(str(tmp_path / "agent.sock"), "there is no such socket").remedy


def test_an_agent_that_listens_elsewhere_is_the_remedy_and_in_a_session_one_that_outlives_it() -> None:
    error = no_agent("/run/user/7/sharepod/agent.sock", "nobody listens", (), "/run/sharepod/agent.sock")
    check = checks.check_agent(None, error)
    assert check.text == "no agent at /run/user/7/sharepod/agent.sock: nobody listens"
    assert check.remedy.startswith("use the one that listens at /run/sharepod/agent.sock (--socket), or start one that")
    assert "loginctl enable-linger" in check.remedy
    assert "linger" not in checks.check_agent(None, no_agent("/run/sharepod/agent.sock", "nobody listens")).remedy


def test_mps_is_a_failure_with_its_remedy_on_the_host_and_on_a_device(tmp_path: Path) -> None:
    assert checks.check_mps(tmp_path).status == checks.OK
    file = tmp_path / "nvidia-cuda-mps-control.pid"
    file.write_text(str(os.getpid()))
    assert f"control daemon {os.getpid()} serves" in checks.check_mps(tmp_path).text
    file.write_text(str(2**22 + 1))  # the pid of no process, as after a daemon was killed
    assert checks.check_mps(tmp_path).status == checks.OK
    file.write_text("?")
    assert checks.check_mps(tmp_path).status == checks.FAIL
    (check,) = checks.check_devices(node(pb.Device(health_reason=MPS_REASON)))
    assert (check.status, "quit" in check.remedy) == (checks.FAIL, True)
    (check,) = checks.check_devices(node(pb.Device(uuid="GPU-1", health_reason=MODE_REASONS[3])))
    assert (check.status, check.remedy) == (checks.FAIL, "as root: nvidia-smi -i GPU-1 -c DEFAULT")
    (check,) = checks.check_devices(node(pb.Device(uuid="MIG-1", health_reason=MODE_REASONS[3])))
    assert "for the GPU that it is an instance of" in check.remedy


def test_a_hook_that_an_upgrade_would_overwrite_is_a_warning() -> None:
    assert list(checks.check_served_hook(node())) == []
    (check,) = checks.check_served_hook(node(hook_path="/usr/lib/python3/sharepod/hook/libsharepod.so"))
    assert check.status == checks.WARN
    assert "noexec" in check.text


def test_an_agent_of_another_version_is_a_warning(sharepod: Sharepod, agent: Agent) -> None:
    agent.version = "9.9.9"
    found = json.loads(sharepod("doctor", "-o", "json").out)["checks"]
    check, no_hello = [check for check in found if check["name"] == "agent"]
    assert "hello.sock" in no_hello["text"], "this agent in memory has none"
    assert check["status"] == "WARN"
    assert "upgrade" in check["remedy"]


def test_doctor_fails_when_a_check_fails_and_says_how_to_start_an_agent(sharepod: Sharepod, tmp_path: Path) -> None:
    answer = sharepod("doctor", "--socket", str(tmp_path / "none"))
    assert answer.code == 1
    assert "start one with `sharepod agent`" in answer.out


def test_the_program_of_the_demo_prints_in_a_locale_without_its_letter(make_simgpu: MakeSimgpu) -> None:
    command = [sys.executable, program.__file__, "--seconds", "0.1"]
    latin = {"PYTHONUTF8": "0", "PYTHONIOENCODING": "koi8-r"}
    done = subprocess.run(command, env=os.environ | make_simgpu().env | latin, capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, b"")
    assert b" kernels of 500 ?s in " in done.stdout


@pytest.mark.parametrize(
    ("verb", "said"),
    [
        ("run --help", "1-100"),
        ("doctor", "-> "),
        ("demo --help", "Show three"),
        ("set --help", "Usage: sharepod set"),
        ("explain nobody", "no agent"),
    ],
)
def test_a_locale_without_a_letter_gets_it_in_ascii(verb: str, said: str) -> None:
    latin = {
        "LC_ALL": "C",
        "PYTHONUTF8": "0",
        "PYTHONIOENCODING": "iso-8859-1",
        "SHAREPOD_SOCKET": "/nowhere/agent.sock",
    }
    command = [sys.executable, "-m", "sharepod.cli", *verb.split()]
    done = subprocess.run(command, env=os.environ | latin, capture_output=True, encoding="iso-8859-1", check=False)
    assert said in done.stdout + done.stderr
    assert "Traceback" not in done.stderr
