"""Reads HAMi's words: resources of containers, per device; memory in MiB, compute in per cent. Pure.

A pod that asks only for `nvidia.com/gpu` is not HAMi's: this is NVIDIA's word for a whole device, and the pod stays
with NVIDIA's device plugin.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from sharepod.agent.shares.share import DEVICES_MAX, MIB
from sharepod.deviceplugin.core.terms import MEMORY_MOST_BYTES, shown
from sharepod.webhook.ask import WHOLE_GPU, Ask, Defaults, Found, Refused, amount

if TYPE_CHECKING:
    from sharepod.kube.pod import Container, Pod

SYSTEM: Final = "HAMi"
MEMORY: Final = "nvidia.com/gpumem"
MEMORY_PERCENT: Final = "nvidia.com/gpumem-percentage"
COMPUTE: Final = "nvidia.com/gpucores"
PRIORITY: Final = "nvidia.com/priority"
RESOURCES: Final = (MEMORY, MEMORY_PERCENT, COMPUTE, PRIORITY)
POLICY_VARIABLE: Final = "GPU_CORE_UTILIZATION_POLICY"
MODE: Final = "nvidia.com/vgpu-mode"
CONSTRAINTS: Final = (
    "nvidia.com/use-gputype",
    "nvidia.com/nouse-gputype",
    "nvidia.com/use-gpuuuid",
    "nvidia.com/nouse-gpuuuid",
)
PREFERENCES: Final = ("hami.io/node-scheduler-policy", "hami.io/gpu-scheduler-policy", "nvidia.com/numa-bind")


def find(pod: Pod, defaults: Defaults) -> Found | None:
    """Return what a pod's containers ask for in HAMi's words; None: nothing. Raises Refused."""
    asking = [item for item in pod.all_containers if any(item.resource(name) is not None for name in RESOURCES)]
    if not asking:
        return None
    for key in CONSTRAINTS:
        if key in pod.annotations:
            raise Refused(
                f"annotation {key} chooses devices by kind or UUID, which no share can: "
                "choose nodes by their labels, nvidia.com/gpu.product for one"
            )
    if pod.annotations.get(MODE, "hami-core") != "hami-core":
        raise Refused(f"annotation {MODE} is {shown(pod.annotations[MODE])}: only hami-core can be a share")
    warnings = [f"annotation {key} has no meaning for a share" for key in PREFERENCES if key in pod.annotations]
    asks = []
    for container in asking:
        ask, warning = _ask(container, defaults)
        asks.append(ask)
        if warning:
            warnings.append(warning)
    return Found(SYSTEM, tuple(asks), tuple(warnings))


def _ask(container: Container, defaults: Defaults) -> tuple[Ask, str]:
    """Return what a container asks for, and a warning; empty: there is none. Raises Refused.

    An amount of 0 counts as not given, but 0 devices are refused. The share's percentage is that of the compute. If
    this is not given, it is that of the memory; if neither is, it is 100.
    """
    count = amount(container, WHOLE_GPU, DEVICES_MAX)
    if count == 0:
        raise Refused(f"{WHOLE_GPU} of container {container.name} is 0: give 1 to {DEVICES_MAX}, or leave it out")
    memory = (amount(container, MEMORY, MEMORY_MOST_BYTES // MIB) or 0) * MIB or None
    memory_percent = amount(container, MEMORY_PERCENT, 100) or None
    compute = amount(container, COMPUTE, 100) or None
    is_low = amount(container, PRIORITY, 1) == 1  # 1 is low in HAMi. 0 is high, and means nothing here.
    if memory and memory_percent:
        raise Refused(f"container {container.name} asks for {MEMORY} and {MEMORY_PERCENT}: give one of them")
    is_forced = container.environment.get(POLICY_VARIABLE, "").lower() == "force"
    limit, warning = (compute if is_forced else None), ""  # not forced: its programs may use idle time, too
    if compute and memory_percent and memory_percent != compute:
        memory = _memory_part(container, memory_percent, compute, defaults)
    elif compute and compute < 100 and not memory and not memory_percent:
        # In HAMi such a container has all memory of its devices: no other pod fits beside it.
        if is_forced:
            raise Refused(
                f"container {container.name} asks for all memory of a device and is held to {compute} % of it, "
                f"which leaves the rest to nobody: give {MEMORY}"
            )
        warning = f"{container.name} gets whole devices: it asks for no {MEMORY}"
        compute = 100
    percent = compute or memory_percent or (defaults.percent_of_memory(memory) if memory else 100)
    drop = tuple(name for name in (WHOLE_GPU, *RESOURCES) if container.resource(name) is not None)
    return Ask(container, percent, count or 1, memory, limit, "batch" if is_low else None, drop), warning


def _memory_part(container: Container, percent: int, compute: int, defaults: Defaults) -> int:
    """Return `percent` per cent of a device's memory in bytes, in whole MiB.

    Raises Refused if a device's memory is not known. `container` and its `compute` are for this error.
    """
    if defaults.device_memory_bytes is None:
        raise Refused(
            f"container {container.name} asks for {percent} % of the memory and {compute} % of the compute: "
            f"give {MEMORY}, or the same percentage of both"
        )
    return defaults.device_memory_bytes * percent // 100 // MIB * MIB
