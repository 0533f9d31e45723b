"""Decides whether a share fits and on which devices. Pure: values in; values out, or a ShareError with the remedy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from sharepod.agent.errors import DoesNotFit, InvalidInput, UnknownDevice, WrongState
from sharepod.agent.shares.share import (
    WHOLE_MILLIPERCENT,
    DeviceAsk,
    DeviceTerms,
    DeviceUuid,
    Share,
    ShareId,
    Terms,
    bytes_text,
    percent_text,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sharepod.agent.devices.device import DeviceInfo


@dataclass(frozen=True, slots=True)
class Room:
    """What a device has, and what of it is promised to shares."""

    info: DeviceInfo
    requested_millipercent: int = 0
    """The sum of requests, without those of shares that yield."""
    memory_promised_bytes: int = 0
    shares: int = 0
    health_reason: str = ""
    yielded_millipercent: int = 0
    """The sum of requests of shares that yield."""

    @property
    def free_millipercent(self) -> int:
        """Device time not yet promised; 0 when overcommitted."""
        return max(0, WHOLE_MILLIPERCENT - self.requested_millipercent)

    @property
    def free_bytes(self) -> int:
        """Memory not yet promised."""
        return max(0, self.info.memory_total_bytes - self.memory_promised_bytes)


def rooms(
    devices: Sequence[DeviceInfo],
    shares: Sequence[Share],
    health: dict[DeviceUuid, str],
    without: ShareId | None = None,
) -> dict[DeviceUuid, Room]:
    """Return the room that `shares` leave on every device. The share `without`, which is being changed, is left out.

    `health`: by device, why it is unhealthy; empty or missing if it is well.
    """
    millipercent = dict.fromkeys((info.uuid for info in devices), 0)
    memory_bytes, count, yielded = millipercent.copy(), millipercent.copy(), millipercent.copy()
    for share in shares:
        for held in share.devices if share.id != without else ():
            if held.device in count:
                (yielded if share.yielding else millipercent)[held.device] += held.terms.request_millipercent
                memory_bytes[held.device] += held.terms.memory_limit_bytes
                count[held.device] += 1
    return {
        (uuid := info.uuid): Room(
            info, millipercent[uuid], memory_bytes[uuid], count[uuid], health.get(uuid, ""), yielded[uuid]
        )
        for info in devices
    }


def resolve_device(
    devices: Sequence[DeviceInfo], wanted: str, remedy: str = "name one of them, or none for the best fit"
) -> DeviceInfo:
    """Return the device with the UUID or index `wanted`. Raises UnknownDevice; `remedy` ends the error."""
    for info in devices:
        if wanted in (info.uuid, str(info.index)):
            return info
    there = ", ".join(f"{info.index} ({info.uuid})" for info in devices) or "none"
    raise UnknownDevice(f"unknown device {wanted[:80]!r}: this node has {there}: {remedy}")


def check_fit(room: Room, terms: Terms, *, overcommit: bool) -> None:
    """Raise DoesNotFit or InvalidInput unless `terms` fit into `room`. `overcommit`: only the device's size counts."""
    info = room.info
    total = info.memory_total_bytes
    if terms.request_millipercent > room.free_millipercent and not overcommit:
        raise DoesNotFit(
            f"request {percent_text(terms.request_millipercent)} does not fit on device {info.index}: "
            f"{percent_text(room.free_millipercent)} of its time is free: lower the request, release a share, "
            "or start the agent with --overcommit"
        )
    if total and terms.memory_limit_bytes > total:
        raise InvalidInput(
            f"memory {bytes_text(terms.memory_limit_bytes)} is more than the {bytes_text(total)} of device "
            f"{info.index} ({info.name}): lower it"
        )
    if total and terms.memory_limit_bytes > room.free_bytes and not overcommit:
        raise DoesNotFit(
            f"memory {bytes_text(terms.memory_limit_bytes)} does not fit on device {info.index}: "
            f"{bytes_text(room.free_bytes)} of {bytes_text(total)} are not promised to others: "
            "lower it or release a share"
        )


def _terms(ask: DeviceAsk, room: Room) -> Terms:
    """Return the terms of `ask` on the device of `room`: a cap in proportion depends on the device's memory."""
    return ask.terms_on(room.info.memory_total_bytes)


def _check_health(room: Room) -> None:
    """Raise WrongState if the device is unhealthy."""
    if room.health_reason:
        raise WrongState(
            f"device {room.info.index} is unhealthy ({room.health_reason}): name another, or wait until it is well"
        )


def _best_fit(candidates: Sequence[Room], ask: DeviceAsk, *, overcommit: bool) -> Room:
    """Return the device that the share fits on and that has the least time left, so that large gaps stay whole.

    Ties go to the device with the least memory left, then to the lowest index. A best-effort share (request 0) gets the
    device with the least time requested, and so does any share under `overcommit`. Raises DoesNotFit, InvalidInput or
    WrongState if the share fits on none.
    """
    fitting: list[Room] = []
    refusals: list[DoesNotFit | InvalidInput | WrongState] = []
    for room in candidates:
        try:
            _check_health(room)
            check_fit(room, _terms(ask, room), overcommit=overcommit)
        except (DoesNotFit, InvalidInput, WrongState) as refusal:
            refusals.append(refusal)
        else:
            fitting.append(room)
    if not fitting:
        raise _summary(candidates, ask, refusals)
    if ask.terms.request_millipercent == 0 or overcommit:
        return min(fitting, key=lambda r: (r.requested_millipercent, r.shares, -r.free_bytes, r.info.index))
    return min(fitting, key=lambda r: (r.free_millipercent, r.free_bytes, r.info.index))


def _summary(
    candidates: Sequence[Room], ask: DeviceAsk, refusals: Sequence[DoesNotFit | InvalidInput | WrongState]
) -> DoesNotFit | InvalidInput | WrongState:
    """Return the error for a share that fits on none of the candidates.

    It is that of the only candidate, or one that tells the most room there is. `refusals`: each candidate's error.
    """
    terms = ask.terms
    if not candidates:
        return DoesNotFit("no device is left for this share: ask for fewer devices")
    if len(refusals) == 1:
        return refusals[0]
    if all(isinstance(refusal, InvalidInput) for refusal in refusals):
        most = max(room.info.memory_total_bytes for room in candidates)
        return InvalidInput(
            f"memory {bytes_text(terms.memory_limit_bytes)} is more than any device here has "
            f"({bytes_text(most)}): lower it"
        )
    roomiest = max(candidates, key=lambda r: (not r.health_reason, r.free_millipercent, r.free_bytes))
    memory = f" with {bytes_text(terms.memory_limit_bytes)}" if terms.memory_limit_bytes else ""
    memory = " with as much of the memory" if ask.memory_in_proportion else memory
    return DoesNotFit(
        f"request {percent_text(terms.request_millipercent)}{memory} fits on none of the {len(candidates)} devices: "
        f"the roomiest, {roomiest.info.index}, has {percent_text(roomiest.free_millipercent)} and "
        f"{bytes_text(roomiest.free_bytes)} free: lower the request or release a share"
    )


def place(asks: Sequence[DeviceAsk], free: dict[DeviceUuid, Room], *, overcommit: bool) -> tuple[DeviceTerms, ...]:
    """Choose a distinct device for every ask: named devices first, then best fit, the largest request first.

    `free`: the room on each device of the node. Raises UnknownDevice, InvalidInput, DoesNotFit or WrongState; then
    nothing is placed.
    """
    devices = sorted((room.info for room in free.values()), key=lambda info: info.index)
    chosen: dict[int, DeviceTerms] = {}
    for position, ask in enumerate(asks):
        if ask.device:
            room = free[resolve_device(devices, ask.device).uuid]
            if any(terms.device == room.info.uuid for terms in chosen.values()):
                raise InvalidInput(f"device {ask.device} is asked for twice: give each device once, with the sum")
            _check_health(room)
            check_fit(room, _terms(ask, room), overcommit=overcommit)
            chosen[position] = DeviceTerms(room.info.uuid, _terms(ask, room))
    open_asks = [position for position in range(len(asks)) if position not in chosen]
    if len(asks) > len(devices):
        raise DoesNotFit(f"{len(asks)} devices asked for, this node has {len(devices)}: ask for fewer")
    for position in sorted(open_asks, key=lambda p: -asks[p].terms.request_millipercent):
        taken = {terms.device for terms in chosen.values()}
        candidates = [free[info.uuid] for info in devices if info.uuid not in taken]
        room = _best_fit(candidates, asks[position], overcommit=overcommit)
        chosen[position] = DeviceTerms(room.info.uuid, _terms(asks[position], room))
    return tuple(chosen[position] for position in range(len(asks)))


def check_change(
    share: Share, changed: Sequence[DeviceTerms], free: dict[DeviceUuid, Room], *, overcommit: bool
) -> None:
    """Raise DoesNotFit or InvalidInput unless the new terms of `share` fit into `free`, the room without the share.

    Only what grows has to fit: so an overcommitted node can be corrected step by step. The time of a share that yields
    is not checked here, but when the share wants it back (`check_return`).
    """
    before = {held.device: held.terms for held in share.devices}
    for new in changed:
        old = before[new.device]
        grows_time = not share.yielding and new.terms.request_millipercent > old.request_millipercent
        grows_memory = new.terms.memory_limit_bytes > old.memory_limit_bytes
        if grows_time or grows_memory:
            grown = Terms(
                new.terms.request_millipercent if grows_time else 0,
                WHOLE_MILLIPERCENT,
                new.terms.memory_limit_bytes if grows_memory else 0,
            )
            check_fit(free[new.device], grown, overcommit=overcommit)


def check_return(share: Share, free: dict[DeviceUuid, Room], *, overcommit: bool) -> None:
    """Raise DoesNotFit unless the time that `share` yields fits again into `free`, the room without the share."""
    for held in share.devices:
        room, request = free[held.device], held.terms.request_millipercent
        if request > room.free_millipercent and not overcommit:
            raise DoesNotFit(
                f"share {share.title} stays paused: its request {percent_text(request)} does not fit on device "
                f"{room.info.index} again, {percent_text(room.free_millipercent)} of its time is free: wait until "
                "others end there, or lower a request"
            )
