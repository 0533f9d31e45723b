"""A wrong flag, variable or file ends the start in one line that says what to write."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from webhook_process import Certificates

from sharepod.agent.errors import SettingsError
from sharepod.agent.settings import load_settings
from sharepod.webhook.settings import PREFIX, parse_settings

if TYPE_CHECKING:
    from pathlib import Path


def test_a_flag_beats_the_environment() -> None:
    environment = {f"{PREFIX}PORT": "1", f"{PREFIX}DEVICE_MEMORY": "80Gi", f"{PREFIX}SCHEDULER_NAME": "mine", "X": "y"}
    settings = parse_settings(["--port", "2"], environment)
    assert settings.port == 2
    defaults = settings.defaults
    assert (defaults.memory_only_percent, defaults.device_memory_bytes) == (10, 80 * 2**30)
    assert defaults.scheduler_name == "mine"
    assert parse_settings([], {f"{PREFIX}DEVICE_MEMORY": ""}).device_memory is None


@pytest.mark.parametrize(
    ("arguments", "environment", "message"),
    [
        (["--port", "65536"], {}, "--port is '65536': give a whole number from 0 to 65535"),
        (["--port", "١"], {}, "give a whole number from 0 to 65535"),
        ([], {f"{PREFIX}MEMORY_ONLY_PERCENT": "0"}, "SHAREPOD_WEBHOOK_MEMORY_ONLY_PERCENT is '0': give a whole number"),
        (
            ["--device-memory", "80GB"],
            {},
            "--device-memory is '80GB': give the size of a device's memory, such as 80Gi",
        ),
        (["--device-memory", "80"], {}, "--device-memory is '80': give the size of a device's memory"),
        (["--certificate", "tls.crt"], {}, "--certificate is 'tls.crt': give an absolute path"),
        (["--scheduler-name", "A b"], {}, "--scheduler-name is 'A b': give the name of a scheduler"),
        (["--log-level", "loud"], {}, "--log-level is 'loud': give debug, info, warning, error"),
        (
            [],
            {f"{PREFIX}SERVICE_HOST": "10.0.0.1"},
            "unknown environment variable SHAREPOD_WEBHOOK_SERVICE_HOST",
        ),
    ],
)
def test_what_is_wrong_is_told(arguments: list[str], environment: dict[str, str], message: str) -> None:
    with pytest.raises(SettingsError) as caught:
        parse_settings(arguments, environment)
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
    assert started("--prot", "1") == (
        2,
        "sharepod-webhook: unrecognized arguments: --prot 1: see `sharepod-webhook --help`\n",
    )
    assert started("--certificate", missing, "--key", files.key) == (
        2,
        f"sharepod-webhook: webhook: {missing}: No such file or directory: name a file that the webhook can read\n",
    )
    with socket.create_server(("127.0.0.1", 0)) as taken:
        flags = ("--certificate", files.certificate, "--key", files.key, "--address", "127.0.0.1")
        code, said = started(*flags, "--port", taken.getsockname()[1])
    assert (code, said.splitlines()[-1][:49]) == (2, "sharepod-webhook: cannot listen: error while atte")


def test_its_variables_are_not_taken_for_the_agents() -> None:
    load_settings({}, {f"{PREFIX}PORT": "1"})
