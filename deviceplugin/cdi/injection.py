"""What a container gets so that its programs run in its share: mounts, variables, devices. Pure values.

Host paths are those of the node. The agent and the plugin see the files under the same paths.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

Injection = Literal["preload-file", "environment"]
"""What makes programs load the hook: the file `/etc/ld.so.preload`, or the variable `LD_PRELOAD`. The file leaves the
variable to the image and the pod."""

SHARE_PATH: Final = "/run/sharepod/share"
"""Where a program looks for its share when SHAREPOD_REGION names none: SP_REGION_DEFAULT of region/region.h."""
HOOK_PATH: Final = "/run/sharepod/hook/libsharepod.so"
PRELOAD_PATH: Final = "/etc/ld.so.preload"
PRELOAD_TEXT: Final = f"{HOOK_PATH}\n"
SIMULATED_PATH: Final = "/run/sharepod/simgpu"
SIMULATED_STATE_PATH: Final = "/run/sharepod/simgpu-state"
VISIBLE: Final = "NVIDIA_VISIBLE_DEVICES"
NO_DEVICE: Final = "void"
"""The value that makes NVIDIA's runtime add no device."""
_SLOTS_NAME: Final = "slots"


@dataclass(frozen=True, slots=True)
class Mount:
    """A bind mount of one file or directory."""

    host: str
    container: str
    read_only: bool = True


@dataclass(frozen=True, slots=True)
class DeviceNode:
    """A device file. `permissions` are letters as in device cgroups: r, w, m."""

    host: str
    container: str
    permissions: str = "rw"


@dataclass(frozen=True, slots=True)
class ContainerEdits:
    """All that is changed in a container."""

    variables: Mapping[str, str] = field(default_factory=dict)
    mounts: tuple[Mount, ...] = ()
    devices: tuple[DeviceNode, ...] = ()
    cdi: tuple[str, ...] = ()
    """Names of CDI devices: the runtime adds their edits when it creates the container."""


@dataclass(frozen=True, slots=True)
class Simulated:
    """Simulated GPUs of the node."""

    devices: str
    """The agent's SIMGPU_DEVICES, such as `2xH200`."""
    state: str
    """The path of the simulator's state file on the node."""
    libraries: str
    """Directory of the simulated driver, on the node."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where files are on the node, and how they come into containers."""

    shares_directory: str
    """The agent's directory of shares."""
    hook: str
    """The hook's file."""
    preload_file: str
    """A file that holds PRELOAD_TEXT."""
    injection: Injection = "preload-file"
    closed: bool = False
    """True: programs may not start without a usable region."""
    simulated: Simulated | None = None
    """None: real devices."""

    def share_directory(self, share_id: str) -> str:
        """Return the directory of a share. It depends on the id alone, so it is known before the share exists."""
        return f"{self.shares_directory}/{share_id}"


def edits_of(place: Place, share_id: str, devices: tuple[str, ...]) -> ContainerEdits:
    """Return the edits of a share's container. `devices` are UUIDs; empty: NVIDIA's CDI files bring the devices.

    The share's directory is mounted read-only. The one file in it that programs write is mounted over it.
    """
    share = place.share_directory(share_id)
    variables: dict[str, str] = {}
    mounts = [
        Mount(share, SHARE_PATH),
        Mount(f"{share}/{_SLOTS_NAME}", f"{SHARE_PATH}/{_SLOTS_NAME}", read_only=False),
        Mount(place.hook, HOOK_PATH),
    ]
    if place.injection == "preload-file":
        mounts.append(Mount(place.preload_file, PRELOAD_PATH))
    else:
        variables["LD_PRELOAD"] = HOOK_PATH
    if place.closed:
        variables["SHAREPOD_POLICY"] = "closed"
    if place.simulated is not None:
        # The whole directory is mounted, because the simulator keeps other files beside the state file.
        directory, _, name = place.simulated.state.rpartition("/")
        mounts.append(Mount(place.simulated.libraries, SIMULATED_PATH))
        mounts.append(Mount(directory, SIMULATED_STATE_PATH, read_only=False))
        variables["SIMGPU_DEVICES"] = place.simulated.devices
        variables["SIMGPU_STATE"] = f"{SIMULATED_STATE_PATH}/{name}"
        variables["LD_LIBRARY_PATH"] = SIMULATED_PATH
        variables["CUDA_VISIBLE_DEVICES"] = ",".join(devices)  # the simulated driver has all devices of the node
    elif devices:
        variables[VISIBLE] = ",".join(devices)
    return ContainerEdits(variables, tuple(mounts))
