"""What the plugin needs of a pod, out of the API server's JSON. Pure values.

Whatever is there is a tenant's or another version's: what is missing or of another kind is taken for empty.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from sharepod.deviceplugin.unit import RESOURCE

Object = dict[str, object]

_MIRROR: Final = "kubernetes.io/config.mirror"
_HASH: Final = "kubernetes.io/config.hash"


@dataclass(frozen=True, slots=True)
class Pod:
    """What the plugin needs of a pod."""

    uid: str
    namespace: str
    name: str
    annotations: dict[str, str]
    cgroup_uid: str
    """What names its cgroup: for the mirror of a static pod the hash of its manifest, else the uid."""
    phase: str
    deleting: bool
    running: frozenset[str]
    """Names of its containers, init ones too, that the API shows running. It may be behind."""
    containers: frozenset[str] = frozenset()
    """Names of all its containers, init and ephemeral ones too."""
    units: tuple[tuple[str, int], ...] = ()
    """Name and units of its containers that ask for some, those that run one after the other (init ones) left out."""
    init_units: tuple[tuple[str, int], ...] = ()
    """The same of those."""
    finished: frozenset[str] = frozenset()
    """Names of its init containers that the API shows to have ended well."""
    scheduler: str = ""
    """Who places it."""
    created: str = ""
    """When, as the API server writes it: sorts by time."""


def read_pod(item: object, resource: str = RESOURCE) -> Pod | None:
    """Return the pod of an object from the API server; None when it is none. Units are what it asks of `resource`."""
    if not isinstance(item, dict):
        return None
    metadata, spec, status = at(item, "metadata"), at(item, "spec"), at(item, "status")
    uid, namespace, name = (metadata.get(key) for key in ("uid", "namespace", "name"))
    if not (isinstance(uid, str) and isinstance(namespace, str) and isinstance(name, str) and uid and name):
        return None
    annotations = {str(key): str(value) for key, value in at(metadata, "annotations").items()}
    # A tenant may write the hash onto a pod of theirs; the API server lets nobody add the mirror's mark later, and
    # kubelet runs no pod that has it.
    cgroup_uid = annotations.get(_HASH, uid) if _MIRROR in annotations else uid
    running: set[str] = set()
    finished: set[str] = set()
    containers: set[str] = set()
    for kind in ("container", "initContainer", "ephemeralContainer"):
        containers.update(str(entry.get("name")) for entry in entries(spec, kind + "s"))
        for entry in entries(status, kind + "Statuses"):
            if isinstance(at(entry, "state").get("running"), dict):
                running.add(str(entry.get("name")))
            if kind == "initContainer" and at(at(entry, "state"), "terminated").get("exitCode") == 0:
                finished.add(str(entry.get("name")))
    return Pod(
        uid=uid,
        namespace=namespace,
        name=name,
        annotations=annotations,
        cgroup_uid=cgroup_uid,
        phase=str(status.get("phase") or "Unknown"),
        deleting=bool(metadata.get("deletionTimestamp")),
        running=frozenset(running),
        containers=frozenset(containers),
        units=_asks(spec, "containers", resource) + _asks(spec, "initContainers", resource, stay=True),
        init_units=_asks(spec, "initContainers", resource, stay=False),
        finished=frozenset(finished),
        scheduler=str(spec.get("schedulerName") or ""),
        created=str(metadata.get("creationTimestamp") or ""),
    )


def _asks(spec: Object, key: str, resource: str, stay: bool | None = None) -> tuple[tuple[str, int], ...]:
    """Return name and units of the containers under `key`: all, or init ones that stay (sidecars), or that do not."""
    asks = []
    for entry in entries(spec, key):
        text = str(at(at(entry, "resources"), "limits").get(resource, ""))
        if text.isdecimal() and int(text) and stay in (None, entry.get("restartPolicy") == "Always"):
            asks.append((str(entry.get("name")), int(text)))
    return tuple(asks)


def at(place: Object, key: str) -> Object:
    """Return the object under `key`, an empty one when it is missing, null or no object."""
    value = place.get(key)
    return value if isinstance(value, dict) else {}


def entries(place: Object, key: str) -> list[Object]:
    """Return the objects in the list under `key`; none when it is missing or no list."""
    value = place.get(key)
    return [entry for entry in value if isinstance(entry, dict)] if isinstance(value, list) else []
