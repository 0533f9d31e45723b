from __future__ import annotations

import fcntl
import io
import json
import logging
import subprocess
import sys
from pathlib import Path

import pytest

from sharepod.agent import logs
from sharepod.agent.errors import AgentUnavailable, SettingsError
from sharepod.agent.lock import HostLock
from sharepod.agent.manual import with_settings
from sharepod.agent.settings import Settings, load_settings, setting_doc, setting_names, shown


def test_the_defaults_are_those_of_the_manual() -> None:
    settings = load_settings({}, {})
    assert settings.metrics_listen == "127.0.0.1:9464"
    assert not settings.overcommit
    assert settings.policy == "open"
    assert settings.socket_mode == 0o600
    assert settings.state_directory == settings.runtime_directory
    assert settings.socket_path == f"{settings.runtime_directory}/agent.sock"


def test_a_flag_beats_the_environment_and_that_the_file(tmp_path: Path) -> None:
    config = tmp_path / "agent.yaml"
    config.write_text("simulate: 1xA10\npolicy: closed\novercommit: true\nmetrics_listen: off\nmonitoring: [a, b]\n")
    environment = {"SHAREPOD_SIMULATE": "1xH200", "SHAREPOD_OVERCOMMIT": "false", "SHAREPOD_CONFIG": str(config)}
    settings = load_settings({"simulate": "2xH200", "policy": None}, environment)
    assert settings.simulate == "2xH200"
    assert not settings.overcommit
    assert settings.policy == "closed"
    assert settings.metrics_listen == ""
    assert settings.monitoring == ("a", "b")


def test_every_setting_has_a_description_and_can_be_shown() -> None:
    for name in setting_names():
        assert setting_doc(name).endswith((".", "file."))
    assert shown(Settings(metrics_listen=""))["metrics_listen"] == "off"
    assert shown(Settings())["socket_mode"] == "0600"


@pytest.mark.parametrize(
    ("flags", "environment", "message"),
    [
        ({"polcy": "open"}, {}, "unknown setting polcy: did you mean policy?"),
        ({}, {"SHAREPOD_OVERCOMIT": "1"}, "unknown environment variable SHAREPOD_OVERCOMIT: did you mean SHAREPOD_"),
        ({"policy": "maybe"}, {}, "--policy is 'maybe': give open or closed"),
        ({}, {"SHAREPOD_OVERCOMMIT": "maybe"}, "environment SHAREPOD_OVERCOMMIT is 'maybe': give true or false"),
        ({"simulate": "H200"}, {}, "--simulate is 'H200': give devices like 2xH200 or 1xH200,1xA10"),
        ({"metrics_listen": "0.0.0.0:9464"}, {}, "--metrics-listen is '0.0.0.0:9464': give a loopback address like"),
        ({"metrics_listen": "127.0.0.1:70000"}, {}, "--metrics-listen is '127.0.0.1:70000': give a loopback address"),
        ({"runtime_directory": "here"}, {}, "--runtime-directory is 'here': give an absolute path"),
        ({"socket_mode": "777x"}, {}, "--socket-mode is '777x': give an octal mode like 0600, 0660 or 0666"),
        ({"socket_mode": "0077"}, {}, "--socket-mode is '0077': give an octal mode"),
        ({"socket_group": "no such group"}, {}, "--socket-group is 'no such group': there is no such group"),
        ({"node_name": "a b"}, {}, "--node-name is 'a b': give a name of at most 253 letters, digits, '-', '_', '.'"),
        ({"log_level": "loud"}, {}, "--log-level is 'loud': give debug or info or warning or error"),
    ],
)  # fmt: skip
def test_a_wrong_setting_is_named_with_its_remedy(
    flags: dict[str, object], environment: dict[str, str], message: str
) -> None:
    with pytest.raises(SettingsError) as caught:
        load_settings(flags, environment)
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("polcy: open\n", "did you mean policy?"),
        ("- a\n", "is no mapping: write lines of key: value"),
        ("a: [\n", "is no YAML"),
        ("policy: maybe\n", "policy is 'maybe': give open or closed"),
    ],
)
def test_a_wrong_file_is_named_with_its_remedy(tmp_path: Path, text: str, message: str) -> None:
    config = tmp_path / "agent.yaml"
    config.write_text(text)
    with pytest.raises(SettingsError) as caught:
        load_settings({}, {}, str(config))
    assert message in str(caught.value)
    assert str(config) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_missing_file_is_named() -> None:
    with pytest.raises(SettingsError, match="configuration /nowhere: No such file or directory: name a readable file"):
        load_settings({}, {}, "/nowhere")


def test_variables_of_the_hook_are_not_settings() -> None:
    load_settings({}, {"SHAREPOD_REGION": "/x", "SHAREPOD_HOOK_BYPASS": "1"})


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


def record(formatter: logging.Formatter) -> str:
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(formatter)
    logger = logging.Logger("sharepod.agent")  # noqa: LOG001 - one that no other test sees
    logger.addHandler(handler)
    logger.warning("turn reclaimed", extra={"share": "abc", "cause": 'a "b"\nc', "pids": [1]})
    return stream.getvalue()


def test_an_event_is_one_line_of_json_with_its_values() -> None:
    event = json.loads(record(logs.JsonFormatter()))
    assert event.pop("time").endswith("+00:00")
    assert event == {
        "level": "warning",
        "event": "turn reclaimed",
        "logger": "sharepod.agent",
        "share": "abc",
        "cause": 'a "b"\nc',
        "pids": [1],
    }


def test_an_event_is_one_line_of_text_that_a_value_cannot_break() -> None:
    line = record(logs.TextFormatter())
    assert line.count("\n") == 1
    assert 'WARNING turn reclaimed share=abc cause="a \\"b\\"\\nc" pids=[1]' in line


def test_the_manual_has_the_current_settings() -> None:
    text = (Path(__file__).resolve().parents[2] / "docs" / "operations.md").read_text()
    assert with_settings(text) == text
    with pytest.raises(ValueError, match="has lost its markers"):
        with_settings("nothing")
