"""The device plugin's settings, one frozen value: flag --cdi-directory = environment SHAREPOD_PLUGIN_CDI_DIRECTORY."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from sharepod.deviceplugin.core.unit import RESOURCE, SPARE_PERCENT_MAX
from sharepod.process.errors import SettingsError
from sharepod.process.kinds import FILE, LOG_FORMAT, LOG_LEVEL, PATH, WORDS, choice, percent, text
from sharepod.process.options import Options
from sharepod.process.setting import Kind, setting

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_UUID: Final = re.compile(r"(GPU|MIG)-[0-9A-Za-z/-]{1,79}")


def _read_offer(value: object) -> frozenset[str]:
    """Return the UUIDs in the value of `offer`. Raises ValueError for a word that is no UUID."""
    uuids = frozenset(WORDS.read(value))
    for uuid in sorted(uuids):
        if not _UUID.fullmatch(uuid):
            raise ValueError(f"{uuid!r} is no UUID, give them as `nvidia-smi -L` has them, with commas")
    return uuids


@dataclass(frozen=True, slots=True)
class Settings:
    """How the device plugin of this node runs."""

    node_name: str = setting("", text(), "Name of this node, as the API server has it. Required.")
    agent_socket: Path = setting(Path("/run/sharepod/agent.sock"), PATH, "Socket of the node's agent.")
    state_directory: Path = setting(Path("/var/lib/sharepod"), PATH, "Directory of the allocations; survives reboots.")
    kubelet_directory: Path = setting(Path("/var/lib/kubelet"), PATH, "Kubelet's own directory.")
    cdi_directory: Path = setting(Path("/var/run/cdi"), PATH, "Where CDI files of shares are written.")
    wait_for: str = setting(
        "", FILE, "File that is there once the node's driver is loaded, such as /proc/driver/nvidia/version: the "
        "plugin waits for it, and says so in an Event of the node. Empty: it does not wait.",
    )  # fmt: skip
    resource: str = setting(RESOURCE, text(), "Name of the resource, of which a pod asks for percents of a device.")
    runtime_cdi: str = setting(
        "auto", choice("auto", "on"), "Whether the container runtime has CDI on. auto: by its version, which is "
        "containerd 2.0 or CRI-O 1.23 or later; on: it has, as containerd 1.7 with enable_cdi. Without CDI the plugin "
        "does not start.",
    )  # fmt: skip
    injection: str = setting(
        "preload-file", choice("preload-file", "environment"),
        "How programs load the hook: preload-file mounts /etc/ld.so.preload, environment sets LD_PRELOAD.",
    )  # fmt: skip
    devices: str = setting(
        "nvidia-runtime", choice("nvidia-runtime", "cdi"),
        "What brings device files: nvidia-runtime through NVIDIA_VISIBLE_DEVICES, or cdi from NVIDIA's files.",
    )  # fmt: skip
    offer: frozenset[str] = setting(
        frozenset(), Kind("LIST", _read_offer, lambda value: ",".join(sorted(value))), "UUIDs of the devices that pods "
        "may have shares of, separated by commas; those of other nodes may be among them. Default: all.",
    )  # fmt: skip
    limit_percent: int = setting(100, percent(1, 100), "The limit of pods that name none, in percent.")
    spare_percent: int = setting(
        0, percent(0, SPARE_PERCENT_MAX), "Units of each device that are offered beyond its 100, so that another pod "
        "can come where one yields: kubelet counts the units of a pod for as long as it is there. Needs SharePod's "
        "scheduler; with another one, pods wait on a node that is full.",
    )  # fmt: skip
    simulated_libraries: Path = setting(
        Path("/var/lib/sharepod/simgpu"), PATH, "Directory of the simulated driver on the node, for simulated devices."
    )
    kubeconfig: str = setting(
        "", FILE, "Configuration file for the API server, outside of a cluster. Default: the service account."
    )
    log_format: str = setting("json", LOG_FORMAT, "Format of the log on stderr.")
    log_level: str = setting("info", LOG_LEVEL, "Least severity that is logged.")

    @property
    def plugins_directory(self) -> Path:
        """The directory in which kubelet and its device plugins have their sockets."""
        return self.kubelet_directory / "device-plugins"

    @property
    def pod_resources_socket(self) -> Path:
        """The socket on which kubelet tells which container holds which units."""
        return self.kubelet_directory / "pod-resources" / "kubelet.sock"


def _complete(settings: Settings, _: Callable[[str], str], __: Mapping[str, str]) -> Settings:
    """Return the settings unchanged. Raises SettingsError if the node's name is missing. For `Options.complete`."""
    if not settings.node_name:
        raise SettingsError(
            "no node name: give --node-name or SHAREPOD_PLUGIN_NODE_NAME (spec.nodeName by the downward API)"
        )
    return settings


OPTIONS: Final = Options(
    Settings,
    program="sharepod-deviceplugin",
    purpose="Offer shares of this node's GPUs to kubelet, and give them to containers.",
    prefix="SHAREPOD_PLUGIN_",
    complete=_complete,
)
