"""Reads what the scheduler needs of a node from the API server's JSON. Pure values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from sharepod.deviceplugin.core.unit import RESOURCE
from sharepod.kube import quantity
from sharepod.kube.objects import at
from sharepod.scheduler.placement.constraints import NO_TRAITS, Constraints, Traits, read_traits

HOSTNAME: Final = "kubernetes.io/hostname"


@dataclass(frozen=True, slots=True)
class Node:
    """One node, without its devices: its agent reports these."""

    name: str
    cpu_milli: int
    """Processors that are allocatable to pods, as kubelet says."""
    memory_mib: int
    units: int
    """Percents of devices that its device plugin offers to pods."""
    hostname: str = ""
    """Its label kubernetes.io/hostname, which pods can select."""
    traits: Traits = NO_TRAITS
    domains: tuple[str, ...] = ()
    """Its rack, switch, zone and so on, as its labels say, the narrowest first; "": it has no such label."""

    def suits(self, constraints: Constraints) -> bool:
        """Tell whether pods with these constraints may be bound to it, whatever is left of it."""
        return constraints.suit(self.name, self.traits.labels, self.traits.taints)


def read_node(item: object, resource: str = RESOURCE, domains: tuple[str, ...] = ()) -> Node | None:
    """Return the node in an object from the API server; None: the object is no node.

    `resource`: the one of which the device plugin offers percents of devices. `domains`: the labels that name a node's
    rack, switch, zone and so on, the narrowest first (Node.domains).
    """
    if not isinstance(item, dict):
        return None
    name, allocatable = at(item, "metadata").get("name"), at(at(item, "status"), "allocatable")
    if not isinstance(name, str) or not name:
        return None
    units = quantity.milli(str(allocatable.get(resource, "0"))) // 1000  # whole ones
    cpu, memory = str(allocatable.get("cpu", "0")), str(allocatable.get("memory", "0"))
    labels = at(at(item, "metadata"), "labels")
    own = tuple(str(labels.get(label, "")) for label in domains)
    return Node(
        name, quantity.milli(cpu), quantity.mib(memory), units, str(labels.get(HOSTNAME, "")), read_traits(item), own
    )
