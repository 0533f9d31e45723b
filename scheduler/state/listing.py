"""Reads lists of nodes and pods as a cluster has them (`kubectl get nodes -o json`), or as CSV (`trace.py`).

Pods are read as the scheduler reads them. `nvidia.com/gpu` counts as whole devices, so that a user can see what would
fit on a cluster that has no shares yet. Pods that have ended are left out, and where a pod is bound does not matter. A
file may come from anywhere: what is impossible in it is refused with one line, and that line has no text of the file
unescaped.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from sharepod.deviceplugin.core.terms import shown
from sharepod.deviceplugin.core.unit import RESOURCE
from sharepod.kube.objects import Object, at, entries
from sharepod.kube.pod import read_draft
from sharepod.scheduler.errors import PlacementError, TraceError
from sharepod.scheduler.placement.request import DEVICE_MILLI, NODE_DEVICES_MAX, NodeSpec, PodRequest, ShareRequest
from sharepod.scheduler.state import trace
from sharepod.scheduler.state.node import read_node
from sharepod.scheduler.state.pod import read_pod
from sharepod.scheduler.state.trace import NamedPod

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from sharepod.kube.pod import Pod

WHOLE: Final = "nvidia.com/gpu"
MODEL: Final = "nvidia.com/gpu.product"
MEMORY: Final = "nvidia.com/gpu.memory"
COUNT: Final = "nvidia.com/gpu.count"
REPLICAS: Final = "nvidia.com/gpu.replicas"
"""Labels of NVIDIA's feature discovery; the memory is of each device, in MiB. Under time slicing a device counts once
for each slice, and its model ends with SLICED."""
SLICED: Final = "-SHARED"
_AMOUNT_MAX: Final = 2**31 - 1
_WORD_MAX: Final = 2 * 253
_AGAIN: Final = "get it again with kubectl get {} -o json"


def read_nodes(path: Path, tell: Callable[[str], None] = lambda _: None) -> list[NodeSpec]:
    """Return the nodes of a file of either kind; `tell` gets a line about each with more devices than can count.

    Raises TraceError if the file cannot be read, has nodes of one name, or, as JSON, has no node with devices.
    """
    text = trace.load(path)
    items = _items(path, text, "Node")
    if items is None:
        return trace.read_nodes(path, text)
    nodes = [_node(path, item, tell) for item in items]
    trace.check_names(path, [node.name for node in nodes])
    if not any(node.devices for node in nodes):
        raise TraceError(f"{path}: no node offers {RESOURCE} or {WHOLE}: get it while a device plugin runs")
    return nodes


def read_pods(path: Path, tell: Callable[[str], None] = lambda _: None) -> list[NamedPod]:
    """Return the pods of a file of either kind; `tell` gets a line about each that asks for the impossible.

    Such pods, and pods that have ended, are left out. Raises TraceError if the file cannot be read, or none is left.
    """
    text = trace.load(path)
    items = _items(path, text, "Pod")
    if items is None:
        return trace.read_pods(path, text)
    pods = []
    for item in items:
        pod = _pod(path, item)
        if isinstance(pod, str):
            tell(pod)
        elif pod is not None:
            pods.append(pod)
    if not pods:
        raise TraceError(f"{path}: no pod of it can be placed: is it the right file?")
    return pods


def _items(path: Path, text: str, kind: str) -> list[Object] | None:
    """Return the objects in a file's text, a list or a single one; None: it is not JSON, and may be CSV.

    `kind`: Node or Pod. Raises TraceError for YAML, a table, broken JSON, objects of another kind, and an empty list.
    """
    again = _AGAIN.format("nodes" if kind == "Node" else "pods -A")
    begin = text.lstrip()[:16]
    if begin.startswith(("apiVersion:", "kind:", "items:", "---", "NAME ", "NAMESPACE ")):
        raise TraceError(f"{path}: it is YAML or a table, JSON or CSV is needed: {again}")
    if not begin.startswith(("{", "[")):
        return None
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise TraceError(f"{path}: {error}: it is cut off, or no JSON: {again}") from None
    if not isinstance(value, dict):
        raise TraceError(f"{path}: a list without its kind: {again}")
    own_kind = str(value.get("kind", ""))
    items = entries(value, "items") if own_kind.endswith("List") else [value]
    wrong = next((str(item.get("kind")) for item in items if item.get("kind", kind) != kind), "")
    if wrong or (own_kind.endswith("List") and own_kind not in ("List", f"{kind}List")):
        raise TraceError(f"{path}: it has a {_word(wrong or own_kind)}, {kind}s are needed: were the files mixed up?")
    if not items:
        raise TraceError(f"{path}: an empty list: is it the right file?")
    return items


def _node(path: Path, item: Object, tell: Callable[[str], None]) -> NodeSpec:
    """Return the node of an object. Raises TraceError if it has no name.

    Its devices are those that SharePod's device plugin offers; if it offers none, those that NVIDIA's offers. `tell`
    gets a line if there are more than NODE_DEVICES_MAX.
    """
    node = read_node(item)
    if node is None:
        raise TraceError(f"{path}: a node without a name: {_AGAIN.format('nodes')}")
    labels = at(at(item, "metadata"), "labels")
    whole = _count(at(at(item, "status"), "allocatable").get(WHOLE)) // max(1, _count(labels.get(REPLICAS)))
    devices, labelled = node.units // 100, _count(labels.get(COUNT))  # a unit is 1 % of a device
    devices = min(devices, labelled) if labelled else devices  # SharePod's plugin may offer spare units
    devices = devices or whole
    if devices > NODE_DEVICES_MAX:
        tell(f"node {_word(node.name)} offers {devices} devices: {NODE_DEVICES_MAX} of them count")
    model = str(labels.get(MODEL, "")).removesuffix(SLICED) if devices else ""
    mib = min(_count(labels.get(MEMORY)), _AMOUNT_MAX)
    return NodeSpec(node.name, node.cpu_milli, node.memory_mib, min(devices, NODE_DEVICES_MAX), model, mib)


def _pod(path: Path, item: Object) -> NamedPod | str | None:
    """Return the pod of an object, or a line that says why it cannot be placed; None: it has ended.

    Raises TraceError if the object is no pod.
    """
    pod = read_pod(item, RESOURCE)
    if pod is None:
        raise TraceError(f"{path}: a pod without name, namespace or uid: {_AGAIN.format('pods -A')}")
    if pod.ended:
        return None
    if pod.refusal:
        return f"{_word(pod.title)}: {pod.refusal}"
    try:
        return NamedPod(pod.title, _with_whole(pod.request, read_draft(item, WHOLE)))
    except PlacementError as error:
        return f"{_word(pod.title)}: {error}"


def _with_whole(request: PodRequest, pod: Pod) -> PodRequest:
    """Return `request` with one more share for each container's whole devices. Raises PlacementError.

    `pod`: the same pod, read with WHOLE as its resource, so a unit of it is a device. Kubelet hands the devices of an
    ended init container on to the containers after it. So an init container counts only if it asks for more than those
    together.
    """
    by_container = [count for _, count in pod.units]
    largest_init = max((count for _, count in pod.init_units), default=0)
    counts = [largest_init] if largest_init > sum(by_container) else by_container
    # A node's label has dashes in the name of a model; the driver, and pods that ask for the model, write spaces.
    models = frozenset(name.replace(" ", "-") for name in request.models)
    shares = request.shares + tuple(ShareRequest(DEVICE_MILLI, count) for count in counts)
    return replace(request, shares=shares, models=models)


def _count(value: object) -> int:
    """Return the number in a quantity or a label; 0: it is no whole number, or has ten digits or more."""
    text = str(value or "")
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 10 else 0


def _word(text: str) -> str:
    """Return a text of the file for a message, escaped if it is long or has unusual characters."""
    return text if text.isascii() and text.isprintable() and len(text) <= _WORD_MAX else shown(text)
