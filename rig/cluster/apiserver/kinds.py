"""The kinds of objects that are served, and their paths. Another kind is another row."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of object at one version of its group."""

    kind: str
    plural: str
    version: str = "v1"
    group: str = ""
    namespaced: bool = True
    subresources: tuple[str, ...] = ()
    needs_version: bool = False
    """PUT is refused without a resourceVersion."""
    stored: bool = True
    """False: it can only be created, as a question that gets an answer."""

    @property
    def api_version(self) -> str:
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def title(self) -> str:
        """Its name in messages."""
        return f"{self.plural}.{self.group}" if self.group else self.plural


KINDS: tuple[Kind, ...] = (
    Kind("Pod", "pods", subresources=("status", "binding", "eviction")),
    Kind("Node", "nodes", namespaced=False),
    Kind("Namespace", "namespaces", namespaced=False),
    Kind("Event", "events"),
    Kind("ConfigMap", "configmaps"),
    Kind("ServiceAccount", "serviceaccounts"),
    Kind("Lease", "leases", group="coordination.k8s.io", needs_version=True),
    Kind("PodDisruptionBudget", "poddisruptionbudgets", group="policy"),
    Kind("TokenReview", "tokenreviews", group="authentication.k8s.io", namespaced=False, stored=False),
)


@dataclass(frozen=True, slots=True)
class Place:
    """The object or list that a path leads to."""

    kind: Kind
    namespace: str = ""
    """Empty: the object has no namespace, or the list is over all of them."""
    name: str = ""
    """Empty: all objects."""
    subresource: str = ""

    @property
    def key(self) -> tuple[str, str]:
        return self.namespace, self.name

    @property
    def what(self) -> str:
        """The resource, with its subresource: `pods/eviction`."""
        return f"{self.kind.plural}/{self.subresource}" if self.subresource else self.kind.plural


def place_of(path: str) -> Place | None:
    """Return the place that a path leads to; None: the server has no such path."""
    words = path.strip("/").split("/")
    if words[:2] == ["api", "v1"]:
        group, version, rest = "", "v1", words[2:]
    elif words[0] == "apis" and len(words) > 3:
        group, version, rest = words[1], words[2], words[3:]
    else:
        return None
    namespace = ""
    if rest[0] == "namespaces" and len(rest) > 2:
        namespace, rest = rest[1], rest[2:]
    if not 1 <= len(rest) <= 3 or not all(rest):
        return None
    plural, name, subresource = [*rest, "", ""][:3]
    for kind in KINDS:
        if (kind.group, kind.version, kind.plural) == (group, version, plural):
            if subresource and subresource not in kind.subresources:
                return None
            if (bool(namespace) and not kind.namespaced) or (kind.namespaced and name and not namespace):
                return None
            return Place(kind, namespace, name, subresource)
    return None
