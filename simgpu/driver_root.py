"""Lay out the simulated driver as NVIDIA's container toolkit expects to find an installed one.

    SIMGPU_DEVICES=2xH100 python -m sharepod.simgpu.driver_root DIR
    nvidia-ctk cdi generate --driver-root=DIR

DIR gets the libraries under the driver's version, the names that lead to them, the present SIMGPU_* settings in a file
(the toolkit's hooks have no environment), an nvidia-smi that lists the GPUs, and the device nodes, which only root may
make. For GPUs in MIG mode DIR/proc/driver has the capabilities. The toolkit reads only /proc/driver, so bind
DIR/proc/driver over it, in a mount namespace of its own.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import platform
import shutil
import stat
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from sharepod.simgpu import LIBRARY_DIR

LIBRARIES: Final = Path("usr", "lib", f"{platform.machine()}-linux-gnu")
GPU_MAJOR, UVM_MAJOR, CAPS_MAJOR = 195, 235, 236
"""Major numbers. The first is registered; a real driver gets the other two when it is loaded."""
CONFIG_MINOR, MONITOR_MINOR, FIRST_MINOR = 1, 2, 3
GPU_INSTANCES, COMPUTE_INSTANCES = 15, 8
"""The most GPU instances of a GPU, and compute instances of each. With fixed room for all of them a capability keeps
its minor number when others come and go."""


class LayoutError(Exception):
    """The driver cannot be laid out. The text says why."""


@dataclass(frozen=True, slots=True)
class Gpu:
    """A GPU of the machine.

    Attributes:
        minor: the minor number of its node.
        line: what ``nvidia-smi -L`` prints about it.
        mig: whether it is in MIG mode.
        instances: the ids of its GPU instances.
    """

    minor: int
    line: str
    mig: bool
    instances: tuple[int, ...]


class Nvml:
    """The simulated NVML, in this process. Raises OSError where it is not built, LayoutError where it fails."""

    def __init__(self) -> None:
        self._library = ctypes.CDLL(str(LIBRARY_DIR / "libnvidia-ml.so.1"))
        if code := self._library.nvmlInit_v2():
            raise LayoutError(f"NVML does not start (code {code}): see SIMGPU_DEVICES and SIMGPU_STATE")

    def text(self, name: str, *arguments: object) -> str:
        """Return the text that a call writes. Raises LayoutError."""
        text = ctypes.create_string_buffer(96)
        if code := self._library[name](*arguments, text, 96):
            raise LayoutError(f"{name} fails (code {code})")
        return text.value.decode()

    def number(self, name: str, *arguments: object) -> int:
        """Return the number that a call writes, or 0 if it fails."""
        value, pending = ctypes.c_uint(), ctypes.c_uint()  # only nvmlDeviceGetMigMode writes the second one
        self._library[name](*arguments, ctypes.byref(value), ctypes.byref(pending))
        return value.value

    def handles(self, name: str, *arguments: object) -> list[ctypes.c_void_p]:
        """Return the handles that a call returns for 0, 1, … until it fails."""
        found: list[ctypes.c_void_p] = []
        handle = ctypes.c_void_p()
        while not self._library[name](*arguments, len(found), ctypes.byref(handle)):
            found.append(handle)
            handle = ctypes.c_void_p()
        return found


def machine() -> tuple[str, list[Gpu]]:
    """Return the driver's version and the GPUs. Makes the state file if there is none. Raises LayoutError, OSError."""
    os.environ.pop("SIMGPU_DEVICE_NODES", None)  # the nodes are not made yet
    nvml = Nvml()
    gpus = []
    for index, gpu in enumerate(nvml.handles("nvmlDeviceGetHandleByIndex_v2")):
        name, uuid = nvml.text("nvmlDeviceGetName", gpu), nvml.text("nvmlDeviceGetUUID", gpu)
        parts = nvml.handles("nvmlDeviceGetMigDeviceHandleByIndex", gpu)
        gpus.append(
            Gpu(
                nvml.number("nvmlDeviceGetMinorNumber", gpu),
                f"GPU {index}: {name} (UUID: {uuid})\n",
                bool(nvml.number("nvmlDeviceGetMigMode", gpu)),
                tuple(nvml.number("nvmlDeviceGetGpuInstanceId", part) for part in parts),
            )
        )
    return nvml.text("nvmlSystemGetDriverVersion"), gpus


def capabilities(gpus: list[Gpu]) -> dict[str, int]:
    """Return the MIG capabilities by name, with the minor numbers of their nodes; none if no GPU is in MIG mode."""
    if not any(gpu.mig for gpu in gpus):
        return {}
    found = {"config": CONFIG_MINOR, "monitor": MONITOR_MINOR}
    for gpu in gpus:
        for instance in gpu.instances:
            minor = FIRST_MINOR + (gpu.minor * GPU_INSTANCES + instance) * (1 + COMPUTE_INSTANCES)
            found[f"gpu{gpu.minor}/gi{instance}/access"] = minor
            found[f"gpu{gpu.minor}/gi{instance}/ci0/access"] = minor + 1
    return found


def nodes(gpus: list[Gpu]) -> dict[str, tuple[int, int]]:
    """Return the device nodes below /dev with their major and minor numbers."""
    return {
        **{f"nvidia{gpu.minor}": (GPU_MAJOR, gpu.minor) for gpu in gpus},
        "nvidiactl": (GPU_MAJOR, 255),
        "nvidia-modeset": (GPU_MAJOR, 254),
        "nvidia-uvm": (UVM_MAJOR, 0),
        "nvidia-uvm-tools": (UVM_MAJOR, 1),
        **{f"nvidia-caps/nvidia-cap{minor}": (CAPS_MAJOR, minor) for minor in capabilities(gpus).values()},
    }


def fresh(path: Path) -> Path:
    """Make the folder of a file, and remove an old file, which a program may have mapped; return the path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    return path


def lay_out_files(root: Path, version: str, gpus: list[Gpu], settings: str) -> None:
    """Lay out everything but the device nodes below ``root``. Raises OSError.

    ``version`` is the driver's. ``settings``: the text of the file in which the libraries find the settings.
    """
    libraries = root / LIBRARIES
    for name in ("libcuda.so", "libnvidia-ml.so"):
        shutil.copyfile(LIBRARY_DIR / f"{name}.1", fresh(libraries / f"{name}.{version}"))
        fresh(libraries / f"{name}.1").symlink_to(f"{name}.{version}")
        fresh(libraries / name).symlink_to(f"{name}.1")
    fresh(libraries / "simgpu.conf").write_text(settings, encoding="utf-8")
    tool = fresh(root / "usr/bin/nvidia-smi")
    tool.write_text("#!/bin/sh\ncat <<'END'\n" + "".join(gpu.line for gpu in gpus) + "END\n", encoding="utf-8")
    tool.chmod(0o755)
    found = capabilities(gpus)
    shutil.rmtree(root / "proc/driver", ignore_errors=True)
    for name, minor in found.items():
        gpu, _, instance = name.partition("/")
        path = f"{gpu}/mig/{instance}" if instance else f"mig/{name}"
        text = f"DeviceFileMinor: {minor}\nDeviceFileMode: 292\nDeviceFileModify: 1\n"  # 292 is 0o444
        fresh(root / "proc/driver/nvidia/capabilities" / path).write_text(text, encoding="utf-8")
    if found:
        minors = "".join(f"{name} {minor}\n" for name, minor in found.items())
        fresh(root / "proc/driver/nvidia-caps/mig-minors").write_text(minors, encoding="utf-8")


def make_nodes(root: Path, gpus: list[Gpu]) -> None:
    """Make the device nodes. Raises PermissionError: only root may."""
    for name, numbers in nodes(gpus).items():
        node = fresh(root / "dev" / name)
        os.mknod(node, stat.S_IFCHR, os.makedev(*numbers))
        node.chmod(0o666)  # whatever the umask is


def main() -> int:
    """Lay out the driver in the directory of the command line; return the exit code, 1 after an error."""
    parser = argparse.ArgumentParser(
        prog="python -m sharepod.simgpu.driver_root",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("directory", type=Path, metavar="DIR", help="where; what an older layout left is replaced")
    root = parser.parse_args().directory
    settings = {name: value for name, value in sorted(os.environ.items()) if name.startswith("SIMGPU_") and value}
    try:
        version, gpus = machine()
        lay_out_files(root, version, gpus, "".join(f"{name}={value}\n" for name, value in settings.items()))
        said = f"driver {version} with {len(gpus)} GPUs in {root}"
        try:
            make_nodes(root, gpus)
        except PermissionError:
            said += ", without device nodes: only root may make them"
    except (LayoutError, OSError) as error:
        sys.stderr.write(f"driver_root: {error}\n")
        return 1
    sys.stdout.write(f"{said}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
