"""Decides which nodes a pod may be bound to, by node selector, required node affinity and tolerations. Pure values.

The controller that removes a scheduling gate chooses the node, so it must not choose one that kube-scheduler would
refuse: KEP-3838 lets a gated pod's node selection be narrowed, not widened. Affinity between pods and topology spread
are not considered.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from sharepod.kube.objects import Object, at, entries

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_KEEPS_OUT: Final = ("NoSchedule", "NoExecute")


@dataclass(frozen=True, slots=True)
class Requirement:
    """A condition on one label of a node, or on its name."""

    key: str
    operator: str
    values: tuple[str, ...] = ()

    def holds(self, labels: Mapping[str, str]) -> bool:
        """Tell whether a node with these labels fulfils the condition; on its name: `{"metadata.name": name}`.

        The operators are those of Kubernetes. An unknown one is never fulfilled.
        """
        value = labels.get(self.key)
        if self.operator in ("In", "Exists"):
            return value is not None and (self.operator == "Exists" or value in self.values)
        if self.operator in ("NotIn", "DoesNotExist"):
            return value is None or (self.operator == "NotIn" and value not in self.values)
        numbers = [_integer(text) for text in (value, *self.values)]
        if self.operator not in ("Gt", "Lt") or len(numbers) != 2 or numbers[0] is None or numbers[1] is None:
            return False
        return numbers[0] > numbers[1] if self.operator == "Gt" else numbers[0] < numbers[1]


@dataclass(frozen=True, slots=True)
class Term:
    """Requirements that all have to hold; a term without any requirement never holds."""

    labels: tuple[Requirement, ...] = ()
    fields: tuple[Requirement, ...] = ()

    def holds(self, name: str, labels: Mapping[str, str]) -> bool:
        """Tell whether a node of that name, with these labels, fulfils the term."""
        if not (self.labels or self.fields):
            return False
        return all(one.holds(labels) for one in self.labels) and all(
            one.holds({"metadata.name": name}) for one in self.fields
        )


@dataclass(frozen=True, slots=True)
class Taint:
    """A mark on a node that keeps off the pods that do not tolerate it."""

    key: str
    value: str
    effect: str


@dataclass(frozen=True, slots=True)
class Toleration:
    """A kind of taint that a pod accepts."""

    key: str
    """Empty: any."""
    operator: str
    value: str
    effect: str
    """Empty: any."""

    def covers(self, taint: Taint) -> bool:
        """Tell whether this tolerates a taint."""
        if self.effect not in ("", taint.effect) or self.key not in ("", taint.key):
            return False
        # Without a key only Exists tolerates anything, as in Kubernetes.
        return self.operator == "Exists" or (bool(self.key) and self.value == taint.value)


@dataclass(frozen=True, slots=True)
class Constraints:
    """What a pod demands of its node, and tolerates."""

    selector: tuple[tuple[str, str], ...] = ()
    terms: tuple[Term, ...] | None = None
    """One of these has to hold; None: the pod requires no node affinity."""
    tolerations: tuple[Toleration, ...] = ()

    def suit(self, name: str, labels: Mapping[str, str], taints: Sequence[Taint]) -> bool:
        """Tell whether a node of that name, with these labels and taints, is one that the pod may be bound to."""
        return (
            all(labels.get(key) == value for key, value in self.selector)
            and (self.terms is None or any(term.holds(name, labels) for term in self.terms))
            and all(any(one.covers(taint) for one in self.tolerations) for taint in taints)
        )


ANY_NODE: Final = Constraints()


@dataclass(frozen=True, slots=True)
class Traits:
    """What pods can select a node by."""

    labels: Mapping[str, str] = field(default_factory=dict)
    taints: tuple[Taint, ...] = ()
    """The taints that keep pods out; a cordoned node has one."""


def read_constraints(spec: Object) -> Constraints:
    """Return the constraints in the spec of a pod, given as JSON."""
    selector = tuple(sorted((str(key), str(value)) for key, value in at(spec, "nodeSelector").items()))
    required = at(at(at(spec, "affinity"), "nodeAffinity"), "requiredDuringSchedulingIgnoredDuringExecution")
    terms = None
    if required:
        terms = tuple(
            Term(_requirements(term, "matchExpressions"), _requirements(term, "matchFields"))
            for term in entries(required, "nodeSelectorTerms")
        )
    tolerations = tuple(
        Toleration(*(str(one.get(key) or "") for key in ("key", "operator", "value", "effect")))
        for one in entries(spec, "tolerations")
    )
    found = Constraints(selector, terms, tolerations)
    return ANY_NODE if found == ANY_NODE else found  # one object for nearly all pods


def read_traits(item: Object) -> Traits:
    """Return the traits of a node, of which `item` is the JSON."""
    labels = {str(key): str(value) for key, value in at(at(item, "metadata"), "labels").items()}
    taints = [
        Taint(*(str(one.get(key) or "") for key in ("key", "value", "effect")))
        for one in entries(at(item, "spec"), "taints")
    ]
    if at(item, "spec").get("unschedulable") is True:
        taints.append(Taint("node.kubernetes.io/unschedulable", "", "NoSchedule"))
    return Traits(labels, tuple(taint for taint in dict.fromkeys(taints) if taint.effect in _KEEPS_OUT))


def _requirements(term: Object, key: str) -> tuple[Requirement, ...]:
    """Return the conditions of a node selector term under one key: matchExpressions or matchFields."""
    return tuple(
        Requirement(str(one.get("key") or ""), str(one.get("operator") or ""), _texts(one.get("values")))
        for one in entries(term, key)
    )


def _texts(values: object) -> tuple[str, ...]:
    """Return the items of a list as texts; empty: it is no list."""
    return tuple(map(str, values)) if isinstance(values, list) else ()


def _integer(text: str | None) -> int | None:
    """Return the integer in a text; None: it is none, or has more digits than 64 bits hold."""
    try:
        return int(text) if text is not None and len(text) < 20 else None
    except ValueError:
        return None


NO_TRAITS: Final = Traits()
