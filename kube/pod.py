"""A pod as the API server shows it, whatever is in it. Pure values.

What is missing or of another kind is taken for empty: a tenant wrote it, or another version of Kubernetes. What the
annotations say is for the reader of this value to find out.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from sharepod.kube.objects import at, entries, text, texts
from sharepod.kube.quantity import whole

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sharepod.kube.objects import Object

FINISHED: Final = ("Succeeded", "Failed")
_MIRROR: Final = "kubernetes.io/config.mirror"
_HASH: Final = "kubernetes.io/config.hash"
_DIGEST: Final = re.compile(r"[0-9a-f]{32}")


@dataclass(frozen=True, slots=True)
class Container:
    """One container, or init container, of a pod."""

    name: str
    place: tuple[str, int] = ("containers", 0)
    """The list that it stands in, `containers` or `initContainers`, and its index there."""
    limits: Mapping[str, str] = field(default_factory=dict)
    requests: Mapping[str, str] = field(default_factory=dict)
    units: int = 0
    """How many it asks for of the resource that the reader counts."""
    stays: bool = True
    """It runs beside the others: it is no init container, or one that is a sidecar."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Variables of a draft's container. A variable is empty here if its value comes from elsewhere."""

    @property
    def order(self) -> tuple[bool, int]:
        """Return what sorts containers by when they start: init containers and sidecars, then the others."""
        return self.place[0] == "containers", self.place[1]

    def resource(self, name: str) -> str | None:
        """Return how much it asks of a resource: its limit, else its request."""
        return self.limits.get(name, self.requests.get(name))

    def requested(self, name: str) -> str:
        """Return how much of a resource is set aside for it: its request, else its limit."""
        return self.requests.get(name) or self.limits.get(name, "0")


@dataclass(frozen=True, slots=True)
class Pod:
    """One pod."""

    uid: str
    namespace: str
    name: str
    annotations: Mapping[str, str] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)
    """Of a draft."""
    containers: tuple[Container, ...] = ()
    init_containers: tuple[Container, ...] = ()
    ephemeral: tuple[str, ...] = ()
    """Names of containers that were added to it for debugging."""
    node: str = ""
    """Where it is bound; empty: nowhere yet."""
    scheduler: str = ""
    """What places it."""
    priority: int = 0
    preempts: bool = True
    """Others may be ended for it."""
    gates: tuple[str, ...] = ()
    """Names of its scheduling gates."""
    overhead: Mapping[str, str] = field(default_factory=dict)
    """What its sandbox takes beside its containers."""
    phase: str = "Unknown"
    deleting: bool = False
    running: frozenset[str] = frozenset()
    """Names of its containers, of each kind, that the API shows running. It may be behind."""
    finished: Mapping[str, str] = field(default_factory=dict)
    """When its init containers that the API shows to have ended well were started, by name, as kubelet writes it."""
    controller: str = ""
    """Uid of the object that makes another pod in its place; empty: nothing does."""
    created: str = ""
    """When, as the API server writes it: sorts by time."""
    started: str = ""
    """When kubelet took it on, as the API server writes it."""

    @property
    def cgroup_uid(self) -> str:
        """Return what names its cgroup: for the mirror of a static pod the hash of its manifest, else the uid.

        A tenant may write both onto a pod that is made. The hash has no dashes, so it cannot name the pod of another
        tenant, whose uid has them.
        """
        digest = self.annotations.get(_HASH, "") if _MIRROR in self.annotations else ""
        return digest if _DIGEST.fullmatch(digest) else self.uid

    @property
    def all_containers(self) -> tuple[Container, ...]:
        """Return its containers, then its init containers."""
        return self.containers + self.init_containers

    @property
    def names(self) -> frozenset[str]:
        """Return the names of all its containers, init and ephemeral ones too."""
        return frozenset(one.name for one in self.all_containers).union(self.ephemeral)

    @property
    def units(self) -> tuple[tuple[str, int], ...]:
        """Return name and units of those that ask for some and run beside one another."""
        return tuple((one.name, one.units) for one in self.all_containers if one.units and one.stays)

    @property
    def init_units(self) -> tuple[tuple[str, int], ...]:
        """Return name and units of those that ask for some and end before the others begin."""
        return tuple((one.name, one.units) for one in self.init_containers if one.units and not one.stays)

    def named(self, name: str) -> Container | None:
        """Return the container of that name."""
        return next((one for one in self.all_containers if one.name == name), None)


def read_pod(item: object, resource: str = "") -> Pod | None:
    """Return the pod of an object that the API server has, None when it is none.

    `resource` is what the units of its containers are counted of. Labels and variables are not kept.
    """
    pod = _pod(item if isinstance(item, dict) else {}, resource, is_draft=False)
    return pod if pod.uid and pod.name and pod.namespace else None


def read_draft(item: object, resource: str = "") -> Pod:
    """Return a pod that is being made: whole, but it may have neither name nor uid yet."""
    return _pod(item if isinstance(item, dict) else {}, resource, is_draft=True)


def _pod(body: Object, resource: str, *, is_draft: bool) -> Pod:
    metadata, spec, status = at(body, "metadata"), at(body, "spec"), at(body, "status")
    priority, owners = spec.get("priority"), entries(metadata, "ownerReferences")
    states = [
        (kind, text(entry, "name"), at(entry, "state"))
        for kind in ("containerStatuses", "initContainerStatuses", "ephemeralContainerStatuses")
        for entry in entries(status, kind)
    ]
    return Pod(
        uid=text(metadata, "uid"),
        namespace=text(metadata, "namespace"),
        name=text(metadata, "name"),
        annotations=texts(metadata, "annotations"),
        labels=texts(metadata, "labels") if is_draft else {},
        containers=_containers(spec, "containers", resource, is_draft),
        init_containers=_containers(spec, "initContainers", resource, is_draft),
        ephemeral=tuple(text(entry, "name") for entry in entries(spec, "ephemeralContainers")),
        node=text(spec, "nodeName"),
        scheduler=text(spec, "schedulerName"),
        priority=priority if type(priority) is int else 0,
        preempts=spec.get("preemptionPolicy") != "Never",
        gates=tuple(text(gate, "name") for gate in entries(spec, "schedulingGates")),
        overhead=texts(spec, "overhead"),
        phase=text(status, "phase") or "Unknown",
        deleting=bool(metadata.get("deletionTimestamp")),
        running=frozenset(name for _, name, state in states if isinstance(state.get("running"), dict)),
        finished={
            name: text(at(state, "terminated"), "startedAt")
            for kind, name, state in states
            if kind == "initContainerStatuses" and at(state, "terminated").get("exitCode") == 0
        },
        controller=next((text(one, "uid") for one in owners if one.get("controller") is True), ""),
        created=text(metadata, "creationTimestamp"),
        started=text(status, "startTime"),
    )


def _containers(spec: Object, key: str, resource: str, is_draft: bool) -> tuple[Container, ...]:
    found = spec.get(key)
    return tuple(
        _container(entry, (key, index), resource, is_draft)
        for index, entry in enumerate(found if isinstance(found, list) else ())
        if isinstance(entry, dict)
    )


def _container(entry: Object, place: tuple[str, int], resource: str, is_draft: bool) -> Container:
    resources = at(entry, "resources")
    limits = texts(resources, "limits")
    return Container(
        name=text(entry, "name"),
        place=place,
        limits=limits,
        requests=texts(resources, "requests"),
        units=whole(limits.get(resource, "0")),  # the API server writes 1000 as 1k
        stays=place[0] == "containers" or entry.get("restartPolicy") == "Always",
        environment={text(one, "name"): text(one, "value") for one in entries(entry, "env")} if is_draft else {},
    )
