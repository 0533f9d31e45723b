"""A typo in a flag or a variable is one line that says what to write; the help names every setting."""

from __future__ import annotations

import subprocess
import sys

import pytest

from sharepod.agent.errors import SettingsError
from sharepod.deviceplugin.settings import PREFIX, parse_settings

NODE = {f"{PREFIX}NODE_NAME": "n1"}


def test_a_flag_beats_the_environment() -> None:
    settings = parse_settings(
        ["--runtime-cdi", "on"], {**NODE, f"{PREFIX}RUNTIME_CDI": "auto", f"{PREFIX}LIMIT_PERCENT": "60"}
    )
    assert (settings.node_name, settings.runtime_cdi, settings.limit_percent) == ("n1", "on", 60)
    assert settings.spare_percent == 0
    assert parse_settings([], {**NODE, f"{PREFIX}SPARE_PERCENT": "400"}).spare_percent == 400


@pytest.mark.parametrize(
    ("arguments", "environment", "message"),
    [
        (["--runtime-cdi", "off"], NODE, r"--runtime-cdi is 'off': give auto, on"),
        (["--limit-percent", "101"], NODE, r"--limit-percent is '101': give a percentage from 1 to 100"),
        (["--spare-percent", "401"], NODE, r"--spare-percent is '401': give a percentage from 0 to 400"),
        (
            [],
            {**NODE, f"{PREFIX}SPARE_PERCENT": "-1"},
            r"SHAREPOD_PLUGIN_SPARE_PERCENT is '-1': give a percentage from",
        ),
        (["--state-directory", "state"], NODE, r"--state-directory is 'state': give an absolute path"),
        ([], {**NODE, f"{PREFIX}DEVICE": "cdi"}, r"unknown environment variable SHAREPOD_PLUGIN_DEVICE: known are .*"),
        ([], {**NODE, f"{PREFIX}DEVICES": "mig"}, r"SHAREPOD_PLUGIN_DEVICES is 'mig': give nvidia-runtime, cdi"),
        ([], {**NODE, f"{PREFIX}OFFER": "GPU-1,0"}, r"SHAREPOD_PLUGIN_OFFER names '0': give UUIDs"),
        ([], {}, r"no node name: give --node-name or SHAREPOD_PLUGIN_NODE_NAME"),
    ],
)
def test_what_is_wrong_is_told(arguments: list[str], environment: dict[str, str], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        parse_settings(arguments, environment)


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (["--help"], 0, "--simulated-libraries"),
        (["--runtime-cd", "on"], 2, "sharepod-deviceplugin: unrecognized arguments: --runtime-cd on: see"),
        (["--node-name", "n1", "--state-directory", "/proc/x"], 2, "state directory /proc/x: "),
    ],
)
def test_the_process_says_it_in_one_line(arguments: list[str], code: int, text: str) -> None:
    command = [sys.executable, "-m", "sharepod.deviceplugin.main", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == code
    assert text in done.stdout + done.stderr
    assert code == 0 or done.stderr.count("\n") == 1
