"""Sums the device time used for each namespace, workload and user. The sums stay when shares end. Pure.

They are there for short jobs: a job that is shorter than the time between two scrapes has no series of its own from
which a rate could be computed.
"""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

    from sharepod.agent.shares.share import ShareId, ShareStatus

PARTIES_MAX: Final = 1024
"""This many parties are counted by name; all others together are one party without a name."""
OWNERS_MAX: Final = 64
"""This many workloads of a namespace are counted by name: a tenant that makes pods chooses these names."""
ENDED_MAX: Final = 4096
"""At most this many shares that have ended are remembered: the last ones."""


@dataclass(frozen=True, slots=True)
class Party:
    """The party that a share is for: a pod's namespace and workload, or the user that runs a program."""

    namespace: str = ""
    owner: str = ""
    """The workload, like Deployment/web; empty: the pod has none, or it is no pod."""
    user: str = ""
    """Empty for pods."""


@dataclass(frozen=True, slots=True)
class Spent:
    """What the shares of a party have used, including shares that have ended."""

    party: Party
    used_ns: int
    shares: int
    """How many shares the party has had."""


class Spending:
    """The sums, and the shares that ended lately."""

    def __init__(self, keep_ns: int) -> None:
        """Remember shares for `keep_ns` after their end."""
        self._keep_ns = keep_ns
        self._counted_ns: dict[ShareId, int] = {}
        """By live share: what it had used when it was counted last."""
        self._used_ns: Counter[Party] = Counter()
        self._share_counts: Counter[Party] = Counter()
        """By party: how many shares it has had."""
        self._named_workloads: Counter[str] = Counter()
        """By namespace: how many workloads are counted by name."""
        self._has_restored = False
        """The sums of an earlier agent are restored: they contain the shares that are adopted."""
        self._ended: deque[tuple[int, ShareStatus]] = deque(maxlen=ENDED_MAX)
        """The shares that ended lately, with the time of their end (ns), the oldest first."""

    def restore(self, sums: Iterable[Spent]) -> None:
        """Go on with the sums of an earlier agent. The shares that are adopted next are counted in them already."""
        for one in sums:
            party = self._counted_as(one.party)
            self._used_ns[party] += one.used_ns
            self._share_counts[party] += one.shares
            self._has_restored = True

    def adopt(self, share: ShareId, used_ns: int, party: Party) -> None:
        """Take over a share of an earlier agent; `used_ns`: what that agent has counted for it.

        It is a new share of the party only if that agent left no sums.
        """
        self._counted_ns[share] = used_ns
        if not self._has_restored:
            self._share_counts[self._counted_as(party)] += 1

    def count(self, status: ShareStatus, party: Party) -> None:
        """Count for `party` what a share has used since its last call; its first call counts it as a new share."""
        party, used_ns = self._counted_as(party), _used_ns(status)
        self._share_counts[party] += status.share.id not in self._counted_ns
        self._used_ns[party] += max(0, used_ns - self._counted_ns.get(status.share.id, 0))
        self._counted_ns[status.share.id] = used_ns

    def end(self, status: ShareStatus, party: Party, now_ns: int) -> None:
        """Count the rest of a share that has ended, and remember the share."""
        self.count(status, party)
        del self._counted_ns[status.share.id]
        self._ended.append((now_ns, status))

    def ended(self, now_ns: int) -> tuple[ShareStatus, ...]:
        """Return the shares that have ended lately, and forget those that ended `keep_ns` ago or earlier."""
        while self._ended and now_ns - self._ended[0][0] >= self._keep_ns:
            self._ended.popleft()
        return tuple(status for _, status in self._ended)

    def spent(self) -> tuple[Spent, ...]:
        """Return the sums of all parties."""
        return tuple(Spent(party, self._used_ns[party], count) for party, count in self._share_counts.items())

    def _counted_as(self, party: Party) -> Party:
        """Return the party as which `party` is counted: itself, if it is counted already or there is room for it.

        When OWNERS_MAX workloads of its namespace are counted, that is the namespace. When PARTIES_MAX parties are
        counted, that is the party without a name.
        """
        if party in self._share_counts:
            return party
        if party.owner and self._named_workloads[party.namespace] >= OWNERS_MAX:
            return self._counted_as(Party(party.namespace))
        if len(self._share_counts) >= PARTIES_MAX:
            return Party()
        self._named_workloads[party.namespace] += bool(party.owner)
        self._share_counts[party] = 0  # from now on it is counted
        return party


def _used_ns(status: ShareStatus) -> int:
    """Return the time that a share has used on all its devices."""
    return sum(held.usage.used_ns for held in status.usages)
