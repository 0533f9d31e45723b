"""Drives the policy through its own functions, with shares that always want more on a device without overhead."""

from collections import Counter
from dataclasses import dataclass, field

from rig.virtual.policy import Policy, Rule

MS = 1_000_000
S = 1_000_000_000


@dataclass
class Driver:
    """Virtual time, and what each share has used."""

    policy: Policy = field(default_factory=Policy)
    now_ns: int = 0
    used_ns: Counter[int] = field(default_factory=Counter)
    rules: Counter[tuple[int, Rule]] = field(default_factory=Counter)

    def turn(self, wanting: list[int]) -> int | None:
        """Give one turn to the share that the policy chooses among `wanting`; None: it chose none, until its retry."""
        for share in wanting:
            self.policy.wait(self.now_ns, share)
        choice = self.policy.next(self.now_ns)
        if choice.share is None:
            self.now_ns = choice.retry_ns
            return None
        assert choice.share in wanting
        self.rules[choice.share, choice.rule] += 1
        self.use(choice.share, choice.quantum_ns)
        if choice.share in wanting:
            self.policy.wait(self.now_ns, choice.share)
        self.policy.end(self.now_ns, choice.share)
        assert self.policy.valid()
        return choice.share

    def use(self, share: int, used_ns: int) -> None:
        """Let a holder use the device for a time and bill it."""
        self.now_ns += used_ns
        self.used_ns[share] += used_ns
        self.policy.charge(self.now_ns, share, used_ns)

    def saturate(self, wanting: list[int], for_ns: int) -> dict[int, float]:
        """Run turns for a time; returns what each share used of it, in percent."""
        before, begin_ns = self.used_ns.copy(), self.now_ns
        while self.now_ns < begin_ns + for_ns:
            self.turn(wanting)
        return {s: 100 * (self.used_ns[s] - before[s]) / (self.now_ns - begin_ns) for s in wanting}

    def stop(self, wanting: list[int]) -> None:
        """Let shares stop wanting turns: they idle."""
        for share in wanting:
            self.policy.wait(self.now_ns, share, waiting=False)


def waiting(driver: Driver, *shares: int) -> None:
    """Let shares want a turn."""
    for share in shares:
        driver.policy.wait(driver.now_ns, share)
