"""Log lines for an operator about a share's programs: bad input, damage, missing driver functions. Pure.

This file has the sentences, and remembers which have been logged: `DiagnosticLog.step` turns a status into the new
lines. The values come from tenants, so each is a number or a name of our own table, never a tenant's text.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Final

from sharepod.agent.shares.share import bytes_text

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from sharepod.agent.shares.share import DeviceUuid, Diagnostic, ShareId, ShareStatus

REGION_REMEDY: Final = "programs that start now run unmetered, or not at all on a closed node: register the share anew"
_FAULTS_FACTOR: Final = 10
"""Damage that goes on is logged again when its count has grown by this factor: a tenant must not fill the log."""
_FROM_LIST: Final = "take devices from the list that the share was given"
_UNMETERED: Final = "the program runs unmetered (on a closed node cuInit fails with 802): upgrade the driver"
_TURNED_AWAY: Final = (
    "it runs unmetered (on a closed node cuInit fails with 802): end some programs of the share, or give it its own"
)
_NO_THREAD: Final = "it runs unmetered until that succeeds, which is tried every second: raise the limit of processes"
_FLOOD: Final = "find it among the processes of the share and end it"
_INIT_CAUSES: Final[Mapping[int, str]] = {
    46: "a device lets no other program in: set its compute mode to DEFAULT",
    100: f"its CUDA_VISIBLE_DEVICES names no device that is there: {_FROM_LIST}",
    803: "libcuda and the kernel's driver are of different versions: install them together",
    804: "its forward-compatible libcuda does not serve this GPU: use the driver's own",
}


class Kind(IntEnum):
    """`enum sp_diagnostic_kind` of region/region.h."""

    INIT = 0
    DEVICE = 1
    OUTSIDE = 2
    FUNCTION = 3
    DRIVER = 4
    VERSION = 5
    FULL = 6
    KEEPER = 7
    CROWDED = 8
    RINGS = 9
    LOCKS = 10


@dataclass(frozen=True, slots=True)
class Line:
    """One line for the log."""

    event: str
    share: ShareId
    fields: dict[str, object]


def _init_cause(error: int) -> str:
    """Return why CUDA does not start, from the CUresult of cuInit or of the making of a context."""
    return _INIT_CAUSES.get(error, "the driver does not start: look at nvidia-smi and dmesg")


def describe(diagnostic: Diagnostic, devices: int) -> tuple[int, str]:
    """Return the CUDA error that the program got (0: none), and its cause; `devices`: how many its share holds."""
    function = diagnostic.function or "a function that is not known here"
    detail = diagnostic.detail
    version = f"{detail // 1000}.{detail % 1000 // 10}"
    has = "which has one: take number 0" if devices == 1 else f"which has {devices}: take 0 to {devices - 1}"
    texts: dict[int, tuple[int, str]] = {
        Kind.INIT: (detail, _init_cause(detail)),
        Kind.DEVICE: (101, f"it asked for device {detail} of its share, {has}"),
        Kind.OUTSIDE: (
            101,
            f"its share does not hold the device that it calls {detail}, and this node is closed: {_FROM_LIST}",
        ),
        Kind.FUNCTION: (
            500,
            f"it called {function}, which the driver lacks: upgrade the driver, or build for its CUDA",
        ),
        Kind.DRIVER: (0, f"the driver lacks {function}: {_UNMETERED}"),
        Kind.FULL: (
            0,
            f"it was turned away, for all {detail} slots of its share are taken: {_TURNED_AWAY}",
        ),
        Kind.KEEPER: (
            0,
            f"its helper thread could not be started (errno {detail}): {_NO_THREAD}",
        ),
        Kind.CROWDED: (
            0,
            f"it launches from more than {detail} threads or streams, the rest unmetered: use fewer, or more processes",
        ),
        Kind.RINGS: (
            0,
            f"it rang the doorbell over {detail} times in a second, which takes processor time of the agent: {_FLOOD}",
        ),
        Kind.LOCKS: (
            0,
            f"it held so many locks on its share's files that the agent spent {detail} ms a second on them: {_FLOOD}",
        ),
        Kind.VERSION: (0, f"the driver is for CUDA {version}, and SharePod is tested from 11.8 on: upgrade the driver"),
    }
    return texts.get(diagnostic.kind, (0, f"diagnostic {diagnostic.kind} of a newer hook: upgrade the agent"))


def facts(status: ShareStatus) -> list[str]:
    """Return a sentence for the last diagnostic of each kind, and for a region that cannot be used."""
    sentences: list[str] = []
    for diagnostic in {diagnostic.kind: diagnostic for diagnostic in status.diagnostics}.values():
        error, cause = describe(diagnostic, len(status.share.devices))
        process = f"its process {diagnostic.pid}" if diagnostic.pid else "one of its processes"
        sentences.append(f"{process} got CUDA error {error}: {cause}" if error else f"{process}: {cause}")
    if status.region_fault:
        sentences.append(f"{status.region_fault}: {REGION_REMEDY}")
    return sentences


def troubles(status: ShareStatus) -> list[str]:
    """Return a line for an operator about each trouble of a share: its diagnostics, and damage to its region."""
    faults = sum(held.usage.faults for held in status.usages)
    damage = f"{faults} values or files of its region were damaged and put right: find the program that writes there"
    return [f"share {status.share.title}: {text}" for text in [*facts(status), *([damage] if faults else [])]]


def small_cap(memory_limit_bytes: int, context_bytes: int) -> str:
    """Return a sentence if the memory cap is too small for a context; empty if it is not, or if there is no cap."""
    if not 0 < memory_limit_bytes < context_bytes:
        return ""
    return (
        f"its cap of {bytes_text(memory_limit_bytes)} does not hold a CUDA context, which takes "
        f"{bytes_text(context_bytes)} here: raise the cap"
    )


@dataclass(slots=True)
class _Told:
    """What has been logged about one share."""

    diagnostic: int = 0
    """The number of the last diagnostic that was logged."""
    faults: int = 0
    """How many damaged values there were when damage was last logged."""
    region_fault: str = ""
    caps: frozenset[DeviceUuid] = frozenset()
    """The devices on which the share's cap is too small for a context."""


class DiagnosticLog:
    """The lines that have been logged, by share. Invariant: `_told` holds exactly the shares of the last step."""

    def __init__(self) -> None:
        self._told: dict[ShareId, _Told] = {}

    def step(self, shares: Iterable[ShareStatus], context_bytes: Mapping[DeviceUuid, int]) -> list[Line]:
        """Return the new lines. `context_bytes`: the memory that a context takes on each device; 0: not known."""
        before, self._told, lines = self._told, {}, []
        for status in shares:
            told = self._told[status.share.id] = before.get(status.share.id) or _Told()
            lines += self._diagnostics(status, told)
            lines += self._region(status, told)
            lines += self._caps(status, told, context_bytes)
        return lines

    @staticmethod
    def _diagnostics(status: ShareStatus, told: _Told) -> list[Line]:
        """Return a line for each diagnostic that has not been logged yet, and note it in `told`."""
        lines: list[Line] = []
        for diagnostic in status.diagnostics:
            if diagnostic.number <= told.diagnostic:
                continue
            told.diagnostic = diagnostic.number
            error, cause = describe(diagnostic, len(status.share.devices))
            fields: dict[str, object] = {
                **({"pid": diagnostic.pid} if diagnostic.pid else {}),
                **({"cuda_error": error} if error else {}),
                "cause": cause,
            }
            lines.append(Line("program met trouble", status.share.id, fields))
        return lines

    @staticmethod
    def _region(status: ShareStatus, told: _Told) -> list[Line]:
        """Return lines about damage that has grown and a region that has become unusable, and note them in `told`."""
        lines: list[Line] = []
        faults = sum(held.usage.faults for held in status.usages)
        if faults >= max(1, told.faults * _FAULTS_FACTOR):
            told.faults = faults
            cause = "values were out of range or overwritten, or a file was cut short: clamped, and put right"
            lines.append(Line("region damaged", status.share.id, {"faults": faults, "cause": cause}))
        if status.region_fault != told.region_fault:
            told.region_fault = status.region_fault
            if status.region_fault:
                fields: dict[str, object] = {"cause": f"{status.region_fault}: {REGION_REMEDY}"}
                lines.append(Line("region cannot be used", status.share.id, fields))
        return lines

    @staticmethod
    def _caps(status: ShareStatus, told: _Told, context_bytes: Mapping[DeviceUuid, int]) -> list[Line]:
        """Return a line for each memory cap that has become too small for a context, and note these in `told`."""
        causes = {
            held.device: cause
            for held in status.share.devices
            if (cause := small_cap(held.terms.memory_limit_bytes, context_bytes.get(held.device, 0)))
        }
        fresh = causes.keys() - told.caps
        told.caps = frozenset(causes)
        return [
            Line("cap does not hold a context", status.share.id, {"device": device, "cause": causes[device]})
            for device in sorted(fresh)
        ]
