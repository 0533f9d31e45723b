"""Computes what running pods get of devices beyond their requests, as the arbiter gives it. Pure.

Time that no share requests on a device goes to the shares below their limits, in proportion to their requests. Batch
shares get only what no other class takes. A pod on several devices works as fast as the slowest of them allows. What it
then leaves of the other devices is given to no other pod.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from sharepod.scheduler.placement.request import DEVICE_MILLI

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sharepod.scheduler.state.pod import Pod

_NOTHING_MILLI: Final = 1e-6
"""So little counts as nothing: rounding may leave it."""


@dataclass(frozen=True, slots=True)
class Part:
    """What one share asks for of one device, in milli, and the most that it may use."""

    uid: str
    milli: int
    most_milli: int
    batch: bool


class BurstModel:
    """The pods on each device, and how fast they run. Invariant: a running pod is on a device once for each share."""

    def __init__(self) -> None:
        self._parts: defaultdict[str, list[Part]] = defaultdict(list)
        """By device: one entry for each share on it."""
        self._devices: dict[str, tuple[str, ...]] = {}
        """By uid: the devices of a running pod, each once."""
        self._changed: set[str] = set()
        """Devices on which a pod has come or gone since the last call of `speeds`."""

    def run(self, pod: Pod) -> None:
        """Note that a pod runs on its chosen devices (Pod.chosen); what was noted of it before is forgotten.

        A limited pod gets no more than its requests.
        """
        self.stop(pod.uid)
        for share, devices in zip(pod.request.shares, pod.chosen, strict=True):
            most = share.milli if share.limit_milli is None or pod.yields == "limit" else share.limit_milli
            for device in devices:
                self._parts[device].append(Part(pod.uid, share.milli, most, share.share_class == "batch"))
        self._devices[pod.uid] = tuple(dict.fromkeys(device for devices in pod.chosen for device in devices))
        self._changed.update(self._devices[pod.uid])

    def stop(self, uid: str) -> None:
        """Note that a pod does not run, or runs no more; an unknown uid changes nothing."""
        for device in self._devices.pop(uid, ()):
            self._parts[device] = [part for part in self._parts[device] if part.uid != uid]
            self._changed.add(device)

    def speeds(self) -> dict[str, float]:
        """Return, by uid, the speeds of the pods for which they may have changed since the last call.

        These are the pods on devices on which one has come or gone. A speed of 1 is that of a pod with its requests.
        """
        uids = dict.fromkeys(part.uid for device in sorted(self._changed) for part in self._parts[device])
        self._changed.clear()
        given = {device: shared_out(self._parts[device]) for uid in uids for device in self._devices[uid]}
        return {
            uid: min(
                got / part.milli
                for device in self._devices[uid]
                for part, got in zip(self._parts[device], given[device], strict=True)
                if part.uid == uid
            )
            for uid in uids
        }


def shared_out(parts: Sequence[Part]) -> list[float]:
    """Return for each part of one device what it gets of it, in milli: at least its request, at most `most_milli`.

    What is left is divided in proportion to the requests. If some parts reach `most_milli` by that, only these are
    filled, and what is then left is divided anew among the others. Batch shares come after all others.
    """
    got = [float(part.milli) for part in parts]
    left = DEVICE_MILLI - sum(got)
    for batch in (False, True):
        hungry = [index for index, part in enumerate(parts) if part.batch == batch and part.most_milli > part.milli]
        while hungry and left > _NOTHING_MILLI:
            per_milli = left / sum(parts[index].milli for index in hungry)
            full = [index for index in hungry if got[index] + per_milli * parts[index].milli >= parts[index].most_milli]
            for index in full or hungry:
                more = parts[index].most_milli - got[index] if full else per_milli * parts[index].milli
                got[index] += more
                left -= more
            hungry = [index for index in hungry if index not in full] if full else []
    return got
