"""Test the device plugin's own settings, and how a wrong setting ends its start."""

import subprocess
import sys

import pytest

from sharepod.deviceplugin.settings import OPTIONS
from sharepod.process.errors import SettingsError

NODE = {"SHAREPOD_PLUGIN_NODE_NAME": "n1"}


def test_what_is_given_is_taken() -> None:
    environment = {**NODE, "SHAREPOD_PLUGIN_SPARE_PERCENT": "400", "SHAREPOD_PLUGIN_OFFER": "GPU-1, MIG-2"}
    settings = OPTIONS.parse([], environment)
    assert (settings.node_name, settings.spare_percent, settings.offer) == ("n1", 400, {"GPU-1", "MIG-2"})


@pytest.mark.parametrize(
    ("arguments", "environment", "message"),
    [
        (["--spare-percent", "401"], NODE, r"--spare-percent is '401': give a percentage from 0 to 400"),
        (["--state-directory", "state"], NODE, r"--state-directory is 'state': give an absolute path"),
        (["--devices", "mig"], NODE, r"--devices is 'mig': give nvidia-runtime or cdi"),
        (["--offer", "GPU-1,0"], NODE, r"--offer is 'GPU-1,0': '0' is no UUID, give them as `nvidia-smi -L` has them"),
        ([], {}, r"no node name: give --node-name or SHAREPOD_PLUGIN_NODE_NAME"),
    ],
)
def test_what_is_wrong_is_told(arguments: list[str], environment: dict[str, str], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        OPTIONS.parse(arguments, environment)


def test_the_process_says_it_in_one_line() -> None:
    command = [sys.executable, "-m", "sharepod.deviceplugin.main", "--node-name", "n1", "--state-directory", "/proc/x"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert done.stderr.startswith("sharepod-deviceplugin: state directory /proc/x: ")
