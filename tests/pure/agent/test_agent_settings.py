"""The agent's own settings: their bounds, their directories, and the place of the one agent of a host."""

from __future__ import annotations

import fcntl
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from sharepod.agent.errors import AgentUnavailable
from sharepod.agent.lock import HostLock
from sharepod.agent.settings import OPTIONS, Settings
from sharepod.process.errors import SettingsError
from sharepod.process.setting import shown

if TYPE_CHECKING:
    from pathlib import Path


def test_what_is_not_given_depends_on_user_and_machine() -> None:
    settings = OPTIONS.load({}, {})
    assert settings.metrics_listen == "127.0.0.1:9464"
    assert not settings.overcommit
    assert settings.socket_mode == 0o600
    assert settings.runtime_directory.startswith(("/run/", "/dev/shm/"))
    assert settings.state_directory == settings.hook_directory == settings.runtime_directory
    assert settings.socket_path == f"{settings.runtime_directory}/agent.sock"
    assert OPTIONS.load({"state_directory": "/a//b/"}, {}).state_directory == "/a/b"


def test_a_file_may_write_values_as_yaml_does(tmp_path: Path) -> None:
    config = tmp_path / "agent.yaml"
    config.write_text("overcommit: true\nmetrics_listen: off\nmonitoring: [a, b]\nsocket_mode: 0660\nnode_name: 7\n")
    settings = OPTIONS.load({}, {"SHAREPOD_CONFIG": str(config)})
    assert settings.overcommit
    assert settings.metrics_listen == ""
    assert settings.monitoring == ("a", "b")
    assert settings.socket_mode == 0o660
    assert settings.node_name == "7"
    assert shown(settings)["metrics_listen"] == "off"
    assert shown(Settings())["socket_mode"] == "0600"


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--polcy", "open"], "unknown flag --polcy: did you mean --policy?"),
        (["--policy", "maybe"], "--policy is 'maybe': give open or closed"),
        (["--simulate", "H200"], "--simulate is 'H200': give devices like 2xH200 or 1xH200,1xA10"),
        (["--metrics-listen", "0.0.0.0:9464"], "--metrics-listen is '0.0.0.0:9464': give a loopback address like"),
        (["--metrics-listen", "127.0.0.1:70000"], "--metrics-listen is '127.0.0.1:70000': give a loopback address"),
        (["--scheduler-address", "scheduler"], "--scheduler-address is 'scheduler': give a name or an address with a"),
        (["--scheduler-address", "scheduler:9466"], "--scheduler-address is 'scheduler:9466': beyond the loopback"),
        (["--scheduler-token-file", "/t"], "scheduler_token_file is given without scheduler_ca"),
        (["--runtime-directory", "here"], "--runtime-directory is 'here': give an absolute path"),
        (["--socket-mode", "777x"], "--socket-mode is '777x': give an octal mode like 0600, 0660 or 0666"),
        (["--socket-mode", "0077"], "--socket-mode is '0077': give an octal mode"),
        (["--socket-group", "no such group"], "--socket-group is 'no such group': there is no such group"),
        (["--node-name", "a b"], "--node-name is 'a b': give a name of at most 253 letters, digits, '-', '_', '.'"),
    ],
)  # fmt: skip
def test_a_wrong_setting_is_named_with_its_remedy(flags: list[str], message: str) -> None:
    with pytest.raises(SettingsError) as caught:
        OPTIONS.parse(flags, {})
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)


def test_its_help_needs_no_library_of_its_work() -> None:
    heavy = ("grpc", "aiohttp", "kubernetes", "prometheus_client", "pynvml", "numpy")
    code = (
        "import sys; from sharepod.agent.settings import OPTIONS\n"
        "try: OPTIONS.start(['--help'])\n"
        f"except SystemExit as end: print(end.code, [name for name in {heavy} if name in sys.modules])"
    )
    shown_help = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert "Usage: sharepod agent [OPTIONS]" in shown_help
    assert shown_help.splitlines()[-1] == "0 []"


def test_variables_of_the_hook_are_not_settings() -> None:
    OPTIONS.load({}, {"SHAREPOD_REGION": "/x", "SHAREPOD_HOOK_BYPASS": "1"})


def test_the_second_agent_of_a_directory_gets_one_line_with_pid_and_remedy(tmp_path: Path) -> None:
    code = (
        "import sys,pathlib; from sharepod.agent.lock import HostLock\nHostLock(pathlib.Path(sys.argv[1])).__enter__()"
    )
    with HostLock(tmp_path) as lock:
        lock.claim_device("test/GPU-1", 0)
        second = subprocess.run(
            [sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=False
        )
        assert second.returncode == 1
        assert f"an agent already runs in {tmp_path} (pid " in second.stderr
        assert "use it, or stop it with `kill " in second.stderr
        elsewhere = tmp_path / "other"
        elsewhere.mkdir()
        with HostLock(elsewhere) as other, pytest.raises(AgentUnavailable, match="device 3 belongs to another agent"):
            other.claim_device("test/GPU-1", 3)
    assert not tmp_path.exists()


def test_an_agent_that_has_the_place_and_has_not_said_its_pid_yet_is_not_to_be_killed(tmp_path: Path) -> None:
    with (tmp_path / "agent.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.raises(AgentUnavailable) as caught:
            HostLock(tmp_path).__enter__()
    assert str(caught.value) == f"an agent already runs in {tmp_path}, just started: use it"


def test_the_lock_falls_with_a_killed_agent(tmp_path: Path) -> None:
    code = (
        "import sys,os,signal,pathlib; from sharepod.agent.lock import HostLock\n"
        "HostLock(pathlib.Path(sys.argv[1])).__enter__(); os.kill(os.getpid(), signal.SIGKILL)"
    )
    assert subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=False).returncode == -9
    assert (tmp_path / "agent.lock").exists()
    with HostLock(tmp_path):
        pass
