"""The webhook's own settings, and how a wrong flag, file or address ends its start."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from webhook_process import Certificates

from sharepod.agent.settings import OPTIONS as AGENT_OPTIONS
from sharepod.process.errors import SettingsError
from sharepod.webhook.settings import OPTIONS

if TYPE_CHECKING:
    from pathlib import Path


def test_defaults_of_pods_are_settings() -> None:
    defaults = OPTIONS.parse(["--device-memory", "80Gi", "--scheduler-name", "mine"], {}).defaults
    assert (defaults.memory_only_percent, defaults.device_memory_bytes) == (10, 80 * 2**30)
    assert defaults.scheduler_name == "mine"
    assert OPTIONS.parse([], {"SHAREPOD_WEBHOOK_DEVICE_MEMORY": ""}).device_memory is None


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--port", "65536"], "--port is '65536': give a whole number from 0 to 65535"),
        (["--memory-only-percent", "0"], "--memory-only-percent is '0': give a percentage from 1 to 100"),
        (["--drain-seconds", "61"], "--drain-seconds is '61': give a whole number from 0 to 60"),
        (["--device-memory", "80GB"], "--device-memory is '80GB': give the size of a device's memory, such as 80Gi"),
        (["--device-memory", "80"], "--device-memory is '80': give the size of a device's memory"),
        (
            ["--metrics-listen", "0.0.0.0:9469", "--metrics-token-file", "/t"],
            (
                "--metrics-listen is '0.0.0.0:9469', which others reach, and would not be protected: give "
                "--metrics-tls-certificate, --metrics-tls-key, or an address of 127.0.0.1"
            ),
        ),
        (["--certificate", "tls.crt"], "--certificate is 'tls.crt': give an absolute path"),
        (["--scheduler-name", "A b"], "--scheduler-name is 'A b': give the name of a scheduler"),
    ],
)
def test_what_is_wrong_is_told(arguments: list[str], message: str) -> None:
    with pytest.raises(SettingsError) as caught:
        OPTIONS.parse(arguments, {})
    assert message in str(caught.value)


def started(*arguments: object) -> tuple[int, str]:
    command = [sys.executable, "-m", "sharepod.webhook.main", *map(str, arguments)]
    environment = {key: value for key, value in os.environ.items() if not key.startswith("SHAREPOD_")}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=60)
    return done.returncode, done.stdout + done.stderr


def test_the_process_says_it_in_one_line(tmp_path: Path) -> None:
    files = Certificates(tmp_path)
    missing = tmp_path / "missing"
    assert "--device-memory" in started("--help")[1]
    assert started("--prot", "1") == (2, "sharepod-webhook: unknown flag --prot: did you mean --port?\n")
    assert started("--certificate", missing, "--key", files.key) == (
        2,
        f"sharepod-webhook: webhook: {missing}: No such file or directory: name a file that the webhook can read\n",
    )
    with socket.create_server(("127.0.0.1", 0)) as taken:
        flags = ("--certificate", files.certificate, "--key", files.key, "--address", "127.0.0.1")
        code, said = started(*flags, "--port", taken.getsockname()[1])
    assert (code, said.splitlines()[-1][:49]) == (2, "sharepod-webhook: cannot listen: error while atte")


def test_its_variables_are_not_taken_for_the_agents() -> None:
    AGENT_OPTIONS.load({}, {f"{OPTIONS.prefix}PORT": "1"})
