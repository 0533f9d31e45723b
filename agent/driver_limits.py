"""Decides which shares get the driver's own memory limit beside the hook's cap, and what is said of it. Pure.

The hook's cap always holds. From r615 on a driver can limit a cgroup on a device as well, which also holds for programs
that have no hook. The limit goes on the container that a share has to itself, at the share's cap, and only there.

Invariants: one order a site is under way; a limit that is not ours is neither changed nor cleared.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from sharepod.agent.share import NO_DRIVER_LIMIT, DeviceUuid, DriverLimit, Share, ShareId, bytes_text

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from sharepod.agent.container import Place

_MIG: Final = "MIG-"
_MIG_CAUSE: Final = "the driver has no limits for MIG instances"
_UNATTACHED: Final = "no process has attached yet"


@dataclass(frozen=True, slots=True)
class Order:
    """What NVML is to do: have the limit stand at `limit_bytes` on a cgroup; 0: clear what is ours there."""

    share: ShareId
    device: DeviceUuid
    cgroup: str
    limit_bytes: int
    asked_bytes: int = 0
    """What we asked for there before; 0: nothing, or an earlier agent did."""
    ours_bytes: int = 0
    """What stood there after that: drivers may round. 0: nothing of ours."""

    def is_foreign(self, standing_bytes: int | None) -> bool:
        """Tell whether somebody else set what stands there now; None: nothing stands."""
        return standing_bytes not in (None, self.ours_bytes, self.limit_bytes)

    def is_due(self, standing_bytes: int | None) -> bool:
        """Tell whether something is to be set, or cleared, where that stands now."""
        if not self.limit_bytes:
            return standing_bytes == self.ours_bytes
        kept = standing_bytes == self.ours_bytes and self.limit_bytes == self.asked_bytes
        return not kept and standing_bytes != self.limit_bytes


class Result(enum.Enum):
    """What came of an order."""

    STANDS = enum.auto()
    CLEARED = enum.auto()
    """Also: there was nothing of ours, or the cgroup has gone."""
    FOREIGN = enum.auto()
    REFUSED = enum.auto()


@dataclass(frozen=True, slots=True)
class Answer:
    """What came of an order; `standing_bytes` is the limit that stands there now, `cause` why it was refused."""

    order: Order
    result: Result
    standing_bytes: int = 0
    cause: str = ""


@dataclass(frozen=True, slots=True)
class News:
    """One line for the log."""

    event: str
    warning: bool
    share: ShareId
    fields: Mapping[str, object]


@dataclass(slots=True)
class _Site:
    """A share on a device. `limit` is what stands there of ours, or why nothing does."""

    limit: DriverLimit = NO_DRIVER_LIMIT
    asked_bytes: int = 0
    wanted: tuple[str, int] = ("", 0)
    """Cgroup and bytes."""
    cause: str = ""
    """Why nothing is wanted, where a cap asks for it."""
    under_way: Order | None = None


@dataclass(slots=True)
class DriverLimits:
    """The driver's limits of all shares. `offered`: the driver has any."""

    offered: bool
    _sites: dict[tuple[ShareId, DeviceUuid], _Site] = field(default_factory=dict)
    _places: dict[ShareId, Place] = field(default_factory=dict)
    _told: dict[ShareId, set[str]] = field(default_factory=dict)

    def of(self, share: ShareId, device: DeviceUuid) -> DriverLimit:
        """Return what the driver does for a share on a device."""
        site = self._sites.get((share, device))
        return site.limit if site else NO_DRIVER_LIMIT

    def adopt(self, share: ShareId, device: DeviceUuid, limit: DriverLimit) -> None:
        """Take over what an earlier agent set."""
        if self.offered and limit.cgroup:
            self._sites[share, device] = _Site(DriverLimit(limit.cgroup, limit.limit_bytes))

    def step(self, shares: Iterable[Share], places: Mapping[ShareId, Place]) -> list[Order]:
        """Return what is to be done as of now; what should stand is looked at again each time."""
        if not self.offered:
            return []
        self._places = dict(places)
        return [order for share in shares for order in self._orders(share, verify=True)]

    def change(self, share: Share) -> list[Order]:
        """Return what is to be done at once when a share is new, or its terms have changed."""
        return self._orders(share, verify=False) if self.offered else []

    def end(self, share: ShareId) -> list[Order]:
        """Return what is to be done when a share ends."""
        self._places.pop(share, None)
        self._told.pop(share, None)
        orders: list[Order | None] = []
        for key in [key for key in self._sites if key[0] == share]:
            self._sites[key].wanted = ("", 0)
            orders.append(self._next(key, verify=False))
            if not self._sites[key].under_way:
                del self._sites[key]
        return [order for order in orders if order]

    def answered(self, answer: Answer) -> tuple[list[Order], list[News]]:
        """Take an answer into account; return what is to be done next, and what is new."""
        order, key = answer.order, (answer.order.share, answer.order.device)
        site = self._sites[key]
        site.under_way = None
        news = self._learn(site, answer)
        follow = None
        if site.wanted != (order.cgroup, order.limit_bytes):
            follow = self._next(key, verify=False)
        if not follow and site.wanted == ("", 0) and order.share not in self._places:
            del self._sites[key]  # the share has ended
            self._told.pop(order.share, None)
        return [follow] if follow else [], news

    def _orders(self, share: Share, *, verify: bool) -> list[Order]:
        found: list[Order] = []
        for held in share.devices:
            key = (share.id, held.device)
            site = self._sites.setdefault(key, _Site())
            site.wanted, site.cause = self._goal(key, held.terms.memory_limit_bytes, site)
            if not site.limit.cgroup and not site.wanted[0]:
                site.limit = DriverLimit(cause=site.cause)
            if order := self._next(key, verify=verify):
                found.append(order)
        return found

    def _goal(self, key: tuple[ShareId, DeviceUuid], cap_bytes: int, site: _Site) -> tuple[tuple[str, int], str]:
        """Return where a limit should stand and how high, and why none should."""
        place = self._places.get(key[0])
        if not cap_bytes:
            return ("", 0), ""
        if key[1].startswith(_MIG):
            return ("", 0), _MIG_CAUSE
        if place is None or place.is_unknown:
            # Between two programs, and before the first look of a new agent, what stands stays.
            stays = site.limit.cgroup
            return ((stays, cap_bytes), "") if stays else (("", 0), _UNATTACHED)
        return ((place.container, cap_bytes), "") if place.container else (("", 0), place.cause)

    def _next(self, key: tuple[ShareId, DeviceUuid], *, verify: bool) -> Order | None:
        """Return the next order for a site, if one is due; `verify`: also look whether what should stand does."""
        site = self._sites[key]
        if site.under_way:
            return None
        stands, (cgroup, limit_bytes) = site.limit.cgroup, site.wanted
        if stands and stands != cgroup:
            site.under_way = Order(*key, stands, 0, site.asked_bytes, site.limit.limit_bytes)
        elif cgroup and (verify or not stands or limit_bytes != site.asked_bytes):
            site.under_way = Order(*key, cgroup, limit_bytes, site.asked_bytes, site.limit.limit_bytes)
        return site.under_way

    def _learn(self, site: _Site, answer: Answer) -> list[News]:
        order, before = answer.order, site.limit
        fields: dict[str, object] = {"device": order.device, "cgroup": order.cgroup}
        if answer.result is Result.STANDS:
            site.limit, site.asked_bytes = DriverLimit(order.cgroup, answer.standing_bytes), order.limit_bytes
            if site.limit == before:
                return []
            told = {**fields, "limit_bytes": answer.standing_bytes}
            return [News("driver limits memory too", warning=False, share=order.share, fields=told)]
        if answer.result is Result.CLEARED:
            site.limit, site.asked_bytes = DriverLimit(cause=site.cause), 0
            return [News("driver limits memory no more", warning=False, share=order.share, fields=fields)]
        if answer.result is Result.FOREIGN:
            cause = f"somebody else has the driver limit its container to {bytes_text(answer.standing_bytes)}"
        else:
            cause = answer.cause
        stays = answer.result is Result.REFUSED and before.cgroup == order.cgroup
        if not stays or not order.limit_bytes:
            site.limit, site.asked_bytes = DriverLimit(cause=cause), 0
        if stays:
            event, told = "driver keeps its memory limit", {"limit_bytes": before.limit_bytes, "cause": cause}
        else:
            event, told = "driver does not limit memory", {"cause": f"{cause}: the hook enforces alone"}
        return self._tell(order.share, event, fields | told)

    def _tell(self, share: ShareId, event: str, fields: dict[str, object]) -> list[News]:
        """Tell a cause, once a share."""
        key = f"{event}: {fields['cause']}"
        if key in self._told.setdefault(share, set()):
            return []
        self._told[share].add(key)
        return [News(event, warning=True, share=share, fields=fields)]
