"""Kubelet's own checkpoint of devices: which container of which pod was given which units. Pure but for the read.

Pod-resources lists no plain init container, and names a pod without its uid. Kubelet writes this file when it admits a
pod, for its own next start. It is no API: what has another shape counts as absent. A pod that is gone stays in it until
kubelet gives out devices again, so a reader asks first whether the pod is there.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from sharepod.deviceplugin.core.unit import UnitId
from sharepod.kube.objects import Object, at, entries, text

if TYPE_CHECKING:
    from pathlib import Path

NAME: Final = "kubelet_internal_checkpoint"
SIZE_MAX: Final = 16 * 2**20
"""Far more than the devices of one node need."""


@dataclass(frozen=True, slots=True)
class Recorded:
    """A container, init containers too, and the units that kubelet has given it."""

    pod_uid: str
    """What names the pod's cgroups: of a static pod the hash of its manifest."""
    container: str
    units: frozenset[UnitId]


def read_checkpoint(directory: Path, resource: str) -> tuple[Recorded, ...]:
    """Return what the checkpoint in a directory says of a resource; nothing when it is not there or malformed."""
    try:
        # Neither a link nor a pipe: the read must end.
        with open(directory / NAME, "rb", opener=_open_plainly) as file:
            data = file.read(SIZE_MAX + 1) or b""
        content = json.loads(data) if len(data) <= SIZE_MAX else None
    except (OSError, ValueError, RecursionError):
        return ()
    found = entries(at(content if isinstance(content, dict) else {}, "Data"), "PodDeviceEntries")
    return tuple(
        Recorded(text(entry, "PodUID"), text(entry, "ContainerName"), _units(entry))
        for entry in found
        if text(entry, "ResourceName") == resource
    )


def _open_plainly(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK)


def _units(entry: Object) -> frozenset[UnitId]:
    """Return the ids, which stand under the NUMA node that they are of."""
    lists = [ids for ids in at(entry, "DeviceIDs").values() if isinstance(ids, list)]
    return frozenset(UnitId(unit) for ids in lists for unit in ids if isinstance(unit, str))
