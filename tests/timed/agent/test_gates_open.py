"""How soon gates open when the agent is gone, and that time without a host or without the agent is not billed."""

import os
import signal
import time
from contextlib import ExitStack

import pytest

from rig.agent import MakeAgent, RunningAgent, free_port, metered, program, usage
from rig.until import until
from sharepod.proto import v1_pb2 as pb
from sharepod.simgpu.truth import Truth

MS = 1_000_000


def opened_ns(agent: RunningAgent, signal_number: int) -> int:
    """End the agent beneath a share whose gate is closed 99 % of the time and a paused one, which must stay so.

    Returns how long after the signal the first begins to run as it likes.
    """
    with (
        program(metered(agent.register(1, 1, device="0"))),
        program(metered(agent.register(50, name="paused", device="1"))),
        Truth(f"{agent.directory}/simgpu") as truth,
    ):
        agent.stub.PauseShare(pb.PauseShareRequest(share="paused"))
        next(agent.stub.WatchUsage(pb.WatchUsageRequest()))  # somebody watches, as the cluster does
        time.sleep(0.3)
        paused_busy_ns = truth.contexts(1)[0].busy_ns
        signalled_ns = time.monotonic_ns()
        agent.stop(signal_number)
        time.sleep(1.5)
        starts_ns = [kernel.started_ns for kernel in truth.kernels(0) if kernel.started_ns > signalled_ns]
        assert truth.contexts(1)[0].busy_ns == paused_busy_ns
    # Limited, ten kernels of 500 µs take 500 ms.
    free = [first for first, tenth in zip(starts_ns, starts_ns[9:], strict=False) if tenth - first < 50 * MS]
    assert free
    return free[0] - signalled_ns


def test_what_a_paused_host_leaves_idle_is_not_billed(agent: RunningAgent) -> None:
    with (
        program(metered(agent.register(50, name="paused", device="0"))) as paused,
        program(metered(agent.register(50, name="other", device="0"))) as other,
        Truth(f"{agent.directory}/simgpu") as truth,
    ):

        def accounts() -> dict[str, tuple[int, int, int]]:
            busy = {context.pid: context.busy_ns for context in truth.contexts(0)}
            read = {name: (usage(agent, name), busy[p.pid]) for name, p in (("paused", paused), ("other", other))}
            return {name: (said.used_ns, said.charged_ns, busy_ns) for name, (said, busy_ns) in read.items()}

        time.sleep(0.5)
        before = accounts()
        for _ in range(60):  # all of its threads, for longer than what it has queued
            paused.send_signal(signal.SIGSTOP)
            time.sleep(0.012)
            paused.send_signal(signal.SIGCONT)
            time.sleep(0.03)
        after = accounts()
    grown = {name: [b - a for a, b in zip(before[name], after[name], strict=True)] for name in before}
    for used_ns, _, busy_ns in grown.values():
        assert used_ns == pytest.approx(busy_ns, rel=0.1)  # the turn's length would be 40 % too much
    used_ns, charged_ns, _ = grown["paused"]
    assert charged_ns > 1.1 * used_ns  # it kept the other out


def test_what_runs_while_the_agent_stands_still_is_on_nobodys_bill(agent: RunningAgent) -> None:
    names = {"small": 30, "large": 60}
    with ExitStack() as stack:
        for name, request in names.items():
            stack.enter_context(program(metered(agent.register(request, name=name, device="0"))))
        time.sleep(0.7)
        os.kill(agent.pid, signal.SIGSTOP)
        time.sleep(1.8)
        os.kill(agent.pid, signal.SIGCONT)
        time.sleep(0.7)
    until(lambda: all(usage(agent, name).processes == 0 for name in names))
    accounts = [usage(agent, name) for name in names]
    assert max(account.passed for account in accounts) > 200
    for account in accounts:  # of what the holder did meanwhile, up to a half is on nobody's bill
        ran_ns = (account.launches - account.passed) * MS // 2
        assert 0.6 * ran_ns < account.used_ns < 1.05 * ran_ns, accounts
    assert sum(account.used_ns for account in accounts) < 0.9 * sum(account.launches for account in accounts) * MS // 2


@pytest.mark.parametrize(("number", "bar_ms"), [(signal.SIGTERM, 50), (signal.SIGKILL, 1000)])
def test_gates_open_within_50_ms_of_a_planned_stop_and_1_s_of_a_crash(
    make_agent: MakeAgent, monkeypatch: pytest.MonkeyPatch, number: int, bar_ms: int
) -> None:
    monkeypatch.setenv("SIMGPU_LOG_KERNELS", "100000")
    agents = [make_agent("--metrics-listen", f"127.0.0.1:{free_port()}") for _ in range(2)]
    assert any(opened_ns(agent.start(), number) <= bar_ms * MS for agent in agents)
