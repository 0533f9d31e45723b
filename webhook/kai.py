"""Reads KAI's and Run:ai's words: annotations of the pod, for one of its containers. Pure.

In these systems `gpu-fraction` is a part of a device's memory, and of its compute.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from sharepod.deviceplugin.core.terms import shown
from sharepod.webhook.ask import Ask, Defaults, Found, Refused, devices, mebibytes, no_whole_devices, number, percentage

if TYPE_CHECKING:
    from sharepod.kube.pod import Container, Pod

SYSTEM: Final = "KAI"
FRACTION: Final = "gpu-fraction"
MEMORY: Final = "gpu-memory"
DEVICES: Final = "gpu-fraction-num-devices"
CONTAINER: Final = "gpu-fraction-container-name"
COMPUTE: Final = "gpu-sm-percentage"
LENT: Final = ("gpu-fraction.limit", "gpu-memory.limit")
"""Annotations that let a pod use free memory beyond its request; LENT_VARIABLE does the same."""
LENT_VARIABLE: Final = "RUNAI_GPU_MEMORY_LIMIT"
CORES: Final = "gpu-sm-cores"
KEYS: Final = (FRACTION, MEMORY, DEVICES, CONTAINER, COMPUTE, *LENT, CORES)
WRITTEN_BY_KAI: Final = "nvidia.com/container."
"""The prefix of annotations that KAI's own webhook writes."""


def find(pod: Pod, defaults: Defaults) -> Found | None:
    """Return what a pod asks for in KAI's words; None: nothing. Raises Refused."""
    given = {key: pod.annotations[key] for key in KEYS if key in pod.annotations}
    if not given:
        return None
    container = _container(pod, given)
    _check(pod, container, given)
    count = devices(f"annotation {DEVICES}", given[DEVICES]) if DEVICES in given else 1
    limit = number(f"annotation {COMPUTE}", given[COMPUTE], 1, 100) if COMPUTE in given else None
    if MEMORY in given:
        memory = mebibytes(f"annotation {MEMORY}", given[MEMORY])
        percent = min(defaults.percent_of_memory(memory), limit or 100)  # a request may not exceed the limit
        return Found(SYSTEM, (Ask(container, percent, count, memory, limit),))
    percent = percentage(f"annotation {FRACTION}", given[FRACTION])
    if not 1 <= percent <= 99:
        raise Refused(
            f"annotation {FRACTION} is {shown(given[FRACTION])}: give a number from 0.01 to 0.99; "
            "a whole device is sharepod.io/gpu: 100"
        )
    if limit is not None and limit < percent:
        raise Refused(
            f"annotation {COMPUTE} {limit} is below {FRACTION} {percent / 100:.2f}: raise it, or lower the fraction"
        )
    return Found(SYSTEM, (Ask(container, percent, count, limit=limit),))


def _container(pod: Pod, given: dict[str, str]) -> Container:
    """Return the container that the share is for: the one that an annotation names, else the first. Raises Refused."""
    if CONTAINER not in given:
        if not pod.containers:
            raise Refused("the pod has no container")
        return pod.containers[0]
    found = pod.named(given[CONTAINER])
    if found is None:
        names = ", ".join(item.name for item in pod.all_containers[:8])
        raise Refused(
            f"annotation {CONTAINER} is {shown(given[CONTAINER])}, no container of the pod: it has {shown(names)}"
        )
    return found


def _check(pod: Pod, container: Container, given: dict[str, str]) -> None:
    """Raise Refused for words that contradict each other, or that no share can fulfil.

    `container` is the one that gets the share. `given` are the pod's annotations in KAI's words.
    """
    if FRACTION in given and MEMORY in given:
        raise Refused(f"annotations {FRACTION} and {MEMORY} are both given: give one of them")
    if FRACTION not in given and MEMORY not in given:
        raise Refused(f"annotation {next(iter(given))} is given without {FRACTION} or {MEMORY}: give one of these")
    no_whole_devices(pod, SYSTEM)
    lender = next((f"annotation {key}" for key in LENT if key in given), None)
    if lender is None and LENT_VARIABLE in container.environment:
        lender = f"variable {LENT_VARIABLE} of container {container.name}"
    if lender is not None:
        raise Refused(f"{lender} lends memory beyond the request, which no share can: ask for as much as it needs")
    if CORES in given:
        raise Refused(f"annotation {CORES} counts cores of one kind of device: give {COMPUTE}")
    if any(key.startswith(WRITTEN_BY_KAI) for key in pod.annotations):
        raise Refused(
            f"KAI's own webhook has been at this pod (annotations {WRITTEN_BY_KAI}*): "
            "an operator takes the namespace out of one of the two"
        )
