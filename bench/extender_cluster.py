"""A large cluster as the API server has it and as its agents tell: nodes with eight devices, ten pods on each."""

import json
from collections.abc import Iterator
from typing import Any

from sharepod.scheduler.usage import DeviceFacts, DeviceUse, NodeFacts, NodeUse

DEVICES = 8
PODS_OF_NODE = 10
SIZES = (10, 20, 25, 30, 40, 50, 60, 100, 200)
"""Percent of a device, by turns; 100 and more are whole devices."""
Object = dict[str, Any]


def node_name(number: int) -> str:
    """Return the name of a node."""
    return f"gpu-node-{number:05d}.example.internal"


def uuid(number: int, device: int) -> str:
    """Return the UUID of a device."""
    return f"GPU-{number:08x}-0000-4000-8000-{device:012x}"


def use_of(number: int) -> NodeUse:
    """Return what a node's agent tells. It has not told of shares yet: pods count where their annotations say."""
    devices = tuple(
        DeviceUse(DeviceFacts(index, uuid(number, index), "NVIDIA H200", 141 * 2**30, True, "", True, index // 4, ()))
        for index in range(DEVICES)
    )
    return NodeUse(NodeFacts(node_name(number), "0.1.0"), devices)


def node(number: int) -> Object:
    """Return a node as the API server has it, with the labels that nodes have."""
    allocatable = {"cpu": "128", "memory": "1024Gi", "sharepod.io/gpu": str(100 * DEVICES), "pods": "110"}
    labels = {f"label-{index}.example.com/name": f"value-{index}" for index in range(20)}
    metadata = {"name": node_name(number), "uid": f"node-{number}", "labels": labels}
    return {"metadata": metadata, "spec": {}, "status": {"allocatable": allocatable, "capacity": allocatable}}


def pod(name: str, units: int, annotations: dict[str, str] | None = None, where: str = "") -> Object:
    """Return a pod as the API server has it, of about the size that pods have."""
    resources = {"limits": {"sharepod.io/gpu": str(units)}, "requests": {"cpu": "4", "memory": "16Gi"}}
    environment = [{"name": f"VARIABLE_{index}", "value": "x" * 20} for index in range(10)]
    container = {"name": "main", "image": "example.com/team/image:1", "resources": resources, "env": environment}
    metadata = {
        "name": name, "namespace": "team", "uid": f"uid-{name}", "creationTimestamp": "2026-01-01T00:00:00Z",
        "annotations": annotations or {}, "labels": {"app": "train"},
    }  # fmt: skip
    spec: Object = {"containers": [container], "schedulerName": "sharepod-scheduler", "priority": 0}
    if where:
        spec["nodeName"] = where
    return {"metadata": metadata, "spec": spec, "status": {"phase": "Running" if where else "Pending"}}


def placed_pods(nodes: int) -> Iterator[Object]:
    """Yield ten pods for each node, of sizes that fit: the first devices are taken, the last are free."""
    for number in range(nodes):
        free = [100] * DEVICES
        for index in range(PODS_OF_NODE):
            size = SIZES[(number * 7 + index * 3) % 7]
            device = next((one for one in range(DEVICES) if free[one] >= size), -1)
            if device < 0:
                size, device = 1, max(range(DEVICES), key=free.__getitem__)
            free[device] -= size
            chosen = {"sharepod.io/device": uuid(number, device)}
            yield pod(f"pod-{number}-{index}", size, chosen, node_name(number))


def lines(objects: Iterator[Object]) -> list[bytes]:
    """Return objects as JSON."""
    return [json.dumps(item, separators=(",", ":")).encode() for item in objects]
