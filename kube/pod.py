"""Reads a pod as the API server shows it, whatever it contains. Pure values.

A field that is missing or of another type counts as empty: a tenant wrote it, or another version of Kubernetes. What
annotations mean is not known here.
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
_OF_CRON_JOB: Final = re.compile(r"(.+)-\d{8,}")
_WORKLOAD: Final = re.compile(r"[A-Za-z0-9]{1,63}/[a-z0-9.-]{1,180}")


@dataclass(frozen=True, slots=True)
class Container:
    """One container, or init container, of a pod."""

    name: str
    place: tuple[str, int] = ("containers", 0)
    """The list that it is in, `containers` or `initContainers`, and its index there."""
    limits: Mapping[str, str] = field(default_factory=dict)
    requests: Mapping[str, str] = field(default_factory=dict)
    units: int = 0
    """How many units of the reader's resource it asks for."""
    stays: bool = True
    """Whether it runs beside the others: it is no init container, or it is a sidecar."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Variables; only in a draft (read_draft). A variable is empty here if its value comes from another object."""

    @property
    def order(self) -> tuple[bool, int]:
        """Return a key that sorts containers by their start: init containers and sidecars, then the others."""
        return self.place[0] == "containers", self.place[1]

    def resource(self, name: str) -> str | None:
        """Return how much it asks for of a resource: its limit, else its request; None: it asks for none."""
        return self.limits.get(name, self.requests.get(name))

    def requested(self, name: str) -> str:
        """Return how much of a resource is reserved for it: its request, else its limit."""
        return self.requests.get(name) or self.limits.get(name, "0")


@dataclass(frozen=True, slots=True)
class Pod:
    """One pod."""

    uid: str
    namespace: str
    name: str
    annotations: Mapping[str, str] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)
    """Only in a draft (read_draft)."""
    containers: tuple[Container, ...] = ()
    init_containers: tuple[Container, ...] = ()
    ephemeral: tuple[str, ...] = ()
    """Names of containers that were added for debugging."""
    node: str = ""
    """The node that it is bound to; empty: it is not bound yet."""
    scheduler: str = ""
    """The scheduler that places it."""
    priority: int = 0
    preempts: bool = True
    """Whether other pods may be ended for it."""
    gates: tuple[str, ...] = ()
    """Names of its scheduling gates."""
    overhead: Mapping[str, str] = field(default_factory=dict)
    """What its sandbox needs besides its containers."""
    phase: str = "Unknown"
    deleting: bool = False
    running: frozenset[str] = frozenset()
    """Names of all kinds of its containers that the API shows as running. The API may be behind."""
    finished: Mapping[str, str] = field(default_factory=dict)
    """By name: the start time, as kubelet writes it, of init containers that the API shows as ended well."""
    controller: str = ""
    """Uid of the object that would replace it by another pod; empty: none."""
    owner: str = ""
    """The workload that it belongs to, like Deployment/web or CronJob/nightly; empty: none."""
    created: str = ""
    """The time of its creation, as the API server writes it. The text sorts by time."""
    started: str = ""
    """When kubelet accepted it, as the API server writes it."""

    @property
    def cgroup_uid(self) -> str:
        """Return the uid in the name of its cgroup: the manifest's hash for the mirror of a static pod, else the uid.

        A tenant may annotate any pod with such a hash. But a hash has no dashes and a uid has: so the hash is never the
        uid of another pod.
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
        """Return name and units of the containers that ask for units and run side by side."""
        return tuple((one.name, one.units) for one in self.all_containers if one.units and one.stays)

    @property
    def init_units(self) -> tuple[tuple[str, int], ...]:
        """Return name and units of the containers that ask for units and end before the others begin."""
        return tuple((one.name, one.units) for one in self.init_containers if one.units and not one.stays)

    def named(self, name: str) -> Container | None:
        """Return the container or init container with that name; None: there is none."""
        return next((one for one in self.all_containers if one.name == name), None)


def read_pod(item: object, resource: str = "") -> Pod | None:
    """Return the pod in an object of the API server; None: the object is no pod.

    `resource` is the resource that Container.units counts; empty: units stay 0. Labels and variables are not kept.
    """
    pod = _pod(item if isinstance(item, dict) else {}, resource, is_draft=False)
    return pod if pod.uid and pod.name and pod.namespace else None


def read_draft(item: object, resource: str = "") -> Pod:
    """Return the pod in an object, with its labels and variables; `resource` as in read_pod.

    The webhook reads pods that are being made. They may have neither name nor uid yet; what is missing is empty.
    """
    return _pod(item if isinstance(item, dict) else {}, resource, is_draft=True)


def _pod(body: Object, resource: str, *, is_draft: bool) -> Pod:
    """Read a pod of any shape. Only a draft gets labels and variables."""
    metadata, spec, status = at(body, "metadata"), at(body, "spec"), at(body, "status")
    priority, owners = spec.get("priority"), entries(metadata, "ownerReferences")
    controller = next((one for one in owners if one.get("controller") is True), {})
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
        controller=text(controller, "uid"),
        owner=_workload(controller, texts(metadata, "labels").get("pod-template-hash", "")),
        created=text(metadata, "creationTimestamp"),
        started=text(status, "startTime"),
    )


def _containers(spec: Object, key: str, resource: str, is_draft: bool) -> tuple[Container, ...]:
    """Read the list `key` of a pod's spec. An entry that is no object is left out, but keeps its index."""
    found = spec.get(key)
    return tuple(
        _container(entry, (key, index), resource, is_draft)
        for index, entry in enumerate(found if isinstance(found, list) else ())
        if isinstance(entry, dict)
    )


def _container(entry: Object, place: tuple[str, int], resource: str, is_draft: bool) -> Container:
    """Read one container; `place` as in Container, `resource` as in read_pod."""
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


def _workload(controller: Object, template_hash: str) -> str:
    """Return the workload that a pod's controller belongs to, like Deployment/web; empty: the pod has no controller.

    A Deployment ends the names of its ReplicaSets with `template_hash`, the pod's label pod-template-hash. A CronJob
    ends the names of its Jobs with the minute for which they are made.
    """
    kind, name = text(controller, "kind"), text(controller, "name")
    if kind == "ReplicaSet" and template_hash and name.endswith(f"-{template_hash}"):
        kind, name = "Deployment", name.removesuffix(f"-{template_hash}")
    elif kind == "Job" and (by_minute := _OF_CRON_JOB.fullmatch(name)):
        kind, name = "CronJob", by_minute[1]
    found = f"{kind}/{name}"
    return found if _WORKLOAD.fullmatch(found) else ""  # a tenant may have written anything
