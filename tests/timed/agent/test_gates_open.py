"""Test how soon gates open without the agent, and that time in which process or agent stand still is not billed."""

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
    """End the agent while one share's gate is closed 99 % of the time and another share is paused, and must stay so.

    Return how long after the signal the first share begins to run without its limit.
    """
    with (
        program(metered(agent.register(1, 1, device="0"))),
        program(metered(agent.register(50, name="paused", device="1"))),
        Truth(f"{agent.directory}/simgpu") as truth,
    ):
        agent.stub.PauseShare(pb.PauseShareRequest(share="paused"))
        next(agent.stub.WatchUsage(pb.WatchUsageRequest()))  # a client watches, as the cluster's scheduler does
        time.sleep(0.3)
        paused_busy_ns = truth.contexts(1)[0].busy_ns
        signalled_ns = time.monotonic_ns()
        agent.stop(signal_number)
        time.sleep(1.5)
        starts_ns = [kernel.started_ns for kernel in truth.kernels(0) if kernel.started_ns > signalled_ns]
        assert truth.contexts(1)[0].busy_ns == paused_busy_ns
    # With the limit, ten kernels of 500 µs take 500 ms.
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
        for _ in range(60):  # stop all of its threads, each time for longer than its queued work takes
            paused.send_signal(signal.SIGSTOP)
            time.sleep(0.012)
            paused.send_signal(signal.SIGCONT)
            time.sleep(0.03)
        after = accounts()
    grown = {name: [b - a for a, b in zip(before[name], after[name], strict=True)] for name in before}
    for used_ns, _, busy_ns in grown.values():
        assert used_ns == pytest.approx(busy_ns, rel=0.1)  # the length of the turns would be 40 % too much
    used_ns, charged_ns, _ = grown["paused"]
    assert charged_ns > 1.1 * used_ns  # it is charged because it kept the other share out


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
    for account in accounts:  # up to a half of the holder's work in this time is billed to no share
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
