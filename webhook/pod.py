"""A pod as the API server shows it to a webhook: not checked yet, maybe malformed, read strictly here. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

JsonObject = Mapping[str, Any]
"""What JSON calls an object. Only this file and patch.py look into one."""

_NAME: Final = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")


class MalformedPod(Exception):
    """This is no pod, which the API server would not send; one line says why."""


class Refused(Exception):
    """The pod cannot be what it asks to be; one line: what, the limit, the remedy."""


@dataclass(frozen=True, slots=True)
class Container:
    """What of a container says what it asks for."""

    name: str
    place: tuple[str, int]
    """`containers` or `initContainers`, and its index there."""
    limits: Mapping[str, str]
    requests: Mapping[str, str]
    environment: Mapping[str, str]
    """Values that stand in the pod; those that come from elsewhere are empty."""

    def resource(self, name: str) -> str | None:
        """Return how much it asks of a resource: its limit, else its request."""
        return self.limits.get(name, self.requests.get(name))


@dataclass(frozen=True, slots=True)
class Pod:
    """What of a pod says what it asks for."""

    annotations: Mapping[str, str]
    labels: Mapping[str, str]
    containers: tuple[Container, ...]
    init_containers: tuple[Container, ...]
    scheduler: str

    @property
    def all_containers(self) -> tuple[Container, ...]:
        """Return its containers, then its init containers."""
        return self.containers + self.init_containers

    def named(self, name: str) -> Container | None:
        """Return the container of that name."""
        return next((item for item in self.all_containers if item.name == name), None)


def read_pod(pod: JsonObject) -> Pod:
    """Return the parts of a pod. Raises MalformedPod and, for a container's name, Refused."""
    metadata, spec = _object(pod.get("metadata"), "metadata"), _object(pod.get("spec"), "spec")
    return Pod(
        annotations=_texts(metadata.get("annotations"), "metadata.annotations"),
        labels=_texts(metadata.get("labels"), "metadata.labels"),
        containers=_containers(spec, "containers"),
        init_containers=_containers(spec, "initContainers"),
        scheduler=_text(spec.get("schedulerName", ""), "spec.schedulerName"),
    )


def _containers(spec: JsonObject, key: str) -> tuple[Container, ...]:
    return tuple(
        _container(_object(item, f"spec.{key}[{index}]"), (key, index))
        for index, item in enumerate(_list(spec.get(key), f"spec.{key}"))
    )


def _container(item: JsonObject, place: tuple[str, int]) -> Container:
    where = f"spec.{place[0]}[{place[1]}]"
    name = _text(item.get("name"), f"{where}.name")
    if not _NAME.fullmatch(name):
        raise Refused(f"{where}.name is no name of a container: give lower case letters, digits and dashes")
    resources = _object(item.get("resources"), f"{where}.resources")
    return Container(
        name,
        place,
        limits=_quantities(resources.get("limits"), f"{where}.resources.limits"),
        requests=_quantities(resources.get("requests"), f"{where}.resources.requests"),
        environment=_environment(item.get("env"), f"{where}.env"),
    )


def _environment(value: object, where: str) -> dict[str, str]:
    found = {}
    for variable in _list(value, where):
        entry = _object(variable, where)
        found[_text(entry.get("name"), f"{where}.name")] = _text(entry.get("value", ""), f"{where}.value")
    return found


def _object(value: object, where: str) -> JsonObject:
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise MalformedPod(f"{where} is no object")
    return value


def _list(value: object, where: str) -> list[object]:
    if value is None:
        return []
    if not isinstance(value, list):
        raise MalformedPod(f"{where} is no list")
    return value


def _text(value: object, where: str) -> str:
    if not isinstance(value, str):
        raise MalformedPod(f"{where} is no text")
    return value


def _texts(value: object, where: str) -> dict[str, str]:
    return {key: _text(text, where) for key, text in _object(value, where).items()}


def _quantities(value: object, where: str) -> dict[str, str]:
    """Return quantities as text; a person may write them as numbers."""
    return {
        key: str(item) if isinstance(item, int) and not isinstance(item, bool) else _text(item, where)
        for key, item in _object(value, where).items()
    }
