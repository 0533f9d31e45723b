"""Test the agent's own settings: their bounds, their directories, and the lock of a host's one agent."""

import fcntl
import subprocess
import sys
from pathlib import Path

import pytest

from sharepod.agent.devices.lock import HostLock
from sharepod.agent.errors import AgentUnavailable
from sharepod.agent.settings import OPTIONS, Settings
from sharepod.process.errors import SettingsError
from sharepod.process.setting import shown

CERTIFICATE = ["--metrics-tls-certificate", "/c", "--metrics-tls-key", "/k"]
TOKEN = ["--metrics-token-file", "/t"]


def test_what_is_not_given_depends_on_user_and_machine() -> None:
    settings = OPTIONS.load({}, {})
    assert (settings.metrics_listen, settings.overcommit, settings.socket_mode) == ("127.0.0.1:9464", False, 0o600)
    assert settings.runtime_directory.startswith(("/run/", "/dev/shm/"))
    assert settings.state_directory == settings.hook_directory == settings.runtime_directory
    assert settings.socket_path == f"{settings.runtime_directory}/agent.sock"
    assert OPTIONS.load({"state_directory": "/a//b/"}, {}).state_directory == "/a/b"


def test_a_file_may_write_values_as_yaml_does(tmp_path: Path) -> None:
    config = tmp_path / "agent.yaml"
    config.write_text("overcommit: true\nmetrics_listen: off\nmonitoring: [a, b]\nsocket_mode: 0660\nnode_name: 7\n")
    settings = OPTIONS.load({}, {"SHAREPOD_CONFIG": str(config)})
    assert (settings.overcommit, settings.metrics_listen, settings.monitoring) == (True, "", ("a", "b"))
    assert (settings.socket_mode, settings.node_name) == (0o660, "7")
    assert shown(settings)["metrics_listen"] == "off"
    assert shown(Settings())["socket_mode"] == "0600"


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--policy", "maybe"], "--policy is 'maybe': give open or closed"),
        (["--simulate", "H200"], "--simulate is 'H200': give devices like 2xH200 or 1xH200,1xA10"),
        (["--metrics-listen", "127.0.0.1:70000"], "--metrics-listen is '127.0.0.1:70000': give a loopback address"),
        (["--metrics-tls-certificate", "/c", *TOKEN], "metrics_tls_certificate is given without metrics_tls_key: give"),
        (["--metrics-tls-key", "/k", *TOKEN], "metrics_tls_key is given without metrics_tls_certificate: give both"),
        (["--metrics-token-file", "t"], "--metrics-token-file is 't': give an absolute path"),
        (["--scheduler-address", "scheduler"], "--scheduler-address is 'scheduler': give a name or an address with a"),
        (["--scheduler-address", "scheduler:0"], "--scheduler-address is 'scheduler:0': give a name or an address"),
        (["--scheduler-address", "scheduler:9466"], "--scheduler-address is 'scheduler:9466': beyond the loopback"),
        (["--scheduler-address", "10.0.0.1:80"], "--scheduler-address is '10.0.0.1:80': beyond the loopback"),
        (["--scheduler-address", "localhost:80", "--scheduler-token-file", "/t"],
         "scheduler_token_file is given without scheduler_ca: a token goes over TLS alone"),
        (["--runtime-directory", "here"], "--runtime-directory is 'here': give an absolute path"),
        (["--socket-mode", "777x"], "--socket-mode is '777x': give 0600, or 0660 for a group of operators; users"),
        (["--socket-mode", "0666"], "--socket-mode is '0666': give 0600, or 0660 for a group of operators; users get"),
        (["--users-socket-mode", "0600"], "--users-socket-mode is '0600': give 0666 for all, 0660 for a group"),
        (["--socket-mode", "0077"], "--socket-mode is '0077': give 0600"),
        (["--socket-group", "no such group"], "--socket-group is 'no such group': there is no such group"),
        (["--node-name", "a b"], "--node-name is 'a b': give a name of at most 253 letters, digits, '-', '_', '.'"),
    ],
)  # fmt: skip
def test_a_wrong_setting_is_named_with_its_remedy(flags: list[str], message: str) -> None:
    with pytest.raises(SettingsError) as caught:
        OPTIONS.parse(flags, {})
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "place", ["0.0.0.0:9464", "10.0.0.1:9464", "[::]:9464", "[fe80::1]:9464", "[::ffff:127.0.0.1]:9464"]
)
def test_metrics_beyond_the_loopback_need_a_certificate_its_key_and_a_token(place: str) -> None:
    message = (
        f"--metrics-listen is '{place}': give a loopback address like 127.0.0.1:9464, or, for the network, "
        "metrics_tls_certificate, metrics_tls_key and metrics_token_file too"
    )
    for given in ([], CERTIFICATE, TOKEN):
        with pytest.raises(SettingsError) as caught:
            OPTIONS.parse(["--metrics-listen", place, *given], {})
        assert str(caught.value) == message
    assert OPTIONS.parse(["--metrics-listen", place, *CERTIFICATE, *TOKEN], {}).metrics_listen == place


@pytest.mark.parametrize("place", ["127.0.0.1:9464", "127.1.2.3:1", "[::1]:9464", "localhost:65535", "off", ""])
def test_metrics_on_the_loopback_need_none_of_them(place: str) -> None:
    assert OPTIONS.load({"metrics_listen": place}, {}).metrics_listen == ("" if place == "off" else place)


@pytest.mark.parametrize("place", ["1.2.3:9464", "1.2.3.400:9464", "host:9464", ":9464", "::1:9464", "[::g]:9464"])
def test_metrics_listen_on_an_address_and_never_on_a_name(place: str) -> None:
    with pytest.raises(SettingsError, match="give a loopback address like"):
        OPTIONS.parse(["--metrics-listen", place, *CERTIFICATE, *TOKEN], {})


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


def test_an_agent_that_has_the_place_and_has_not_said_its_pid_yet_is_not_to_be_killed(tmp_path: Path) -> None:
    with (tmp_path / "agent.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.raises(AgentUnavailable) as caught:
            HostLock(tmp_path).__enter__()
    assert str(caught.value) == f"an agent already runs in {tmp_path}, just started: use it"
