"""Writes the CDI files that tell the runtime what `sharepod.io/share=<id>` means, and reads NVIDIA's own files.

A file is written under another name in the same directory and then renamed: the runtime watches the directory, and does
not notice a file that is renamed into it from another one. Each share has one file, which is removed with the share:
the more files there are, the longer the runtime takes to notice a change.
"""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import yaml

from sharepod.deviceplugin.errors import PluginError
from sharepod.process import files

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from sharepod.deviceplugin.cdi.injection import ContainerEdits, Mount

log = logging.getLogger("sharepod.deviceplugin")

KIND: Final = "sharepod.io/share"
VERSION: Final = "0.5.0"
DIRECTORIES: Final = (Path("/etc/cdi"), Path("/var/run/cdi"))
NVIDIA_KIND: Final = "nvidia.com/gpu"
_PREFIX: Final = "sharepod.io-share-"
_EDITS: Final = ("deviceNodes", "mounts", "hooks")
"""The lists of `containerEdits` that are merged without repetitions."""


def name_of(share_id: str) -> str:
    """Return the CDI name of a share's device."""
    return f"{KIND}={share_id}"


class CdiDirectory:
    """Our files in the directory that the runtime watches."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def write(self, share_id: str, edits: ContainerEdits, device_edits: Sequence[Mapping[str, Any]] = ()) -> None:
        """Write the share's file. `device_edits`, of other CDI files, are copied into it. Raises PluginError."""
        path = self._path(share_id)
        device = {"name": share_id, "containerEdits": _container_edits(edits, device_edits)}
        try:
            self._directory.mkdir(parents=True, exist_ok=True)
            files.replace(path, json.dumps({"cdiVersion": VERSION, "kind": KIND, "devices": [device]}))
        except OSError as error:
            raise PluginError(f"{path} cannot be written: {error.strerror}: make room in {self._directory}") from None

    def written_unix_s(self, share_id: str) -> float | None:
        """Return when the share's file was last written: at every start of its container. None: there is no file."""
        try:
            return self._path(share_id).stat().st_mtime
        except OSError:
            return None

    def remove(self, share_id: str) -> None:
        """Remove a share's file. A missing file is no error."""
        self._path(share_id).unlink(missing_ok=True)

    def remove_others(self, keep: Iterable[str]) -> None:
        """Remove our files except those of the shares `keep`; also the half-written files that a crash left."""
        kept = {self._path(share_id) for share_id in keep}
        for path in self._directory.glob(f"{_PREFIX}*"):
            if path not in kept:
                path.unlink(missing_ok=True)

    def _path(self, share_id: str) -> Path:
        """Return where the file of a share is."""
        return self._directory / f"{_PREFIX}{share_id}.json"


def nvidia_edits(devices: Sequence[tuple[str, int]], directories: Iterable[Path] = DIRECTORIES) -> list[dict[str, Any]]:
    """Return the `containerEdits` of NVIDIA's CDI files for a container that gets `devices`, pairs (UUID, index).

    A file names devices by UUID or index. From each file that names some of `devices` come its common edits, then those
    of each such device. Raises PluginError if a device is in no file.
    """
    found: list[dict[str, Any]] = []
    missing = list(devices)
    for content in _nvidia_files(directories):
        named = {str(device.get("name")): device.get("containerEdits", {}) for device in content.get("devices", [])}
        here = [(uuid, index) for uuid, index in missing if uuid in named or str(index) in named]
        if not here:
            continue
        found.append(content.get("containerEdits", {}))
        found += [named.get(uuid) or named[str(index)] for uuid, index in here]
        missing = [device for device in missing if device not in here]
    if missing:
        places = " and ".join(str(directory) for directory in directories)
        raise PluginError(
            f"no CDI file of kind {NVIDIA_KIND} in {places} has device {missing[0][0]}: "
            "run `nvidia-ctk cdi generate`, or set devices to nvidia-runtime"
        )
    return found


def _nvidia_files(directories: Iterable[Path]) -> Iterable[dict[str, Any]]:
    """Yield the content of each of NVIDIA's CDI files. A file that cannot be read is logged and left out."""
    for directory in directories:
        for path in sorted([*directory.glob("*.yaml"), *directory.glob("*.json")]):
            try:
                content = yaml.safe_load(path.read_text(encoding="utf-8"))
            except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
                log.warning("CDI file skipped", extra={"file": str(path), "cause": str(error).split("\n")[0]})
                continue
            if isinstance(content, dict) and content.get("kind") == NVIDIA_KIND:
                yield content


def _container_edits(edits: ContainerEdits, others: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return edits in CDI's form: first `others`, those of other files, without repetitions; then ours."""
    merged: dict[str, Any] = {"env": [], "deviceNodes": [], "mounts": [], "hooks": []}
    for other in others:
        merged["env"] += other.get("env") or []
        for key in _EDITS:
            merged[key] += [item for item in other.get(key) or [] if item not in merged[key]]
    merged["env"] += [f"{name}={value}" for name, value in edits.variables.items()]
    merged["mounts"] += [_mount(mount) for mount in edits.mounts]
    merged["deviceNodes"] += [
        {"path": node.container, "hostPath": node.host, "permissions": node.permissions} for node in edits.devices
    ]
    return {key: value for key, value in merged.items() if value}


def _mount(mount: Mount) -> dict[str, Any]:
    """Return a mount in CDI's form."""
    access = "ro" if mount.read_only else "rw"
    return {"hostPath": mount.host, "containerPath": mount.container, "options": [access, "nosuid", "nodev", "bind"]}
