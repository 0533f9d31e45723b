"""Turns what a pod asks for in another system's words into our values, and reads its numbers exactly. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from sharepod.agent.shares.share import DEVICES_MAX, MIB
from sharepod.deviceplugin.core.terms import MEMORY_MOST_BYTES, TermsError, quantity_bytes, shown
from sharepod.kube.pod import read_draft

if TYPE_CHECKING:
    from sharepod.kube.pod import Container, Pod

WHOLE_GPU: Final = "nvidia.com/gpu"
_DECIMAL: Final = re.compile(r"([0-9]{0,4})(?:\.([0-9]{0,32}))?")
_NAME: Final = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")


class Refused(Exception):
    """The pod asks for something impossible. The text is one line: what is wrong, the limit, the remedy."""


@dataclass(frozen=True, slots=True)
class Defaults:
    """The operator's values for what another system's words leave open."""

    memory_only_percent: int = 10
    """Compute of a container that asks for memory alone, where `device_memory_bytes` is not given."""
    device_memory_bytes: int | None = None
    """Memory of one device, on the nodes that such pods run on."""
    scheduler_name: str = "default-scheduler"
    """The scheduler of pods that were written for another system's scheduler."""

    def percent_of_memory(self, memory_bytes: int) -> int:
        """Return the compute, in per cent of each device, of a container that asks for this memory alone.

        It is the same part of a device as the memory, rounded up, or `memory_only_percent` if that part is not known.
        """
        if self.device_memory_bytes is None:
            return self.memory_only_percent
        return max(1, min(100, -(-memory_bytes * 100 // self.device_memory_bytes)))


@dataclass(frozen=True, slots=True)
class Ask:
    """One container's share."""

    container: Container
    percent: int
    """1..100, of each device."""
    devices: int = 1
    memory_bytes: int | None = None
    """On each device; None: in proportion to the compute."""
    limit: int | None = None
    """percent..100, of each device; None: the node's default."""
    share_class: str | None = None
    """None: the pod's own class, else the default."""
    drop: tuple[str, ...] = ()
    """Another system's resources, which have to be removed."""


@dataclass(frozen=True, slots=True)
class Found:
    """What a pod asks for in one system's words."""

    system: str
    asks: tuple[Ask, ...]
    warnings: tuple[str, ...] = ()


def read_named(item: object, resource: str = "") -> Pod:
    """Return the pod in a request's JSON; `resource` is the resource that its units count.

    Raises Refused for a container's name that Kubernetes does not allow: names go into errors and annotations.
    """
    pod = read_draft(item, resource)
    for container in pod.all_containers:
        if not _NAME.fullmatch(container.name):
            key, index = container.place
            where = f"spec.{key}[{index}].name"
            raise Refused(f"{where} is no name of a container: give lower case letters, digits and dashes")
    return pod


def percentage(what: str, text: str) -> int:
    """Return a decimal fraction such as 0.25 in whole per cent.

    Raises Refused for any other text, and for parts of a per cent; the error begins with `what`.
    """
    match = _DECIMAL.fullmatch(text)
    if match is None or text in ("", "."):
        raise Refused(f"{what} is {shown(text)}: give a decimal number such as 0.5")
    whole, part = int(match[1] or 0), (match[2] or "").rstrip("0")
    if len(part) > 2:
        near = whole * 100 + int(part[:2])
        remedy = f"{near / 100:.2f} or {(near + 1) / 100:.2f}" if near else "0.01 or more"
        raise Refused(f"{what} is {shown(text)}, finer than 1 %: give {remedy}")
    return whole * 100 + int(part.ljust(2, "0"))


def number(what: str, text: str, least: int, most: int) -> int:
    """Return the whole number in `text`. Raises Refused unless it is `least` to `most` in plain digits.

    The error begins with `what`.
    """
    if not re.fullmatch(r"[0-9]{1,18}", text) or not least <= int(text) <= most:
        raise Refused(f"{what} is {shown(text)}: give a whole number from {least} to {most}")
    return int(text)


def amount(container: Container, resource: str, most: int) -> int | None:
    """Return how much a container asks for of another system's resource, 0 to `most`; None: nothing. Raises Refused.

    The API server may write 3000 as 3k.
    """
    text = container.resource(resource)
    if text is None:
        return None
    what = f"{resource} of container {container.name}"
    if container.requests.get(resource, text) != text or resource not in container.limits:
        raise Refused(f"{what} differs between its requests and its limits: give it under limits alone")
    try:
        found = quantity_bytes(text)
    except TermsError:
        found = -1
    if not 0 <= found <= most:
        raise Refused(f"{what} is {shown(text)}: give a whole number, at most {most}")
    return found


def devices(what: str, text: str) -> int:
    """Return the number of devices in `text`, 1 to DEVICES_MAX. Raises Refused; the error begins with `what`."""
    return number(what, text, 1, DEVICES_MAX)


def mebibytes(what: str, text: str) -> int:
    """Return the memory size in `text`, a number of MiB, in bytes. Raises Refused; the error begins with `what`."""
    return number(what, text, 1, MEMORY_MOST_BYTES // MIB) * MIB


def no_whole_devices(pod: Pod, system: str) -> None:
    """Raise Refused when a pod that asks for a part of a device in `system`'s words also asks for whole devices."""
    for container in pod.all_containers:
        if container.resource(WHOLE_GPU) is not None:
            raise Refused(
                f"container {container.name} asks for {WHOLE_GPU} in a pod that asks {system} for a part of a device: "
                "give one of the two"
            )
