"""Translates a pod written for another sharing system into a pod with our shares, or refuses it. Pure.

At the end the result is read with the device plugin's own reader: so the plugin never refuses a translated pod. Labels
and annotations of the other system stay, because selectors may depend on them. Its resources are removed, because no
node offers them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from sharepod.agent.shares.share import MIB
from sharepod.deviceplugin.cdi.injection import VISIBLE
from sharepod.deviceplugin.core.terms import PREFIX, TermsError, quantity_bytes, read_terms, shown
from sharepod.deviceplugin.core.unit import RESOURCE
from sharepod.kube.objects import at
from sharepod.webhook import hami, kai, kubeshare
from sharepod.webhook.ask import Ask, Defaults, Found, Refused, read_named
from sharepod.webhook.patch import difference
from sharepod.webhook.review import Decision, Request

if TYPE_CHECKING:
    from collections.abc import Iterable

    from sharepod.kube.pod import Container, Pod
    from sharepod.webhook.patch import JsonObject

MARK: Final = "compatibility.sharepod.io/from"
"""The annotation on a translated pod: the other system, and what the containers asked for."""
SAME_MEANING: Final = ("limit", "memory", "devices", "device")
"""Our words that mean the same as another system's words."""
SCHEDULERS: Final = frozenset({"kai-scheduler", "runai-scheduler", "hami-scheduler", "kubeshare-scheduler"})
"""The schedulers of other systems."""
_KEY_MAX: Final = 63
"""Characters that Kubernetes allows in an annotation's name after the slash."""
_MARK_MAX: Final = 1024


def decide(request: Request, defaults: Defaults) -> Decision:
    """Return the decision: a new pod is translated or refused, or unchanged if it has no other system's words."""
    if request.operation != "CREATE":
        return Decision()
    try:
        pod = read_named(request.object)
        found = _find(pod, defaults)
        asks = () if found is None else _pending(pod, found)
        if found is None or not asks:
            return Decision()
        for ask in asks:
            _check(pod, ask)
        changed = _write(request.object, pod, found.system, asks, defaults)
        _read_again(changed)
    except Refused as refusal:
        return Decision(refusal=str(refusal))
    return Decision(patch=tuple(difference(request.object, changed)), warnings=found.warnings, system=found.system)


def _find(pod: Pod, defaults: Defaults) -> Found | None:
    """Return what the pod asks for in another system's words; None: nothing. Raises Refused for two systems."""
    found = [item for item in (system.find(pod, defaults) for system in (kai, hami, kubeshare)) if item is not None]
    if len(found) > 1:
        raise Refused(f"the pod is written for {found[0].system} and for {found[1].system}: write it for one of them")
    return found[0] if found else None


def _pending(pod: Pod, found: Found) -> tuple[Ask, ...]:
    """Return the asks that are not translated yet. Some may be: the API server may call again, and users copy pods.

    Raises Refused if the pod's MARK names another system.
    """
    if MARK not in pod.annotations:
        return found.asks
    if not pod.annotations[MARK].startswith(found.system):
        raise Refused(f"annotation {MARK} says that the pod came from another system than {found.system}: remove it")
    # A translation removes the other system's resources, and adds ours. It leaves the other system's annotations.
    return tuple(ask for ask in found.asks if ask.drop or RESOURCE not in ask.container.limits)


def _check(pod: Pod, ask: Ask) -> None:
    """Raise Refused when the pod also gives in our words what it gives in another system's."""
    # In a marked pod the shares of other containers may come from an earlier translation.
    is_marked, container = MARK in pod.annotations, ask.container
    for item in pod.all_containers:
        if item.resource(RESOURCE) is not None and (not is_marked or item.name == container.name):
            raise Refused(
                f"container {item.name} holds {RESOURCE} in a pod written for another system: keep one of the two"
            )
    for name in pod.annotations:
        target, dot, key = name.removeprefix(PREFIX).rpartition(".")
        is_of_another = bool(dot) and target != container.name
        if name.startswith(PREFIX) and key in SAME_MEANING and not (is_marked and is_of_another):
            raise Refused(f"annotation {shown(name)} stands beside what another system reads: keep one of the two")
    if VISIBLE in container.environment:
        raise Refused(f"container {container.name} sets {VISIBLE}: remove it, its share says what it sees")
    for name in (*container.limits, *container.requests):
        if name.startswith("nvidia.com/") and name not in ask.drop:
            raise Refused(
                f"container {container.name} asks for {shown(name)} beside a part of a device: give one of the two"
            )


def _write(original: JsonObject, pod: Pod, system: str, asks: Iterable[Ask], defaults: Defaults) -> dict[str, Any]:
    """Return the pod's JSON with our annotations, resources and MARK in it. `original` is the JSON before.

    Another system's scheduler is replaced by that of `defaults`. `original` is not changed: the result is a new object,
    but has in common with it all parts that are equal.
    """
    annotations = dict(pod.annotations)
    spec: dict[str, Any] = dict(at(original, "spec"))
    marks = [pod.annotations.get(MARK, system)]
    for ask in asks:
        annotations |= _annotations(pod, ask)
        marks += [f"{ask.container.name}:{name}={ask.container.resource(name)}" for name in ask.drop]
        key, index = ask.container.place
        spec[key] = list(spec[key])
        spec[key][index] = spec[key][index] | {"resources": _resources(spec[key][index], ask)}
    annotations[MARK] = " ".join(marks)[:_MARK_MAX]
    if pod.scheduler in SCHEDULERS:
        spec["schedulerName"] = defaults.scheduler_name
    metadata = at(original, "metadata") | {"annotations": annotations}
    return {**original, "metadata": metadata, "spec": spec}


def _annotations(pod: Pod, ask: Ask) -> dict[str, str]:
    """Return our annotations for one container. The memory in them is that of all its devices together.

    A class that the pod gives in our words is kept. Raises Refused for a name that is too long for an annotation.
    """
    values: dict[str, str] = {}
    if ask.devices > 1:
        values["devices"] = str(ask.devices)
    if ask.limit is not None:
        values["limit"] = str(ask.limit)
    if ask.memory_bytes is not None:
        total = ask.memory_bytes * ask.devices
        values["memory"] = str(total) if total % MIB else f"{total // MIB}Mi"
    if ask.share_class and f"{PREFIX}class" not in pod.annotations:
        values["class"] = ask.share_class
    written = {}
    for key, text in values.items():
        name = f"{ask.container.name}.{key}"
        if len(name) > _KEY_MAX:
            raise Refused(f"the name of container {ask.container.name} is too long for an annotation: shorten it to 55")
        if key != "class" or PREFIX + name not in pod.annotations:
            written[PREFIX + name] = text
    return written


def _resources(container: JsonObject, ask: Ask) -> dict[str, Any]:
    """Return the resources of a container with our units in place of the other system's."""
    resources = dict(at(container, "resources"))
    for key in ("limits", "requests"):
        kept = {name: value for name, value in at(resources, key).items() if name not in ask.drop}
        resources[key] = kept | {RESOURCE: str(ask.percent * ask.devices)}
    return resources


def _read_again(changed: JsonObject) -> None:
    """Raise Refused if the device plugin would not accept the translated pod, with the words that it had of ours."""
    pod = read_named(changed)
    names = tuple(item.name for item in pod.all_containers)
    for container in pod.all_containers:
        if RESOURCE in container.limits:
            _check_terms(pod, container, names)


def _check_terms(pod: Pod, container: Container, names: tuple[str, ...]) -> None:
    """Raise Refused if the device plugin would refuse a container's terms. `names` are those of all its containers."""
    try:
        units = quantity_bytes(container.limits[RESOURCE])
        read_terms(pod.annotations, container.name, units, containers=names)
    except TermsError as error:
        raise Refused(f"container {container.name}: {error}") from None
