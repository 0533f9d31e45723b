"""Reads KubeShare 2's words: labels (or annotations) of a pod with one container; fractions, memory in bytes. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from sharepod.agent.shares.share import DEVICES_MAX
from sharepod.deviceplugin.core.terms import MEMORY_LEAST_BYTES, MEMORY_MOST_BYTES, shown
from sharepod.webhook.ask import Ask, Defaults, Found, Refused, no_whole_devices, number, percentage

if TYPE_CHECKING:
    from sharepod.kube.pod import Pod

SYSTEM: Final = "KubeShare"
PREFIX: Final = "sharedgpu/"
REQUEST: Final = "sharedgpu/gpu_request"
LIMIT: Final = "sharedgpu/gpu_limit"
MEMORY: Final = "sharedgpu/gpu_mem"
MODEL: Final = "sharedgpu/gpu_model"
KEYS: Final = (REQUEST, LIMIT, MEMORY)
PREFERENCES: Final = (
    "sharedgpu/priority",
    "sharedgpu/pod_group_name",
    "sharedgpu/group_name",
    "sharedgpu/group_headcount",
    "sharedgpu/group_threshold",
)


def find(pod: Pod, _: Defaults) -> Found | None:
    """Return what a pod asks for in KubeShare's words; None: nothing. Raises Refused."""
    given = _given(pod)
    if not any(key in given for key in KEYS):
        return None
    if LIMIT not in given:
        raise Refused(f"{next(key for key in KEYS if key in given)} is given without {LIMIT}: give that too")
    limit, request = percentage(LIMIT, given[LIMIT]), percentage(REQUEST, given.get(REQUEST, "0"))
    if limit == request == 0:  # for KubeShare too, such a pod needs no device
        return None
    no_whole_devices(pod, SYSTEM)
    if len(pod.containers) != 1:
        raise Refused(
            f"{LIMIT} is for all {len(pod.containers)} containers of the pod together, a share is one container's: "
            "give each its own sharepod.io/gpu"
        )
    if MODEL in given:
        raise Refused(f"{MODEL} chooses a kind of device, which no share can: choose nodes by their labels")
    if request > limit:
        raise Refused(f"{REQUEST} {given[REQUEST]} is above {LIMIT} {given[LIMIT]}: raise the limit")
    warnings = tuple(f"{key} has no meaning for a share" for key in PREFERENCES if key in given)
    return Found(SYSTEM, (_ask(pod, given, request, limit),), warnings)


def _given(pod: Pod) -> dict[str, str]:
    """Return the pod's values in KubeShare's words, from labels and annotations. Raises Refused if the two differ."""
    labels = {key: text for key, text in pod.labels.items() if key.startswith(PREFIX)}
    annotations = {key: text for key, text in pod.annotations.items() if key.startswith(PREFIX)}
    for key in labels.keys() & annotations.keys():
        if labels[key] != annotations[key]:
            raise Refused(f"{shown(key)} is one thing as a label and another as an annotation: give one of them")
    return labels | annotations


def _ask(pod: Pod, given: dict[str, str], request: int, limit: int) -> Ask:
    """Return the share of the pod's only container. `given` is the result of `_given`. Raises Refused.

    `request` and `limit` are in per cent of one device. Above 100 they must be whole devices.
    """
    memory = number(MEMORY, given[MEMORY], 0, MEMORY_MOST_BYTES) if MEMORY in given else 0
    if 0 < memory < MEMORY_LEAST_BYTES:
        raise Refused(f"{MEMORY} is {memory} bytes: give at least {MEMORY_LEAST_BYTES}, it is in bytes")
    container = pod.containers[0]
    if limit > 100:
        if request != limit or request % 100 or request > DEVICES_MAX * 100:
            raise Refused(
                f"{LIMIT} {given[LIMIT]} is more than one device: "
                f"give whole devices, at most {DEVICES_MAX}, and {REQUEST} the same"
            )
        if memory:
            raise Refused(f"{MEMORY} is given for whole devices, of which all memory is had: leave it out")
        return Ask(container, 100, request // 100)
    if request:
        return Ask(container, request, 1, memory or None, limit)
    if not memory:
        raise Refused(f"neither {REQUEST} nor {MEMORY} says how much is needed: give one of them")
    # In KubeShare such a pod has no guarantee: it runs on what others leave. Our least share is 1 %.
    return Ask(container, 1, 1, memory, limit, "batch")
