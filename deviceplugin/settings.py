"""The device plugin's settings, one frozen value: flag --state-directory = environment SHAREPOD_PLUGIN_STATE_DIRECTORY.

A flag beats the environment. Nothing else in the plugin reads either.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from sharepod.agent.errors import SettingsError
from sharepod.agent.flags import read_flags
from sharepod.deviceplugin.unit import SPARE_PERCENT_MAX

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

PREFIX: Final = "SHAREPOD_PLUGIN_"


@dataclass(frozen=True, slots=True)
class Settings:
    """How the device plugin of this node runs."""

    node_name: str
    agent_socket: Path = Path("/run/sharepod/agent.sock")
    state_directory: Path = Path("/var/lib/sharepod")
    kubelet_directory: Path = Path("/var/lib/kubelet")
    cdi_directory: Path = Path("/var/run/cdi")
    resource: str = "sharepod.io/gpu"
    runtime_cdi: str = "auto"
    injection: str = "preload-file"
    devices: str = "nvidia-runtime"
    offer: frozenset[str] = frozenset()
    limit_percent: int = 100
    spare_percent: int = 0
    simulated_libraries: Path = Path("/var/lib/sharepod/simgpu")
    kubeconfig: str = ""
    log_format: str = "json"
    log_level: str = "info"

    @property
    def plugins_directory(self) -> Path:
        """Where kubelet and its device plugins have their sockets."""
        return self.kubelet_directory / "device-plugins"

    @property
    def pod_resources_socket(self) -> Path:
        """Where kubelet tells who holds what."""
        return self.kubelet_directory / "pod-resources" / "kubelet.sock"


_DOCS: Final = {
    "node_name": "Name of this node, as the API server has it. Required.",
    "agent_socket": "Socket of the node's agent.",
    "state_directory": "Directory of the allocations; survives reboots.",
    "kubelet_directory": "Kubelet's own directory.",
    "cdi_directory": "Where CDI files of shares are written.",
    "resource": "Name of the resource, of which a pod asks for percents of a device.",
    "runtime_cdi": "Whether the container runtime has CDI on. auto: by its version, which is containerd 2.0 or CRI-O "
    "1.23 or later; on: it has, as containerd 1.7 with enable_cdi. Without CDI the plugin does not start.",
    "injection": "How programs load the hook: preload-file mounts /etc/ld.so.preload, environment sets LD_PRELOAD.",
    "devices": "Who brings device files: nvidia-runtime through NVIDIA_VISIBLE_DEVICES, or cdi from NVIDIA's files.",
    "offer": "UUIDs of the devices that pods may have shares of, separated by commas; those of other nodes may be "
    "among them. Default: all.",
    "limit_percent": "The limit of pods that name none, in percent.",
    "spare_percent": "Units of each device that are offered beyond its 100, 0 to 400, so that another pod can come "
    "where one yields: kubelet counts the units of a pod for as long as it is there. Needs SharePod's scheduler; with "
    "another one, pods wait on a node that is full.",
    "simulated_libraries": "Directory of the simulated driver on the node, for simulated devices.",
    "kubeconfig": "Configuration file for the API server, outside of a cluster. Default: the service account.",
    "log_format": "Format of the log on stderr: text or json.",
    "log_level": "Least severity that is logged: debug, info, warning or error.",
}
_UUID: Final = re.compile(r"(GPU|MIG)-[0-9A-Za-z/-]{1,79}")
_CHOICES: Final[dict[str, tuple[str, ...]]] = {
    "runtime_cdi": ("auto", "on"),
    "injection": ("preload-file", "environment"),
    "devices": ("nvidia-runtime", "cdi"),
    "log_format": ("text", "json"),
    "log_level": ("debug", "info", "warning", "error"),
}


def parse_settings(arguments: Sequence[str], environment: Mapping[str, str]) -> Settings:
    """Return the settings from flags and environment. Raises SettingsError."""
    parser = ("sharepod-deviceplugin", "Kubelet's way to shares.")
    values: dict[str, Any] = read_flags(parser, PREFIX, _DOCS, _read, arguments, environment)
    if not values.get("node_name"):
        raise SettingsError(f"no node name: give --node-name or {PREFIX}NODE_NAME (spec.nodeName by the downward API)")
    return Settings(**values)


def _read(name: str, text: str, where: str) -> object:
    if name in _CHOICES and text not in _CHOICES[name]:
        raise SettingsError(f"{where} is {text!r}: give {', '.join(_CHOICES[name])}")
    if name == "limit_percent":
        if not text.isdecimal() or not 1 <= int(text) <= 100:
            raise SettingsError(f"{where} is {text!r}: give a percentage from 1 to 100")
        return int(text)
    if name == "spare_percent":
        if not text.isascii() or not text.isdecimal() or len(text) > 3 or int(text) > SPARE_PERCENT_MAX:
            raise SettingsError(f"{where} is {text!r}: give a percentage from 0 to {SPARE_PERCENT_MAX}")
        return int(text)
    if name == "offer":
        uuids = frozenset(word.strip() for word in text.split(",") if word.strip())
        for uuid in uuids:
            if not _UUID.fullmatch(uuid):
                raise SettingsError(f"{where} names {uuid!r}: give UUIDs as `nvidia-smi -L` has them, with commas")
        return uuids
    if name.endswith(("directory", "socket", "libraries")):
        if not Path(text).is_absolute():
            raise SettingsError(f"{where} is {text!r}: give an absolute path")
        return Path(text)
    return text
