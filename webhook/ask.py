"""What a pod asks for in another system's words, as our values; and the exact readers of its numbers. Pure."""

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
    """The compute of a container that asks for memory alone, if `device_memory_bytes` is None."""
    device_memory_bytes: int | None = None
    """The memory of one device, on the nodes that such pods run on; None: not given."""
    scheduler_name: str = "default-scheduler"
    """The scheduler of pods that were written for another system's scheduler."""

    def percent_of_memory(self, memory_bytes: int) -> int:
        """Return the compute, in per cent of each device, of a container that asks for this memory alone.

        It is the same part of a device as the memory, rounded up. If that part is not known, it is
        `memory_only_percent`.
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
    """The names of another system's resources, which have to be removed from the container."""


@dataclass(frozen=True, slots=True)
class Found:
    """What a pod asks for in one system's words."""

    system: str
    asks: tuple[Ask, ...]
    warnings: tuple[str, ...] = ()


def read_named(item: object, resource: str = "") -> Pod:
    """Return the pod in a request's JSON; its units are what it asks for of `resource`.

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
    """Return a decimal fraction such as 0.25 in whole per cent. `what` is the begin of the error.

    Raises Refused for any other text, and for parts of a per cent.
    """
    match = _DECIMAL.fullmatch(text)
    if match is None or text in ("", "."):
        raise Refused(f"{what} is {shown(text)}: give a decimal number such as 0.5")
    whole, decimals = int(match[1] or 0), (match[2] or "").rstrip("0")
    if len(decimals) > 2:
        below = whole * 100 + int(decimals[:2])
        remedy = f"{below / 100:.2f} or {(below + 1) / 100:.2f}" if below else "0.01 or more"
        raise Refused(f"{what} is {shown(text)}, finer than 1 %: give {remedy}")
    return whole * 100 + int(decimals.ljust(2, "0"))


def number(what: str, text: str, least: int, most: int) -> int:
    """Return the whole number in `text`. `what` is the begin of the error.

    Raises Refused unless it is from `least` to `most`, in plain digits.
    """
    if not re.fullmatch(r"[0-9]{1,18}", text) or not least <= int(text) <= most:
        raise Refused(f"{what} is {shown(text)}: give a whole number from {least} to {most}")
    return int(text)


def amount(container: Container, resource: str, most: int) -> int | None:
    """Return how much a container asks for of another system's resource, 0 to `most`; None: the resource is not named.

    Raises Refused. The amount is read as a quantity, because the API server may write 3000 as 3k.
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
    """Return the number of devices in `text`, 1 to DEVICES_MAX. Raises Refused; `what` is the begin of the error."""
    return number(what, text, 1, DEVICES_MAX)


def mebibytes(what: str, text: str) -> int:
    """Return the memory size in `text`, a number of MiB, in bytes. Raises Refused; `what` is the begin of the error."""
    return number(what, text, 1, MEMORY_MOST_BYTES // MIB) * MIB


def no_whole_devices(pod: Pod, system: str) -> None:
    """Raise Refused if the pod, which asks for a part of a device in `system`'s words, also asks for whole devices."""
    for container in pod.all_containers:
        if container.resource(WHOLE_GPU) is not None:
            raise Refused(
                f"container {container.name} asks for {WHOLE_GPU} in a pod that asks {system} for a part of a device: "
                "give one of the two"
            )
