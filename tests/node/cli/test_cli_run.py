"""Test `sharepod run` on a real agent with simulated devices: the program behaves as usual, its share ends with it."""

import contextlib
import json
import os
import pty
import shutil
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from hosts import Host

from rig.control_groups import control_group
from rig.pid_namespaces import alone, first_of
from rig.until import until
from sharepod.agent.devices.lock import HostLock
from sharepod.cli.commands import launch
from sharepod.cli.commands.run import warn_of_unmetered
from sharepod.cli.connection import connect
from sharepod.cli.errors import EXIT_NO_AGENT, EXIT_NOT_EXECUTABLE, EXIT_REFUSED, EXIT_USAGE, CliError
from sharepod.cli.scratch import Scratch


def leftovers(directory: Path) -> list[str]:
    """Return every file below a directory, which others may be emptying (os.walk skips what is gone)."""
    return [name for _, directories, files in os.walk(directory) for name in (*directories, *files)]


@pytest.fixture
def node(host: Host) -> Iterator[Host]:
    """Yield a host with an agent on one simulated device."""
    with (host.directory.parent / "log").open("wb") as log:
        agent = subprocess.Popen(host.command("agent", "--simulate", "1xH200"), env=host.env, stderr=log, stdout=log)
    try:
        until(lambda: (host.directory / "agent.sock").exists() or agent.poll() is not None)
        assert agent.poll() is None, (host.directory.parent / "log").read_text()
        until(lambda: host.sharepod("ps").returncode == 0)
        yield host
        host.end_children()
        # Every share of a test must end with its program.
        until(lambda: host.left() == [])
    finally:
        agent.terminate()
        assert agent.wait(10) == 0


def run(*command: str, gpu: str = "30", name: str = "test") -> Sequence[str]:
    return ["run", "--gpu", gpu, "--name", name, "--", *command]


def test_all_that_a_program_has_of_a_shell_it_has_in_a_share(node: Host, tmp_path: Path) -> None:
    answer = node.sharepod(*run("sh", "-c", "cat; echo to stderr >&2; exit 7"), stdin="hello\n")
    assert (answer.returncode, answer.stdout, answer.stderr) == (7, "hello\n", "to stderr\n")
    look = "grep -E 'Sig(Ign|Blk)' /proc/self/status; ls /proc/self/fd"
    bare = subprocess.run(["sh", "-c", look], env=node.env, capture_output=True, text=True, check=True)
    assert node.sharepod(*run("sh", "-c", look)).stdout == bare.stdout, "signals and descriptors"
    script = tmp_path / "script"
    script.write_text("echo $0 $1\n")
    script.chmod(0o755)
    assert node.sharepod(*run(str(script), "one")).stdout == f"{script} one\n", "no interpreter line: a shell's"


def test_the_program_finds_its_share_and_the_hook_and_nothing_else_of_ours(node: Host) -> None:
    before = dict(node.env)
    after = dict(line.split("=", 1) for line in node.sharepod(*run("env", "-0")).stdout.split("\0") if "=" in line)
    added = {key for key in after if after[key] != before.get(key)}
    assert added == {"SHAREPOD_REGION", "LD_PRELOAD", "LD_LIBRARY_PATH", "CUDA_VISIBLE_DEVICES", "SIMGPU_DEVICES"}
    assert Path(after["LD_PRELOAD"]).parent == node.directory / "hook"
    assert before.keys() <= after.keys()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_the_command_becomes_the_program_and_a_signal_that_ends_it_ends_its_share(node: Host, number: int) -> None:
    child = node.start(*run("sleep", "600"))
    until(lambda: b"sleep" in Path(f"/proc/{child.pid}/cmdline").read_bytes()[:6])
    assert node.shares() == ["test"]
    child.send_signal(number)
    assert child.communicate(timeout=5) == ("", "")
    assert child.returncode == -number
    until(lambda: node.shares() == [] and node.left() == [])


def test_a_terminal_and_its_keys_belong_to_the_program(node: Host) -> None:
    pid, terminal = pty.fork()
    if pid == 0:
        command = node.command(*run("sh", "-c", "test -t 0 -a -t 1 && echo terminal; kill -STOP $$; exec sleep 600"))
        os.execve(command[0], command, node.env)
    until(lambda: b"terminal" in os.read(terminal, 1000))
    assert os.WIFSTOPPED(os.waitpid(pid, os.WUNTRACED)[1])
    os.kill(pid, signal.SIGCONT)
    until(lambda: b"sleep" in Path(f"/proc/{pid}/cmdline").read_bytes()[:6])
    os.write(terminal, b"\x03")
    status = os.waitpid(pid, 0)[1]
    os.close(terminal)
    assert os.WIFSIGNALED(status)
    assert os.WTERMSIG(status) == signal.SIGINT


def test_a_program_that_would_shed_the_hook_is_told_and_on_a_closed_node_refused(node: Host, tmp_path: Path) -> None:
    program, script = tmp_path / "program", tmp_path / "script"
    shutil.copy("/bin/true", program)
    script.write_text(f"#!/usr/bin/env -S {program} x\n")
    script.chmod(0o755)
    assert launch.gains_rights(str(program)) == launch.gains_rights(str(script)) == ""
    if os.getuid() == 0:
        os.chown(program, 65534, 0)
        program.chmod(0o4755)
    else:
        program.chmod(0o2755)
        os.chown(program, -1, os.getgroups()[-1])
    right = launch.gains_rights(str(program))
    assert right in ("a set-user-ID bit", "a set-group-ID bit")
    assert launch.gains_rights(str(script)) == right
    answer = node.sharepod(*run(str(program)))
    assert answer.stderr == (
        f"sharepod: {program} has {right}, and the loader drops the hook for it: "
        "it runs unmetered, and so does what it starts; take that right off it\n"
    )
    with pytest.raises(CliError, match=f"cannot run {program} has {right}") as refused:
        warn_of_unmetered(str(program), right, "closed")
    assert refused.value.exit_code == EXIT_NOT_EXECUTABLE


@pytest.mark.skipif(os.getuid() != 0, reason="gives a file capabilities")
def test_a_file_with_capabilities_counts_for_every_user_but_root(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copy("/bin/true", program := tmp_path / "program")
    os.setxattr(program, "security.capability", struct.pack("<5I", 0x02000001, 1 << 13, 0, 0, 0))
    assert launch.gains_rights(str(program)) == ""
    monkeypatch.setattr(os, "getuid", lambda: 65534)
    assert launch.gains_rights(str(program)) == "file capabilities"


def test_on_a_closed_node_a_program_that_would_shed_the_hook_is_not_started(host: Host, tmp_path: Path) -> None:
    host.env["SHAREPOD_POLICY"] = "closed"
    shutil.copy("/bin/touch", program := tmp_path / "program")
    os.chown(program, -1, 65534 if os.getuid() == 0 else os.getgroups()[-1])
    program.chmod(0o2755)
    answer = host.sharepod(
        "run", "--private", "--simulate", "1xH200", "--gpu", "30", "--", str(program), str(tmp_path / "made")
    )
    assert answer.returncode == EXIT_NOT_EXECUTABLE
    assert f"cannot run {program} has a set-group-ID bit" in answer.stderr
    assert not (tmp_path / "made").exists()


def test_a_file_that_the_kernel_refuses_is_126_and_leaves_no_share(node: Host, tmp_path: Path) -> None:
    junk = tmp_path / "junk"
    junk.write_bytes(b"\x7fELF\0\0\0")
    junk.chmod(0o755)
    answer = node.sharepod(*run(str(junk)))
    assert answer.returncode == EXIT_NOT_EXECUTABLE
    assert answer.stderr.startswith(f"error: cannot run {junk}: ")
    assert node.left() == []


@pytest.mark.parametrize(
    ("flags", "code", "words"),
    [
        (["--gpu", "80"], EXIT_REFUSED, ["80 %", "70 %", "lower"]),
        (["--gpu", "5", "--device", "9"], 1, ["unknown device '9'"]),
        (["--gpu", "5", "--name", "first"], 1, ["'first'", "choose another"]),
        (["--gpu", "5", "--name", "no/slash"], 2, ["no/slash"]),
        (["--gpu", "5", "--gang", ""], 2, ["--gang is empty", "leave the flag out"]),
    ],
    ids=["full", "device", "name-taken", "name", "no-gang"],
)
def test_what_does_not_fit_is_one_line_and_leaves_nothing(
    node: Host, flags: list[str], code: int, words: list[str]
) -> None:
    first = node.start(*run("sleep", "600", name="first"))
    until(lambda: node.shares() == ["first"])
    answer = node.sharepod("run", *flags, "--", "true")
    assert (answer.returncode, answer.stdout, answer.stderr.count("\n")) == (code, "", 1)
    assert all(word in answer.stderr for word in words), answer.stderr
    assert len(node.left()) == 1
    first.terminate()
    first.communicate()


def terms(node: Host) -> tuple[object, ...]:
    """Return the class, the request, the limit and the memory of the only share."""
    [share] = json.loads(node.sharepod("ps", "-o", "json").stdout)["shares"]
    [device] = share["devices"]
    keys = ("request_millipercent", "limit_millipercent", "memory_limit_bytes")
    return share["share_class"], *(device[key] for key in keys)


@pytest.mark.early
def test_a_share_with_its_terms_is_paused_changed_resumed_and_released_while_its_program_runs(node: Host) -> None:
    flags = ["--gpu", "30", "--limit", "60", "--memory", "10GiB", "--class", "latency", "--device", "0"]
    child = node.start("run", *flags, "--name", "test", "sleep", "600")
    until(lambda: node.shares() == ["test"])
    assert terms(node) == ("latency", 30_000, 60_000, 10 * 2**30)
    for verb, told in (("pause", "paused"), ("resume", "runs again"), ("pause", "paused")):
        answer = node.sharepod(verb, "test")
        assert (answer.returncode, answer.stdout) == (0, "")
        assert answer.stderr.startswith(f"sharepod: test {'is ' if verb == 'pause' else ''}{told}")
    assert "paused" in node.sharepod("ps").stdout
    explained = " ".join(node.sharepod("explain", "test").stdout.split())
    assert "paused by an operator: `sharepod resume test` lets it run" in explained
    assert "request 30 %, limit 60 %" in explained
    changed = node.sharepod("set", "test", "--gpu", "50", "--memory", "1GiB")
    assert all(word in changed.stdout for word in ("50 %", "60 %", "1 GiB")), changed
    assert node.sharepod("set", "test", "--limit", "80", "--class", "batch").returncode == 0
    assert terms(node) == ("batch", 50_000, 80_000, 2**30)
    assert node.sharepod("set", "test", "--limit", "10").returncode == 2
    gone = node.sharepod("device", "release", "0")
    assert (gone.returncode, gone.stdout) == (0, "")
    assert gone.stderr == (
        "sharepod: device 0 is released; `sharepod device resume 0` takes it back\n"
        "sharepod: share test is on it: none of its programs runs\n"
    )
    assert "`sharepod device resume 0` takes it back" in node.sharepod("doctor").stdout
    back = node.sharepod("device", "resume", "0")
    assert (back.returncode, back.stderr) == (0, "sharepod: device 0 is back; `sharepod doctor` says how it is\n")
    assert node.sharepod("device", "resume", "0").stderr.startswith("error: device 0 is not released: ")
    nowhere = node.sharepod("set", "test", "--device", "9", "--gpu", "5")
    assert (nowhere.returncode, nowhere.stderr.count("\n")) == (1, 1)
    assert "name one that the share holds, or none to change all of them" in nowhere.stderr
    released = node.sharepod("release", "test")
    assert (released.returncode, released.stdout) == (0, "")
    assert released.stderr.startswith("sharepod: test is released")
    assert node.shares() == []
    assert child.poll() is None
    child.terminate()
    child.communicate()


@pytest.mark.early
def test_a_private_agent_serves_all_who_want_one_and_ends_with_its_last_share(host: Host) -> None:
    flags = ["run", "--private", "--simulate", "1xH200", "--gpu", "40"]
    both = [host.start(*flags, "--name", name, "--", "sleep", "600") for name in ("one", "two")]
    until(lambda: host.sharepod("ps").returncode == 0 and sorted(host.shares()) == ["one", "two"], timeout_s=20)
    for child in both:
        child.terminate()
        assert child.communicate() == ("", "")
    until(lambda: leftovers(host.directory) == [])


@pytest.mark.parametrize("status", [0, 1], ids=["made", "refused"])
def test_a_private_agent_has_a_cgroup_of_its_own_where_systemd_makes_it_one(
    host: Host, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, status: int, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--scope", "--quiet", "--collect", "--"]
    words = words if os.getuid() == 0 else ["--user", *words]
    stand_in = tmp_path / "systemd-run"
    goes_on = f'shift {len(words)}; exec "$@"' if status == 0 else f"exit {status}"
    stand_in.write_text(f'#!/bin/sh\necho "$@" > {tmp_path}/asked\n{goes_on}\n')
    stand_in.chmod(0o755)
    (tmp_path / "systemd").mkdir()
    (tmp_path / "systemd" / "private").touch()
    own = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "XDG_RUNTIME_DIR": f"{tmp_path}"}
    for name, value in {**host.env, **own}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(connect, "_SYSTEMD_RUNS", tmp_path)
    path = f"{host.directory}/agent.sock"
    connect.ensure_agent(path, "1xH200")
    told = "sharepod: systemd gives the private agent no control group: it ends with this session or job\n"
    assert capsys.readouterr().err == told * status
    asked = (tmp_path / "asked").read_text().split()
    assert (asked[: len(words)], asked[-3:]) == (words, ["sharepod.cli.connection.private", path, "1xH200"])
    with connect.connect(path) as client:
        os.kill(client.node().agent_pid, signal.SIGTERM)
    until(lambda: leftovers(host.directory) == [])


@pytest.mark.parametrize("hierarchy", ["systemd", "memory"])
def test_a_private_agent_that_would_end_with_the_job_that_started_it_is_told(host: Host, hierarchy: str) -> None:
    host.env["PATH"] = ""  # systemd is not found
    with control_group(hierarchy) as group:
        run = host.command("run", "--private", "--simulate", "1xH200", "--gpu", "40", "--", "/bin/sleep", "600")
        job = f'echo $$ > {group}/cgroup.procs; exec "$@"'
        child = subprocess.Popen(["/bin/sh", "-c", job, "sh", *run], env=host.env, stderr=subprocess.PIPE, text=True)
        host.children.append(child)
        until(lambda: host.sharepod("ps").returncode == 0 and host.shares(), timeout_s=20)
        groups = Path(f"/proc/{child.pid}/cgroup").read_text().splitlines()
        (member,) = {line.split(":", 2)[2] for line in groups if group.name in line}
        bound = hierarchy == "systemd" or group.parent.name == "cgroup"  # a session, service or job is such a group

        def found() -> list[dict[str, str]]:
            checks = json.loads(host.sharepod("doctor", "-o", "json").stdout)["checks"]
            return [check for check in checks if check["name"] == "agent"]

        until(lambda: len(found()) == 1 + bound)
        for check in found()[1:]:
            assert check["status"] == "WARN"
            assert f"is in the control group of the session, service or job that started it ({member})" in check["text"]
            assert "start `sharepod agent` elsewhere" in check["remedy"]
        child.terminate()
        assert child.communicate()[1].count(f"is in this control group, {member}: it ends with") == bound
        until(lambda: leftovers(host.directory) == [])


WAITS_FOR_ALL = """
import os, sys
if os.fork() == 0:
    os._exit(0)
os.wait()
try:
    print("and", os.wait())
except ChildProcessError:
    print("no child is left", flush=True)
    sys.exit(7)
"""
CATCHES = "trap 'echo caught; exit 5' TERM; trap '' INT; echo ready; while :; do sleep 0.05; done"


def first_of_a_container(host: Host, *command: str) -> subprocess.Popen[str]:
    host.directory.mkdir(mode=0o700)
    own = f'mount -t tmpfs -o mode=700 tmpfs "{host.directory}" && exec "$@"'
    apart = ["unshare", "-rpf", "--mount-proc", "--kill-child", "sh", "-c", own, "sh"]
    run = host.command("run", "--private", "--simulate", "1xH200", "--gpu", "40", "--", *command)
    child = subprocess.Popen([*apart, *run], env=host.env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    host.children.append(child)
    return child


@pytest.mark.parametrize(
    ("command", "told", "status"),
    [
        ((sys.executable, "-c", WAITS_FOR_ALL), "no child is left\n", 7),
        (("sh", "-c", "sleep 0.01 & sleep 0.02 & exec kill -9 $$"), "", 128 + signal.SIGKILL),
    ],
)
def test_a_program_in_a_container_has_no_child_that_it_never_started(
    host: Host, command: tuple[str, ...], told: str, status: int
) -> None:
    child = first_of_a_container(host, *command)
    assert (*child.communicate(timeout=30), child.returncode) == (told, "", status)


def test_signals_to_the_first_process_of_a_container_reach_the_program(host: Host) -> None:
    child = first_of_a_container(host, "sh", "-c", CATCHES)
    assert child.stdout is not None
    assert child.stdout.readline() == "ready\n"
    first = int(Path(f"/proc/{child.pid}/task/{child.pid}/children").read_text())
    os.kill(first, signal.SIGINT)
    os.kill(first, signal.SIGTERM)
    assert (*child.communicate(timeout=30), child.returncode) == ("caught\n", "", 5)


def test_in_a_container_the_owner_is_the_program_as_the_agent_sees_it(node: Host) -> None:
    say = "echo $$; read line"
    command = [*alone(), *node.command(*run("sh", "-c", say, name="inside"))]
    child = subprocess.Popen(command, env=node.env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    node.children.append(child)
    assert child.stdin is not None
    assert child.stdout is not None
    assert child.stdout.readline() == "1\n"
    [share] = json.loads(node.sharepod("ps", "-o", "json").stdout)["shares"]
    assert share["owner_pid"] == first_of(child)
    child.communicate("\n")
    until(lambda: node.shares() == [])


def test_a_private_agent_waits_for_one_that_ends_and_still_has_the_place(host: Host) -> None:
    host.directory.mkdir(mode=0o700)
    flags = ["run", "--private", "--simulate", "1xH200", "--gpu", "40", "--", "true"]
    with HostLock(host.directory):
        child = host.start(*flags)
        # This is longer than an agent on a busy machine needs to start or to end.
        time.sleep(3)
        assert child.poll() is None
    out, told = child.communicate(timeout=60)
    assert (child.returncode, out) == (0, ""), told
    assert told in ("", "sharepod: waiting for the private agent: the driver answers slowly\n"), "on a busy machine"


def test_a_private_agent_whose_command_was_killed_ends_without_a_share(host: Host) -> None:
    child = host.start("run", "--private", "--simulate", "1xH200", "--gpu", "40", "--", "true")
    until(lambda: (host.directory / "agent.lock").exists())
    child.kill()
    child.communicate()
    until(lambda: leftovers(host.directory) == [])


@pytest.mark.parametrize("devices", ["no such thing", "1xH20"])
def test_devices_that_cannot_be_simulated_are_a_wrong_flag(host: Host, devices: str) -> None:
    answer = host.sharepod("run", "--private", "--simulate", devices, "--gpu", "40", "--", "true")
    assert answer.returncode == EXIT_USAGE
    assert answer.stderr.startswith("error: --simulate")
    assert devices in answer.stderr
    assert answer.stderr.count("\n") == 1
    assert leftovers(host.directory) == []


def test_other_devices_than_those_of_the_agent_that_runs_are_a_wrong_flag(node: Host) -> None:
    flags = ["run", "--private", "--gpu", "40", "--simulate"]
    answer = node.sharepod(*flags, "2xH200", "--", "true")
    assert answer.returncode == EXIT_USAGE
    assert answer.stderr.startswith("error: --simulate 2xH200: the agent at ")
    assert "runs already, with 1xH200: leave --simulate out" in answer.stderr
    assert answer.stderr.count("\n") == 1
    assert node.shares() == []
    assert node.sharepod(*flags, "1xH200", "--", "true").returncode == 0


def test_nothing_is_imported_before_a_ctrl_c_is_answered() -> None:
    text = "import sys; before = set(sys.modules); import sharepod.cli.__main__; print(*set(sys.modules) - before)"
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=True)
    assert set(done.stdout.split()) <= {"sharepod", "sharepod.cli", "sharepod.cli.__main__"}


def test_a_private_agent_that_cannot_start_says_why_in_one_line(host: Host) -> None:
    host.directory.mkdir(mode=0o700)
    (host.directory / "shares").touch()
    answer = host.sharepod("run", "--private", "--simulate", "1xH200", "--gpu", "40", "--", "true")
    assert answer.returncode == EXIT_NO_AGENT
    assert answer.stderr.startswith("error: the private agent does not start: ")
    assert answer.stderr.count("\n") == 1


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_top_gives_the_terminal_back_when_it_is_ended(node: Host, number: int) -> None:
    master, terminal = pty.openpty()
    before = termios.tcgetattr(terminal)
    env = {**node.env, "TERM": "xterm"}
    top = subprocess.Popen(node.command("top"), stdin=terminal, stdout=terminal, stderr=terminal, env=env)
    shown = b""
    while b"DEVICE" not in shown:
        shown += os.read(master, 4096)
    top.send_signal(number)
    assert top.wait(10) == 128 + number
    assert termios.tcgetattr(terminal) == before
    os.set_blocking(master, False)
    with contextlib.suppress(BlockingIOError):
        while True:  # a screen may need more than one read
            shown += os.read(master, 4096)
    assert shown.rfind(b"\x1b[?1049l") > shown.rfind(b"\x1b[?1049h")
    os.close(terminal)
    os.close(master)


@pytest.mark.parametrize("verb", [["ps"], ["ps", "-o", "json"], ["--help"], ["trace", "-o", "-"]])
def test_an_output_that_takes_nothing_is_one_line_and_a_closed_one_none(node: Host, verb: list[str]) -> None:
    with Path("/dev/full").open("w") as full:
        answer = subprocess.run(
            node.command(*verb), env=node.env, stdout=full, stderr=subprocess.PIPE, text=True, check=False
        )
    assert answer.returncode == 1
    assert answer.stderr == "error: No space left on device: check space, limits and permissions\n"
    closed = ["sh", "-c", '"$@" <&- >&-', "sh", *node.command(*verb)]
    assert subprocess.run(closed, env=node.env, stderr=subprocess.PIPE, text=True, check=False).stderr == ""


def test_two_programs_take_turns_and_their_trace_has_them(node: Host) -> None:
    program = [sys.executable, "-m", "sharepod.cli.demo.program", "--seconds", "60"]
    pair = [node.start(*run(*program, gpu=gpu, name=name)) for name, gpu in (("a", "70"), ("b", "30"))]

    def turns() -> int:
        events = json.loads(node.sharepod("trace", "-o", "-").stdout)["traceEvents"]
        return sum(event.get("cat") == "turn" for event in events)

    until(lambda: len(node.shares()) == 2)
    until(lambda: turns() > 20)
    for child in pair:
        child.terminate()
        out, err = child.communicate(timeout=10)
        assert (child.returncode, err) == (0, "")
        assert "kernels of 500 µs" in out


def test_the_demo_program_waits_for_its_kernels_and_says_in_one_line_what_refused_it(node: Host) -> None:
    program = [sys.executable, "-m", "sharepod.cli.demo.program", "--seconds", "0.01"]
    answer = node.sharepod(*run(*program, "--kernel-us", "200000", gpu="100"))
    kernels, seconds = (float(answer.stdout.split()[place]) for place in (0, 6))
    assert 0.2 * kernels <= seconds + 0.05
    answer = node.sharepod(*run(*program, "--memory", str(10**15)))
    assert (answer.returncode, answer.stdout, answer.stderr.count("\n")) == (1, "", 1)
    assert answer.stderr.startswith("error: cuMemAlloc")


def working_in(directory: Path) -> list[int]:
    """Return the processes that have this directory in their environment or command."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if os.fsencode(directory) in (entry / "environ").read_bytes() + (entry / "cmdline").read_bytes():
                found.append(int(entry.name))
    return found


def test_a_demo_that_is_killed_takes_its_programs_along_and_the_next_one_its_files(host: Host) -> None:
    child = host.start("demo", "--simulate", "--seconds", "60")
    mine = f"sharepod-demo.{child.pid}.*"
    until(lambda: any(Path("/dev/shm").glob(f"{mine}/serve.log")), timeout_s=20)
    (directory,) = Path("/dev/shm").glob(mine)
    assert len(working_in(directory)) > 1
    child.kill()
    child.communicate()
    # The demo's agent ends as any private agent does: two seconds after its last share.
    until(lambda: working_in(directory) == [])
    with Scratch("sharepod-demo"):  # the next demo, or one that ran beside this one, removes its directory
        assert not directory.exists()


@pytest.mark.parametrize(
    ("number", "when"), [(signal.SIGTERM, ""), (signal.SIGHUP, "agent.sock"), (signal.SIGINT, "serve.log")]
)
def test_the_demo_leaves_nothing_behind_whenever_it_is_interrupted(host: Host, number: int, when: str) -> None:
    child = host.start("demo", "--simulate", "--seconds", "60")
    mine = f"sharepod-demo.{child.pid}.*"
    until(lambda: any(Path("/dev/shm").glob(f"{mine}/{when}")), timeout_s=20)
    (directory,) = Path("/dev/shm").glob(mine)
    child.send_signal(number)
    assert child.communicate(timeout=20)[1] == ""
    assert child.returncode == 128 + number
    assert working_in(directory) == []
    assert not directory.exists()
