"""Test the webhook's own settings, and how a wrong one ends its start; process/ tests the kinds of settings."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from sharepod.agent.settings import OPTIONS as AGENT_OPTIONS
from sharepod.process.errors import SettingsError
from sharepod.webhook.settings import OPTIONS


def test_defaults_of_pods_are_settings() -> None:
    defaults = OPTIONS.parse(["--device-memory", "80Gi", "--scheduler-name", "mine"], {}).defaults
    assert (defaults.memory_only_percent, defaults.device_memory_bytes) == (10, 80 * 2**30)
    assert defaults.scheduler_name == "mine"
    assert OPTIONS.parse([], {"SHAREPOD_WEBHOOK_DEVICE_MEMORY": ""}).device_memory is None


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--device-memory", "80GB"], "--device-memory is '80GB': give the size of a device's memory, such as 80Gi"),
        (["--device-memory", "80"], "--device-memory is '80': give the size of a device's memory"),
        (
            ["--metrics-listen", "0.0.0.0:9469", "--metrics-token-file", "/t"],
            (
                "--metrics-listen is '0.0.0.0:9469', which others reach, and would not be protected: give "
                "--metrics-tls-certificate, --metrics-tls-key, or an address of 127.0.0.1"
            ),
        ),
        (["--scheduler-name", "A b"], "--scheduler-name is 'A b': give the name of a scheduler"),
    ],
)
def test_what_is_wrong_is_told(arguments: list[str], message: str) -> None:
    with pytest.raises(SettingsError) as caught:
        OPTIONS.parse(arguments, {})
    assert message in str(caught.value)


def test_a_certificate_that_is_not_there_ends_the_start_with_one_line(tmp_path: Path) -> None:
    missing = tmp_path / "missing"
    command = [sys.executable, "-m", "sharepod.webhook.main", "--certificate", missing, "--key", missing]
    environment = {key: value for key, value in os.environ.items() if not key.startswith("SHAREPOD_")}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=60)
    line = f"sharepod-webhook: webhook: {missing}: No such file or directory: name a file that the webhook can read\n"
    assert (done.returncode, done.stderr) == (2, line)


def test_its_variables_are_not_taken_for_the_agents() -> None:
    AGENT_OPTIONS.load({}, {f"{OPTIONS.prefix}PORT": "1"})
