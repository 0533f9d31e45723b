"""Reads what a pod asks for: its units and annotations become the terms of one container's share, or one error. Pure.

An annotation is a tenant's text: its length is checked before it is read, and an error shows it in ASCII. Numbers and
quantities of memory are read exactly, without floats. The units and the memory of a container are totals, spread evenly
over its devices. The limit is a percentage of each device.
"""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from sharepod.agent.shares.share import DEVICES_MAX, ShareClass
from sharepod.deviceplugin.core.unit import MILLIPERCENT_PER_UNIT, UNITS_PER_DEVICE
from sharepod.kube.quantity import exact

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

PREFIX: Final = "sharepod.io/"
KEYS: Final = ("limit", "memory", "class", "devices", "same-device", "device", "paused")
"""Keys of a share, for all containers of a pod (`sharepod.io/limit`) or for one, which wins
(`sharepod.io/train.limit`)."""
YIELD: Final = PREFIX + "yield"
POD_KEYS: Final = ("yield",)
"""Keys that can be given only for the whole pod."""
ELSEWHERE: Final = (
    "gang", "gang-size", "gang-min", "gang-timeout", "gang-restart", "model", "device-affinity", "device-anti-affinity",
    "node",
)  # fmt: skip
"""Keys of the pod that other parts of SharePod read."""
_WRITTEN: Final = frozenset({"device", "yield", "node"})
"""The keys that the scheduler writes: no user is told to write one."""
YIELDS: Final = ("limit", "pause")
CLASSES: Final = tuple(item.name.lower() for item in ShareClass)

MEMORY_LEAST_BYTES: Final = 2**20
"""The least cap per device. No context fits into less, so the suffix was forgotten."""
MEMORY_MOST_BYTES: Final = 2**50
_TEXT_MAX: Final = 2048
"""The longest annotation that is read: room for 16 UUIDs of 64 characters, with commas."""
_SHOWN_MAX: Final = 48
"""Characters of a tenant's text that an error shows."""
_LIKENESS: Final = 0.6
"""From 0 to 1: a known word must be at least so like an unknown one to be named as the remedy. difflib's default."""

GANG_NAME: Final = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")
_PERCENT: Final = re.compile(r"[1-9][0-9]?|100")
_COUNT: Final = re.compile(r"[1-9][0-9]?")
_UUID: Final = re.compile(r"(GPU|MIG)-[0-9A-Za-z][0-9A-Za-z/-]{0,79}")


class TermsError(Exception):
    """A pod asks for something impossible. The text is one line: what is wrong, the limit, the remedy."""


@dataclass(frozen=True, slots=True)
class PodTerms:
    """The terms that one container asks for, on each of its devices."""

    devices: int
    """1..16."""
    request_millipercent: int
    limit_millipercent: int
    """request_millipercent..100000."""
    memory_limit_bytes: int | None
    """None: the share gets the same part of the device's memory as of its time."""
    share_class: str
    chosen: tuple[str, ...]
    """UUIDs from the scheduler, as many as `devices`; empty: the agent picks."""
    same_device: bool
    """All containers of the pod that set this must be on one device."""
    paused: bool
    """The user has paused the pod."""
    yields: str = ""
    """How the pod makes room for others: one of YIELDS; empty: it does not."""
    gang: str = ""
    """The pod's gang, if its members run in step; else empty: see read_gang."""

    @property
    def limit_now_millipercent(self) -> int:
        """Return the limit in effect: while the pod yields by its limit, that is the request."""
        return self.request_millipercent if self.yields == "limit" else self.limit_millipercent


def read_gang(annotations: Mapping[str, str]) -> str:
    """Return the name of the pod's gang if its members run in step; empty: the pod belongs to no such gang.

    An elastic gang has a `gang-min` below its `gang-size`. Its members do not run in step: they come, go and yield one
    by one.
    """
    name, size = annotations.get(f"{PREFIX}gang", ""), annotations.get(f"{PREFIX}gang-size")
    is_elastic = annotations.get(f"{PREFIX}gang-min", size) != size
    return name if GANG_NAME.fullmatch(name) and not is_elastic else ""


def shown(text: str) -> str:
    """Return a tenant's text for an error: quoted, in ASCII, at most _SHOWN_MAX characters of it."""
    return ascii(text) if len(text) <= _SHOWN_MAX else ascii(text[:_SHOWN_MAX]) + "…"


def read_terms(
    annotations: Mapping[str, str],
    container: str,
    units: int,
    *,
    limit_percent: int = 100,
    containers: Collection[str] = (),
) -> PodTerms:
    """Return the terms of a container that holds `units` units. Raises TermsError.

    `limit_percent` is the node's limit for containers that give none. If the request is above it, the request is the
    limit. `containers` names all containers of the pod, so that an annotation for a missing container is an error;
    empty: not checked.
    """
    given = _effective(annotations, container, containers)
    devices = _devices(given.get("devices"), units)
    request = units // devices
    same_device = _switch(given, "same-device")
    if same_device and devices > 1:
        raise TermsError(
            f"{PREFIX}same-device is for shares of one device, and {container} has {devices}: "
            f"drop it, or set {PREFIX}{container}.same-device to false"
        )
    share_class = given.get("class", "standard")
    if share_class not in CLASSES:
        raise TermsError(f"{PREFIX}class is {shown(share_class)}: {_nearest(share_class, CLASSES)}")
    return PodTerms(
        devices=devices,
        request_millipercent=request * MILLIPERCENT_PER_UNIT,
        limit_millipercent=_limit(given.get("limit"), request, limit_percent) * MILLIPERCENT_PER_UNIT,
        memory_limit_bytes=_memory(given["memory"], devices) if "memory" in given else None,
        share_class=share_class,
        chosen=_chosen(given["device"], devices) if "device" in given else (),
        same_device=same_device,
        paused=_switch(given, "paused"),
        yields=_yields(given),
        gang=read_gang(annotations),
    )


def _nearest(word: str, known: Collection[str]) -> str:
    """Return a remedy for an unknown word: the known word most like it; all known words if none is like it."""
    near = difflib.get_close_matches(word[:_SHOWN_MAX].lower(), known, 1, _LIKENESS)
    return f"did you mean {near[0]}?" if near else f"known are {', '.join(known)}"


def _effective(annotations: Mapping[str, str], container: str, containers: Collection[str]) -> dict[str, str]:
    """Return the values in effect for `container`, by key without PREFIX. `containers`: all names of the pod's.

    Raises TermsError for an unknown name under `sharepod.io/`, and for a value that is too long.
    """
    for_pod: dict[str, str] = {}
    for_container: dict[str, str] = {}
    for name, value in annotations.items():
        if not name.lower().startswith(PREFIX):  # the API server accepts upper case
            continue
        target, key = _split(name, containers)
        if len(value) > _TEXT_MAX:
            raise TermsError(f"annotation {shown(name)} has {len(value)} characters: at most {_TEXT_MAX} are read")
        if target is None:
            for_pod[key] = value
        elif target == container:
            for_container[key] = value
    return for_pod | for_container


def _split(name: str, containers: Collection[str]) -> tuple[str | None, str]:
    """Return the container that an annotation is for (None: all), and its key. Raises TermsError if either is unknown.

    `containers`: the names of the pod's containers; empty: any name is accepted.
    """
    if not name.startswith(PREFIX):
        raise TermsError(f"unknown annotation {shown(name)}: write {PREFIX} in lower case")
    container, dot, key = name.removeprefix(PREFIX).rpartition(".")
    if dot and key in POD_KEYS:
        raise TermsError(f"annotation {shown(name)} is for one container: write {PREFIX}{key}, for the whole pod")
    if key not in KEYS and (dot or key not in POD_KEYS + ELSEWHERE):
        if key == "gpu":
            raise TermsError(f"unknown annotation {shown(name)}: {PREFIX}gpu is a resource, put it under limits")
        known = [one for one in (KEYS if dot else KEYS + POD_KEYS + ELSEWHERE) if one not in _WRITTEN]
        raise TermsError(f"unknown annotation {shown(name)}: {_nearest(key, known)}")
    if not dot:
        return None, key
    if not container or (containers and container not in containers):
        remedy = _nearest(container, tuple(containers)) if containers else "put a container's name before the dot"
        raise TermsError(f"annotation {shown(name)} is for no container of the pod: {remedy}")
    return container, key


def _devices(text: str | None, units: int) -> int:
    """Return over how many devices the units are spread: as the annotation `text` says; None: by default.

    Each device gets the same whole percentage, at most 100. Raises TermsError.
    """
    if units < 1:
        raise TermsError(f"{units} units asked for: ask for 1 or more of {PREFIX}gpu")
    if text is None:
        return _devices_by_default(units)
    if not _COUNT.fullmatch(text) or int(text) > DEVICES_MAX:
        raise TermsError(f"{PREFIX}devices is {shown(text)}: give a whole number from 1 to {DEVICES_MAX}")
    devices = int(text)
    if units > devices * UNITS_PER_DEVICE:
        remedy = f"ask for at most {devices * UNITS_PER_DEVICE}"
        if units <= DEVICES_MAX * UNITS_PER_DEVICE:
            remedy += f", or set {PREFIX}devices to at least {-(-units // UNITS_PER_DEVICE)}"  # rounded up
        raise TermsError(f"{units} units are more than 100 for each of {devices} devices: {remedy}")
    if units % devices:
        below = units - units % devices
        numbers = f"{below} or {below + devices}" if below else f"{devices}"
        raise TermsError(f"{units} units do not divide evenly over {devices} devices: ask for {numbers}")
    return devices


def _devices_by_default(units: int) -> int:
    """Return 1 for a part of one device, else the number of whole devices. Raises TermsError if it is neither."""
    if units <= UNITS_PER_DEVICE:
        return 1
    devices, rest = divmod(units, UNITS_PER_DEVICE)
    if rest == 0 and devices <= DEVICES_MAX:
        return devices
    if devices >= DEVICES_MAX:
        raise TermsError(f"{units} units are more than {DEVICES_MAX} whole devices: ask for less in one container")
    remedy = f"ask for {devices * UNITS_PER_DEVICE} or {(devices + 1) * UNITS_PER_DEVICE}"
    even = next((count for count in range(devices + 1, DEVICES_MAX + 1) if units % count == 0), None)
    if even is not None:
        remedy += f", or set {PREFIX}devices to {even} for {units // even} % of each"
    raise TermsError(f"{units} units are neither a part of one device (1–100) nor whole devices: {remedy}")


def _limit(text: str | None, request: int, limit_percent: int) -> int:
    """Return the limit in per cent: as the annotation `text` says; None: the node's, or the request if that is more.

    Raises TermsError.
    """
    if text is None:
        return max(request, limit_percent)
    if not _PERCENT.fullmatch(text):
        bare = text[:-1].rstrip() if text.endswith("%") else ""
        remedy = f"write {bare}" if _PERCENT.fullmatch(bare) else "give a whole percentage, 1 to 100, without a sign"
        raise TermsError(f"{PREFIX}limit is {shown(text)}: {remedy}")
    if int(text) < request:
        raise TermsError(
            f"{PREFIX}limit {text} % is below the request {request} % of each device: "
            "raise the limit or lower the request"
        )
    return int(text)


def _memory(text: str, devices: int) -> int:
    """Return the cap on each device in bytes: an even part of the total `text`, rounded down. Raises TermsError."""
    per_device = quantity_bytes(text) // devices
    if MEMORY_LEAST_BYTES <= per_device <= MEMORY_MOST_BYTES:
        return per_device
    each = f", which is {per_device} bytes on each of {devices} devices" if devices > 1 else f", {per_device} bytes"
    raise TermsError(f"{PREFIX}memory is {shown(text)}{each}, outside 1Mi–1Pi: give a size such as 10Gi")


def quantity_bytes(text: str) -> int:
    """Return a Kubernetes quantity in bytes. Raises TermsError for any other text and for a fraction of a byte."""
    number = exact(text)
    if number is None:
        raise TermsError(f"{PREFIX}memory is {shown(text)}, no quantity: give a size such as 10Gi or 1.5Gi")
    if number.denominator != 1:
        raise TermsError(f"{PREFIX}memory is {shown(text)}, no whole number of bytes: give a size such as 10Gi")
    return number.numerator


def _chosen(text: str, devices: int) -> tuple[str, ...]:
    """Return the UUIDs that the scheduler wrote, one for each of the `devices` devices. Raises TermsError."""
    uuids = tuple(text.split(","))
    for uuid in uuids:
        if not _UUID.fullmatch(uuid):
            raise TermsError(
                f"{PREFIX}device names {shown(uuid)}, no UUID of a device: the scheduler writes it, leave it out"
            )
    if len(set(uuids)) != len(uuids):
        raise TermsError(f"{PREFIX}device names a device twice: the scheduler writes it, leave it out")
    if len(uuids) != devices:
        raise TermsError(
            f"{PREFIX}device names {len(uuids)} devices and {devices} are asked for: "
            "the scheduler writes it, leave it out"
        )
    return uuids


def _yields(given: Mapping[str, str]) -> str:
    """Return how the pod yields: one of YIELDS; empty: it does not. Raises TermsError."""
    text = given.get("yield", "")
    if "yield" in given and text not in YIELDS:
        raise TermsError(f"{YIELD} is {shown(text)}, neither limit nor pause: the scheduler writes it, leave it out")
    return text


def _switch(given: Mapping[str, str], key: str) -> bool:
    """Tell whether an annotation is "true". One that is missing is false. Raises TermsError."""
    text = given.get(key, "false")
    if text not in ("true", "false"):
        raise TermsError(f'{PREFIX}{key} is {shown(text)}: give "true" or "false"')
    return text == "true"
