"""Decides what pods' owners and the operator are told of programs: attached or not, denied memory, or without a share.

Pure: one look goes in, new findings come out; `now_s` is a parameter that never goes back. A finding is told once.
Denied memory is told again, but seldom.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from sharepod.agent.shares.share import bytes_text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sharepod.deviceplugin.core.agent import HeldShare
    from sharepod.kube.pod import Pod

ATTACH_S: Final = 60.0
"""The time that a container's programs may take from its start to their first CUDA call."""
DENIED_EVERY_S: Final = 600.0
"""The least time between two findings of one share about denied memory."""
LOST_LOOKS: Final = 2
"""A share counts as lost after so many looks in a row without it: one that is replaced is missing for a moment."""
_NAMED_MAX: Final = 5
"""The most programs that one Event names."""
_NOT_ATTACHED: Final = (
    "uses device {} without a share: its container has none, or the hook did not attach, as in a program that is "
    "linked statically, with a loader of its own, or when all slots of the share are taken"
)


@dataclass(frozen=True, slots=True)
class Seat:
    """A container that holds an allocation."""

    share_id: str
    container: str
    pod: Pod
    share: HeldShare | None
    """None: the agent has no such share."""
    was_there: bool = False
    """It was bound before this plugin served: the previous plugin has told what happened until then."""
    is_busy: bool = False
    """The share is just being made, changed or ended: the agent may lack it without being at fault."""

    @property
    def is_running(self) -> bool:
        """Tell whether the API server shows the container running."""
        return self.container in self.pod.running


@dataclass(frozen=True, slots=True)
class Program:
    """A program that uses a device without a share."""

    device: int
    """The device's index."""
    pid: int
    name: str
    memory_used_bytes: int
    pod_uid: str
    """The pod uid in its cgroups; empty: it belongs to no pod."""

    @property
    def title(self) -> str:
        """Return pid and name."""
        return f"process {self.pid} ({self.name}, {bytes_text(self.memory_used_bytes)})"


@dataclass(frozen=True, slots=True)
class Note:
    """An Event; `pod` None: it is about the node."""

    pod: Pod | None
    reason: str
    message: str
    warning: bool = True


@dataclass(slots=True)
class _Known:
    """What was seen and told of one share."""

    runs_since_s: float | None = None
    """When its container was first seen running; None: it does not run."""
    has_attached: bool = False
    """A program has used the share since the container's start."""
    no_cuda_told: bool = False
    """NoCudaYet was told, or is not to be told."""
    missing: int = 0
    """Looks in a row at which the agent lacked the share."""
    refusals: int = 0
    """Allocations of device memory denied, as counted by the agent at the last look."""
    told_refusals: int = 0
    """How many of these were told."""
    denied_told_s: float | None = None
    """When MemoryDenied was last told; None: never."""


class WorkloadFindings:
    """Remembers what was told. Invariant: `_known` and `_told_programs` hold only what the last look showed."""

    def __init__(self) -> None:
        self._known: dict[str, _Known] = {}
        """By share."""
        self._told_programs: set[tuple[int, int, str]] = set()
        """The programs without a share that were told: device, pid, name."""

    def step(self, seats: Sequence[Seat], programs: Sequence[Program], now_s: float) -> list[Note]:
        """Take one look and return the new findings.

        `seats`: every container with an allocation. `programs`: every program that uses a device without a share.
        """
        before, self._known, notes = self._known, {}, []
        fresh = [one for one in programs if (one.device, one.pid, one.name) not in self._told_programs]
        waiting: set[Program] = set()
        """Programs of pods with containers younger than ATTACH_S: a later look decides."""
        settled: set[Program] = set()
        """Programs that are told now, with one container of their pod: they are not told again with the others."""
        for seat in seats:
            known = self._known[seat.share_id] = before.get(seat.share_id) or _first_known(seat)
            notes += self._lost(seat, known)
            if seat.share is not None:
                notes += self._denied(seat, seat.share, known, now_s)
            of_pod = [one for one in fresh if one.pod_uid == seat.pod.cgroup_uid and one not in settled]
            has_shareless = any(one.pod_uid == seat.pod.cgroup_uid for one in programs)
            found = self._attached(seat, known, of_pod, now_s, has_shareless=has_shareless)
            (waiting if found is None else settled).update(of_pod)
            notes += found or []
        uids = {seat.pod.cgroup_uid for seat in seats}
        notes += _without_share([one for one in fresh if one.pod_uid not in uids])
        self._told_programs = {(one.device, one.pid, one.name) for one in programs if one not in waiting - settled}
        return notes

    @staticmethod
    def _lost(seat: Seat, known: _Known) -> list[Note]:
        """Report that the agent lacks a running container's share, once: at the LOST_LOOKS-th such look in a row."""
        is_missing = seat.share is None and seat.is_running and not seat.is_busy
        known.missing = known.missing + 1 if is_missing else 0
        if known.missing != LOST_LOOKS:
            return []
        text = (
            f"container {seat.container}: the agent has its share {seat.share_id} no more: its programs run unmetered "
            "(on a closed node new ones do not start): restart the container"
        )
        return [Note(seat.pod, "ShareLost", text)]

    @staticmethod
    def _denied(seat: Seat, share: HeldShare, known: _Known, now_s: float) -> list[Note]:
        """Report denied allocations: the first at once, later ones at most every DENIED_EVERY_S, with their number."""
        count = _refusals(share)
        if count < known.refusals:  # the agent has restarted and counts from zero
            known.refusals = known.told_refusals = 0
        known.refusals = count
        is_due = known.denied_told_s is None or now_s - known.denied_told_s >= DENIED_EVERY_S
        if count <= known.told_refusals or not is_due:
            return []
        new, known.told_refusals, known.denied_told_s = count - known.told_refusals, count, now_s
        part = next(held for held in share.devices if held.usage.memory_refusals)  # one device stands for all
        text = (
            f"container {seat.container}: {new} allocation{'s' * (new > 1)} of device memory denied, the last of "
            f"{bytes_text(part.usage.memory_refused_bytes)}: its cap on device {part.device_index} is "
            f"{bytes_text(part.memory_limit_bytes)}: raise sharepod.io/memory, also while it runs, or use less"
        )
        return [Note(seat.pod, "MemoryDenied", text)]

    @staticmethod
    def _attached(
        seat: Seat, known: _Known, of_pod: Sequence[Program], now_s: float, *, has_shareless: bool
    ) -> list[Note] | None:
        """Report programs that use a device without the share; and, as no warning, that no program has used CUDA yet.

        `of_pod`: such programs of the container's pod that were not told yet. `has_shareless`: the pod has such
        programs, told or not. Returns None while it is too early to tell.
        """
        if not seat.is_running:
            known.runs_since_s, known.has_attached = None, False
            return None
        if known.runs_since_s is None:
            known.runs_since_s = now_s
        share = seat.share
        known.has_attached |= share is not None and bool(
            share.processes or any(held.usage.launches for held in share.devices)
        )
        if now_s - known.runs_since_s < ATTACH_S:
            return None
        notes = [
            Note(seat.pod, "HookNotAttached", f"{one.title} of this pod {_NOT_ATTACHED.format(one.device)}")
            for one in of_pod
        ]
        if share is not None and not known.has_attached and not known.no_cuda_told and not has_shareless:
            known.no_cuda_told = True
            text = (
                f"container {seat.container}: no program of it has used CUDA in its first {ATTACH_S:g} s: its share is "
                "kept for it"
            )
            notes.append(Note(seat.pod, "NoCudaYet", text, warning=False))
        return notes


def _refusals(share: HeldShare) -> int:
    """Return how many allocations of device memory the agent has denied to the share, on all its devices."""
    return sum(held.usage.memory_refusals for held in share.devices)


def _first_known(seat: Seat) -> _Known:
    """Return what is known of a share at its first look. What happened before this plugin served counts as told."""
    if not seat.was_there:
        return _Known()
    count = _refusals(seat.share) if seat.share is not None else 0
    return _Known(no_cuda_told=True, refusals=count, told_refusals=count)


def _without_share(fresh: Sequence[Program]) -> list[Note]:
    """Return one note for each device, about all the programs in `fresh` that use it."""
    notes = []
    for device in sorted({one.device for one in fresh}):
        here = [one for one in fresh if one.device == device]
        named = ", ".join(one.title + (f" of pod {one.pod_uid}" if one.pod_uid else "") for one in here[:_NAMED_MAX])
        more = f" and {len(here) - _NAMED_MAX} more" if len(here) > _NAMED_MAX else ""
        text = (
            f"device {device} is used without a share by {named}{more}: what they use is taken from those that hold "
            "shares: end them, or name them in the agent's `monitoring` setting"
        )
        notes.append(Note(None, "ProcessWithoutShare", text))
    return notes
