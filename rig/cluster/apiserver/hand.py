"""Direct access of a test to a store: reading it, and changing it without a request.

Nothing is checked here. So a test can make what kubelet, schedulers, controllers and time would have made.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .store import Key, Store

Body = dict[str, Any]


def pod(name: str, uid: str = "", namespace: str = "default", node: str = "n1", **more: Any) -> Body:
    """Return a pod as the API server would show it. `annotations`, `running` and `phase` are the usual changes."""
    running = more.get("running", ())
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": namespace,
            "uid": uid or f"uid-{namespace}-{name}",
            "annotations": more.get("annotations", {}),
        },
        "spec": {"nodeName": node, "containers": [{"name": "main"}]},
        "status": {
            "phase": more.get("phase", "Running"),
            "containerStatuses": [{"name": item, "state": {"running": {"startedAt": None}}} for item in running],
        },
    }


class Shown(Mapping["Key", Body]):
    """The objects of a kind, by namespace and name. Every access returns a copy."""

    def __init__(self, store: Store, plural: str) -> None:
        self._store, self._plural = store, plural

    def __getitem__(self, key: Key) -> Body:
        kept = self._store.get(self._plural, key)
        if kept is None:
            raise KeyError(key)
        return kept.copy()

    def __iter__(self) -> Iterator[Key]:
        return iter([key for key, _ in self._store.all(self._plural)])

    def __len__(self) -> int:
        return sum(1 for _ in self._store.all(self._plural))


class Hand:
    """Reads and changes one store."""

    def __init__(self, store: Store) -> None:
        self.store = store

    def seen(self, plural: str) -> Shown:
        """Return the objects of a kind as they are whenever they are read."""
        return Shown(self.store, plural)

    @property
    def pods(self) -> Shown:
        return self.seen("pods")

    @property
    def nodes(self) -> Shown:
        """The nodes, by ("", name)."""
        return self.seen("nodes")

    @property
    def events(self) -> Shown:
        return self.seen("events")

    def put_object(self, plural: str, body: Body) -> None:
        """Create or change an object of any kind. Its namespace is made if it does not exist."""
        metadata = body["metadata"]
        key = metadata.get("namespace", ""), metadata["name"]
        if key[0] and self.store.get("namespaces", ("", key[0])) is None:
            self.put_namespace(key[0])
        self.store.put(plural, key, {name: value for name, value in body.items() if name not in ("apiVersion", "kind")})

    def put(self, body: Body) -> None:
        """Create or change a pod."""
        self.put_object("pods", body)

    def put_node(self, body: Body) -> None:
        self.put_object("nodes", body)

    def put_namespace(self, name: str, phase: str = "Active", labels: Mapping[str, str] | None = None) -> None:
        """Create a namespace, or mark it as `Terminating`."""
        metadata = {"name": name, "uid": f"uid-{name}", "labels": dict(labels or {})}
        self.store.put("namespaces", ("", name), {"metadata": metadata, "status": {"phase": phase}})

    def put_config_map(self, namespace: str, name: str, data: dict[str, str]) -> None:
        self.put_object("configmaps", {"metadata": {"namespace": namespace, "name": name}, "data": data})

    def delete(self, name: str, namespace: str = "default") -> None:
        """Remove a pod at once."""
        self.store.delete("pods", (namespace, name))

    def expire_events(self) -> None:
        """Remove all Events, as an hour of time does."""
        for key in list(self.events):
            self.store.delete("events", key)
