"""Tells which shares have a container to themselves, from the cgroups of their processes. Pure.

A container is a cgroup whose name holds the 64 hexadecimal digits that every runtime gives it. A session or a service
of the host is none: programs that have nothing to do with the share live there too.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from sharepod.agent.share import ShareId

UNSEEN: Final = ""
"""The cgroup of a process that lives and whose cgroup may not be read."""
_ID: Final = re.compile(r"(?<![0-9a-f])[0-9a-f]{64}(?![0-9a-f])")


@dataclass(frozen=True, slots=True)
class Place:
    """The container that a share has to itself, or the `cause` why it has none. Both empty: nothing has attached."""

    container: str = ""
    cause: str = ""

    @property
    def is_unknown(self) -> bool:
        """True while nothing has attached."""
        return not self.container and not self.cause


def container_of(cgroup: str) -> str:
    """Return the innermost container that a cgroup lies in, itself included; empty when it lies in none.

    docker-ID.scope, cri-containerd-ID.scope, crio-ID.scope, libpod-ID.scope, or the ID alone: one form for all.
    """
    names = cgroup.split("/")
    depth = max((at for at, name in enumerate(names, 1) if _ID.search(name)), default=0)
    return "/".join(names[:depth])


def is_within(cgroup: str, container: str) -> bool:
    """Tell whether a cgroup is a container's or below it."""
    return cgroup == container or cgroup.startswith(container + "/")


def places(tenants: Mapping[ShareId, Sequence[str]], agent: str) -> dict[ShareId, Place]:
    """Return where each share lives; `tenants` has the cgroup of each attached process, `agent` is our own."""
    return {share: _place(share, tenants, agent) for share in tenants}


def _place(share: ShareId, tenants: Mapping[ShareId, Sequence[str]], agent: str) -> Place:
    own = tenants[share]
    if not own:
        return Place()
    others = [cgroup for other, cgroups in tenants.items() if other != share for cgroup in cgroups]
    if UNSEEN in own or UNSEEN in others:
        return Place(cause="the agent may not see the cgroup of every process that is attached")
    containers = {container_of(cgroup) for cgroup in own}
    if "" in containers:
        return Place(cause="it is not in a container: other programs may share its cgroup")
    if len(containers) > 1:
        return Place(cause=f"its processes are in {len(containers)} containers")
    [container] = containers
    if any(is_within(cgroup, container) for cgroup in others):
        return Place(cause="another share has processes in its container")
    if is_within(agent, container):
        return Place(cause="the agent runs in its container")
    return Place(container)
