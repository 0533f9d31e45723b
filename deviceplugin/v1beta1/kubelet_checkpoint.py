"""Reads kubelet's own checkpoint of devices: which container of which pod was given which units. Pure but for the read.

It is needed because pod-resources lists no plain init container, and names a pod without its uid. Kubelet writes this
file when it admits a pod, and reads it at its own next start. The file is no API: an entry of another shape counts as
absent. A pod that is gone stays in it until kubelet gives out devices again: a caller must check that the pod exists.
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
"""Bytes: far more than the devices of one node need."""


@dataclass(frozen=True, slots=True)
class Recorded:
    """A container (init containers too) and the units that kubelet has given it."""

    pod_uid: str
    """The uid in the pod's cgroups: for a static pod the hash of its manifest."""
    container: str
    units: frozenset[UnitId]


def read_checkpoint(directory: Path, resource: str) -> tuple[Recorded, ...]:
    """Return what the checkpoint in a directory says of a resource; nothing when it is missing or malformed."""
    try:
        # A link is not followed, and a pipe not waited for: the read must end.
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
    """Open a file for `open`. Fail on a link, and do not wait for a pipe's writer."""
    return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK)


def _units(entry: Object) -> frozenset[UnitId]:
    """Return the ids of an entry. The file lists them by NUMA node."""
    lists = [ids for ids in at(entry, "DeviceIDs").values() if isinstance(ids, list)]
    return frozenset(UnitId(unit) for ids in lists for unit in ids if isinstance(unit, str))
