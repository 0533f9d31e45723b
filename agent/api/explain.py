"""Explains in words why a share runs or waits. Pure: a status in; sentences out, in the message of the gRPC answer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sharepod.agent.devices.device import UNFIT_REASONS
from sharepod.agent.errors import UnknownShare
from sharepod.agent.shares import diagnostics
from sharepod.agent.shares.share import (
    DeviceTerms,
    DeviceUsage,
    ShareClass,
    ShareState,
    ShareStatus,
    bytes_text,
    percent_text,
)
from sharepod.proto import v1_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sharepod.agent.devices.device import DeviceStatus, NodeStatus
    from sharepod.agent.shares.share import DeviceUuid, ShareId


def _holders(node: NodeStatus, device: DeviceUuid, but: ShareId) -> list[tuple[ShareStatus, DeviceUsage]]:
    """Return the shares that have a turn on the device, or drain; each with its usage there. `but` is left out."""
    return [
        (status, usage)
        for status in node.shares
        for usage in status.usages
        if usage.device == device
        and status.share.id != but
        and usage.usage.state in (ShareState.HOLDING, ShareState.DRAINING)
    ]


def _reason_waiting(terms: DeviceTerms, usage: DeviceUsage, names: str, share_class: ShareClass) -> str:
    """Return why a share waits on a device, as a sentence; the wait for its gang is not told here.

    `names`: the holders of the device, in words; empty if there is none.
    """
    request, limit = terms.terms.request_millipercent, terms.terms.limit_millipercent
    used = usage.used_1s_millipercent
    if limit < 100_000 and used >= limit * 0.97:  # a share that its limit holds back has used a little less than that
        return (
            f"waits because it has used {percent_text(used)} of the last second and its limit is "
            f"{percent_text(limit)}: raise the limit to let it use more"
        )
    beside = f" while {names}" if names else ""
    if share_class is ShareClass.BATCH and 0 < request <= used:
        return (
            f"waits{beside}: it has had {percent_text(used)} of the last second, at or above its request "
            f"{percent_text(request)}, and beyond that batch runs when no other share waits"
        )
    if request == 0:
        kind = "batch" if share_class is ShareClass.BATCH else "best effort"
        return f"waits{beside}: {kind} without a request runs when no other share waits"
    if used >= request:
        return (
            f"waits for its turn{beside}: it has had {percent_text(used)} of the last second, at or above its request "
            f"{percent_text(request)}; the surplus goes round in proportion to the requests"
        )
    return (
        f"waits for its turn{beside}: it has had {percent_text(used)} of the last second, below its request "
        f"{percent_text(request)}, so it is among the next"
    )


def _reason(
    status: ShareStatus,
    terms: DeviceTerms,
    usage: DeviceUsage,
    device: DeviceStatus,
    names: str,
    gang_index: int | None,
    mates: Sequence[ShareStatus],
) -> str:
    """Return why the share runs or waits on a device, as a sentence.

    `names`: the holders, in words. `gang_index`: the device that its gang waits for; None: it waits for none.
    `mates`: the shares of its gang, itself among them.
    """
    state = usage.usage.state
    if status.share.yielding:
        request = percent_text(terms.terms.request_millipercent)
        return (
            f"yields: it is paused to make room, and its request {request} counts as not promised; it goes on when it "
            "is resumed and fits again"
        )
    if state is ShareState.PAUSED and not status.share.paused:
        paused = " and ".join(mate.share.title for mate in mates if mate.share.paused)
        return f"paused with its gang: nothing of it runs while {paused or 'a share of it'} is paused"
    if status.share.paused:
        return f"paused by an operator: `sharepod resume {status.share.title}` lets it run"
    if device.health_reason in UNFIT_REASONS:
        return f"its device is of no use to shares: {device.health_reason}"
    if not device.healthy:
        if device.health_reason.startswith("released "):
            return f"its device is {device.health_reason}; until then nothing looks at the device"
        return f"its device is unhealthy ({device.health_reason}): its launches meet the driver's own error"
    if state is ShareState.WAITING and gang_index is not None:
        return (
            f"waits for device {gang_index} of its gang: its turn has come here, and it gets the devices on which it "
            "waits together; until then others run here, 2 ms at a time"
        )
    if state is ShareState.WAITING:
        return _reason_waiting(terms, usage, names, status.share.share_class)
    if state is ShareState.HOLDING:
        return "runs: it holds the turn"
    if state is ShareState.DRAINING:
        return "its turn is over and its last work still runs; the device goes on when that has drained"
    if not status.processes:
        return "idle: no process has attached; start the program with the hook (`sharepod run` does)"
    return "idle: its processes have submitted no work"


def explain(node: NodeStatus, share_id: ShareId) -> list[pb.Explanation]:
    """Return one explanation per device of the share: why it runs or waits there, and facts. Raises UnknownShare."""
    status = next((s for s in node.shares if s.share.id == share_id), None)
    if status is None:
        raise UnknownShare(f"no share {share_id!r} on this node: `sharepod ps` lists those that are there")
    devices = {device.info.uuid: device for device in node.devices}
    mates = [other for other in node.shares if other.share.is_gang_of(status.share)]
    result: list[pb.Explanation] = []
    for terms, usage in zip(status.share.devices, status.usages, strict=True):
        device = devices[terms.device]
        gang = devices.get(usage.gang_device) if usage.gang_device else None
        holders = _holders(node, terms.device, share_id)
        names = " and ".join(
            f"{other.share.title} {'holds' if held.usage.state is ShareState.HOLDING else 'drains'}"
            for other, held in holders
        )
        if names:
            names = f"{names} device {device.info.index}"
        result.append(
            pb.Explanation(
                device_uuid=terms.device,
                state=pb.ShareState.Value(f"SHARE_STATE_{usage.usage.state.name}"),
                reason=_reason(status, terms, usage, device, names, gang.info.index if gang else None, mates),
                facts=(
                    *_facts(status, terms, usage, device),
                    *_gang(status, mates),
                    *diagnostics.facts(status),
                    *_strays(node, status),
                ),
                holder_share_ids=[other.share.id for other, _ in holders],
            )
        )
    return result


def _gang(status: ShareStatus, mates: Sequence[ShareStatus]) -> tuple[str, ...]:
    """Return a sentence about the gang of the share; none if it is in no gang. `mates`: the gang's shares, with it."""
    if not status.share.gang:
        return ()
    others = [mate.share.title for mate in mates if mate is not status]
    beside = f"with {', '.join(others)}: they get their devices together" if others else "alone on this node"
    return (f"of gang {status.share.gang}, {beside}",)


def _facts(status: ShareStatus, terms: DeviceTerms, usage: DeviceUsage, device: DeviceStatus) -> tuple[str, ...]:
    """Return sentences about what the share has of a device, what it uses, and what is wrong."""
    held, account = terms.terms, usage.usage
    cap = f"of {bytes_text(held.memory_limit_bytes)}" if held.memory_limit_bytes else "(no cap)"
    used, limit = account.memory_used_bytes, held.memory_limit_bytes
    beyond = account.memory_overhead_bytes
    facts = [
        f"request {percent_text(held.request_millipercent)}, limit {percent_text(held.limit_millipercent)}",
        f"used {percent_text(usage.used_1s_millipercent)} of the last second",
        f"used {percent_text(usage.used_1m_millipercent)} of the last minute",
        f"memory {bytes_text(used)} {cap}"
        + (f", {bytes_text(beyond)} of it contexts, modules and rounding" if beyond > 0 else ""),
        f"device {device.info.index}: {percent_text(device.requested_millipercent)} of its time is promised"
        + (f", and {percent_text(device.yielded_millipercent)} is yielded" if device.yielded_millipercent else ""),
    ]
    if limit and used > limit:
        over = bytes_text(used - limit)
        facts.append(f"its memory is {over} above its cap: new allocations are refused until it has freed that")
    if account.memory_refusals:
        count = account.memory_refusals
        what = f"{count} allocations" if count > 1 else "an allocation"
        last = "the last of " if count > 1 else "of "
        facts.append(f"{what} did not fit under its memory cap, {last}{bytes_text(account.memory_refused_bytes)}")
    if copied := account.copies.to_device_count + account.copies.to_host_count:
        facts.append(
            f"copied {bytes_text(account.copies.to_device_bytes)} to the device and "
            f"{bytes_text(account.copies.to_host_bytes)} back, in {copied} copies: these pass no gate"
        )
    if account.overrun_ns:
        facts.append(f"overran its quanta by {account.overrun_ns / 1e9:.3f} s in all; overruns are repaid")
    if account.passed:
        facts.append(
            f"{account.passed} launches passed without a turn (2 ms without progress, a stale agent, or several "
            "devices at once)"
        )
    if account.faults:
        facts.append(f"{account.faults} values in its region were out of range or overwritten: clamped, and put right")
    if cause := diagnostics.small_cap(limit, device.context_bytes):
        facts.append(cause)
    facts += [
        f"its process {process.name} ({process.pid}) runs unmetered: {process.unmetered_cause}"
        for process in device.unmanaged
        if process.unmetered_cause and process.region == status.share.directory
    ]
    if device.unmanaged:
        names = ", ".join(f"{process.name} ({process.pid})" for process in device.unmanaged)
        facts.append(f"unmetered processes use the device: {names}")
    return tuple(facts)


def _strays(node: NodeStatus, status: ShareStatus) -> list[str]:
    """Return a sentence for each of the share's processes on a device that the share does not hold."""
    held = {terms.device for terms in status.share.devices}
    return [
        f"its process {process.name} ({process.pid}) runs unmetered on device {device.info.index}: "
        f"{process.unmetered_cause}"
        for device in node.devices
        for process in device.unmanaged
        if device.info.uuid not in held and process.unmetered_cause and process.region == status.share.directory
    ]
