"""Test that the policy keeps its invariants under any calls, those of an arbiter and those that make no sense.

`make deep` runs this again on a build of the policy that stops the process at undefined behaviour.
"""

from random import Random

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from rig.virtual.policy import NEVER_NS, Policy, Rule, ShareClass

MS = 1_000_000
WHOLE = 100_000
MILLIPERCENT = st.integers(0, 100).map(float) | st.floats(0, 100, allow_nan=False).map(lambda x: round(x, 3))
CLASSES = st.sampled_from(ShareClass)
SPANS = st.integers(0, 100 * MS) | st.sampled_from([0, 1, 20 * MS, 10**9, 10**13])


class PolicyMachine(RuleBasedStateMachine):
    """A state machine of all that an arbiter may do, in any order; it keeps its own account of what must hold."""

    shares = Bundle("shares")

    def __init__(self) -> None:
        super().__init__()
        self.policy = Policy()
        self.now_ns = 10**9
        self.begin_ns = self.now_ns
        self.billed_ns = self.now_ns  # all holders have been billed up to here
        self.charged_ns = 0
        self.holders: set[int] = set()
        self.present: set[int] = set()

    @rule(target=shares, request=MILLIPERCENT, limit=MILLIPERCENT, share_class=CLASSES)
    def add(self, request: float, limit: float, share_class: ShareClass) -> int:
        share = self.policy.add(self.now_ns, request, limit, share_class)
        assert share not in self.present
        self.present.add(share)
        return share

    @rule(share=consumes(shares))
    def remove(self, share: int) -> None:
        self.policy.remove(self.now_ns, share)
        self.present.remove(share)
        self.holders.discard(share)

    @rule(share=shares, request=MILLIPERCENT, limit=MILLIPERCENT, share_class=CLASSES)
    def update(self, share: int, request: float, limit: float, share_class: ShareClass) -> None:
        self.policy.update(self.now_ns, share, request, limit, share_class)

    @rule(share=shares, paused=st.booleans())
    def pause(self, share: int, paused: bool) -> None:
        self.policy.pause(self.now_ns, share, paused)

    @rule(share=shares, waiting=st.booleans())
    def wait(self, share: int, waiting: bool) -> None:
        self.policy.wait(self.now_ns, share, waiting)

    @rule(share=shares, unit_ns=SPANS)
    def unit(self, share: int, unit_ns: int) -> None:
        assert 2 * MS <= self.policy.unit(share, unit_ns) <= 50 * MS

    @rule(span_ns=SPANS)
    def pass_time(self, span_ns: int) -> None:
        self.now_ns += span_ns

    @rule(data=st.data())
    def charge_everyone(self, data: st.DataObject) -> None:
        """Charge as a real arbiter does: each of k holders at most 1/k of the time since the last bill."""
        elapsed_ns = self.now_ns - self.billed_ns
        self.billed_ns = self.now_ns
        for holder in sorted(self.holders):
            used_ns = data.draw(st.integers(0, elapsed_ns // len(self.holders)))
            self.policy.charge(self.now_ns, holder, used_ns)
            self.charged_ns += used_ns

    @rule(data=st.data())
    def end_a_turn(self, data: st.DataObject) -> None:
        if self.holders:
            holder = data.draw(st.sampled_from(sorted(self.holders)))
            self.policy.end(self.now_ns, holder)
            self.holders.discard(holder)

    @rule()
    def choose(self) -> None:
        before = {s: self._copy(s) for s in self.present}
        choice = self.policy.next(self.now_ns)
        ready = {s for s, (waiting, holding, paused) in before.items() if waiting and not holding and not paused}
        if choice.share is None:
            assert choice.rule is Rule.NONE
            assert all(self.policy.share(s).limit_mp < WHOLE for s in ready), "somebody could have run"
            assert (choice.retry_ns == NEVER_NS) == (not ready)
            assert choice.retry_ns > self.now_ns
            return
        assert choice.share in ready
        assert 1 <= choice.quantum_ns <= 50 * MS
        chosen = self.policy.share(choice.share)
        if chosen.limit_mp == WHOLE:
            assert choice.quantum_ns >= 2 * MS
        latency_waits = [s for s in ready if self._is_urgent(s) and s != choice.share]
        if choice.rule is not Rule.LATENCY:
            assert not latency_waits, "a latency share below its request and its limit goes first"
        self.holders.add(choice.share)

    @rule(waiter=shares)
    def ask_to_preempt(self, waiter: int) -> None:
        for holder in self.holders:
            if self.policy.preempts(self.now_ns, waiter, holder):
                assert self.policy.share(waiter).share_class == ShareClass.LATENCY
                assert self.policy.share(holder).rule != Rule.LATENCY

    def _copy(self, share: int) -> tuple[bool, bool, bool]:
        s = self.policy.share(share)
        return bool(s.waiting), bool(s.holding), bool(s.paused)

    def _is_urgent(self, share: int) -> bool:
        s = self.policy.share(share)
        return bool(s.share_class == ShareClass.LATENCY and s.request_mp and s.credit >= 0 and s.limit_mp == WHOLE)

    @invariant()
    def the_policy_is_valid(self) -> None:
        assert self.policy.valid()

    @invariant()
    def the_flags_are_those_of_the_calls(self) -> None:
        assert {s for s in self.present if self.policy.share(s).holding} == self.holders

    @invariant()
    def everything_charged_is_accounted_and_no_more_than_passed(self) -> None:
        assert self.policy.state.used_ns <= self.charged_ns <= self.now_ns - self.begin_ns

    @invariant()
    def an_idle_share_saves_at_most_75_ms_of_its_request(self) -> None:
        for share in self.present:
            s = self.policy.share(share)
            if not s.waiting and not s.holding:
                assert max(s.credit, s.lag) <= 75 * MS * s.request_mp

    @invariant()
    def accounts_stay_far_from_overflow(self) -> None:
        for share in self.present:
            s = self.policy.share(share)
            assert all(abs(int(x)) < 1 << 61 for x in (s.credit, s.lag, s.debt, s.bucket))


TestPolicyMachine = PolicyMachine.TestCase
TestPolicyMachine.settings = settings(max_examples=100, stateful_step_count=60, deadline=None)


def make_any_call(policy: Policy, dice: Random, now_ns: int) -> None:
    """Call one function with values that may make no sense: of any magnitude, for shares that do not exist."""
    lib, state, share = policy.lib, policy.state, dice.randrange(-1, 11)

    def any_value(bits: int = 64) -> int:
        return dice.getrandbits(bits) >> dice.randrange(bits)

    def choose() -> None:
        choice = lib.sp_policy_next(state, now_ns)
        assert choice.share < 0 or 1 <= choice.quantum_ns <= 50 * MS

    def charge() -> None:
        usual = dice.randrange(-10 * MS, 90 * MS)
        used_ns = usual if dice.randrange(9) else any_value() - 2**63
        lib.sp_policy_charge(state, share, used_ns, now_ns)

    dice.choice(
        [
            lambda: lib.sp_policy_add(state, any_value(32), any_value(32), dice.randrange(5), now_ns),
            lambda: dice.randrange(8) or lib.sp_policy_remove(state, share, now_ns),
            lambda: lib.sp_policy_update(
                state, share, dice.randrange(WHOLE + 1), dice.randrange(110_000), dice.randrange(4), now_ns
            ),
            lambda: lib.sp_policy_wait(state, share, dice.randrange(4) > 0, now_ns),
            charge,
            lambda: lib.sp_policy_end(state, share, now_ns),
            choose,
            lambda: lib.sp_policy_pause(state, share, dice.randrange(3) == 0, now_ns),
            lambda: lib.sp_policy_preempts(state, share, dice.randrange(12), now_ns),
            lambda: lib.sp_policy_unit(state, share, dice.choice([dice.randrange(50 * MS), any_value()])),
            lambda: lib.sp_policy_quantum(state, share, now_ns),
        ]
    )()


def test_no_call_whatever_its_values_breaks_an_invariant() -> None:
    for seed in range(30):
        dice, policy = Random(seed), Policy()
        now_ns = dice.getrandbits(63) >> dice.randrange(63)
        for step in range(2000):
            passed_ns = dice.randrange(30 * MS) if dice.randrange(200) else dice.getrandbits(56) >> dice.randrange(56)
            now_ns = min(now_ns + passed_ns // 10, 2**64 - 1)
            make_any_call(policy, dice, now_ns)
            assert policy.valid(), (seed, step)
