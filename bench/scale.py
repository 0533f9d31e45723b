"""The lengths of all measurements in one frozen value, so that a full run, a quick one and a test run the same code."""

from dataclasses import dataclass

from rig.loads import MS, SECOND


@dataclass(frozen=True, slots=True)
class Scale:
    """Lengths and counts of the measurements. The defaults are those of `make bench`."""

    step_ns: int = SECOND
    """A sampling step: the shortest window over which a share is judged."""
    settle_ns: int = SECOND // 2
    """Left out at the begin of a run: programs start in that time, and no bar covers it."""
    windows: tuple[int, ...] = (1, 10, 60)
    """Windows of the share error, in steps. A window longer than the run is left out."""
    minute_steps: int = 62
    """Steps of the one case that is judged over a minute as well."""
    share_steps: int = 12
    """Steps of every other case of the share error."""
    short_steps: int = 12
    """Steps of any other run under shares."""
    bare_steps: int = 12
    """Steps of a run without the hook, at most as many as the run beside it."""
    alone_ns: int = 6 * SECOND
    """How long a share runs alone before another joins."""
    counts: tuple[int, ...] = (2, 4, 8)
    """How many shares saturate the device together."""
    requests: int = 3000
    """Requests of one latency run."""
    latency_runs: int = 5
    """The number of runs under shares: the latency bar is judged by their median."""
    solo_runs: int = 5
    """Latency runs alone. The bar is relative to their median."""
    cost_pairs: int = 7
    """Pairs of runs with and without the hook, interleaved."""
    cost_batches: int = 300
    """Batches of launches of one run, on a driver that has a device."""
    noop_batches: int = 20_000
    """The same, on a driver that does nothing."""
    chain_rounds: int = 1000
    """Bare futex chains before and after the hand-offs."""
    memory_rounds: int = 50
    """How often a share is filled and freed by every kind of allocation."""
    agents: int = 10_000
    """Nodes that tell the scheduler what they use."""
    baselines: bool = True
    """Run the same cases without the hook too."""

    @property
    def short_s(self) -> int:
        """The seconds of a short run."""
        return self.short_steps * self.step_ns // SECOND


FULL = Scale()
QUICK = Scale(
    minute_steps=12,
    share_steps=4,
    short_steps=4,
    bare_steps=4,
    alone_ns=3 * SECOND,
    requests=250,
    latency_runs=3,
    solo_runs=3,
    cost_pairs=3,
    agents=2000,
)
BESIDE = Scale(
    minute_steps=11,
    share_steps=11,
    short_steps=6,
    alone_ns=3 * SECOND,
    requests=500,
    latency_runs=3,
    solo_runs=3,
    cost_pairs=3,
    baselines=False,
)
"""For figures in other columns, beside those that are judged."""
TEST = Scale(
    minute_steps=4,
    share_steps=3,
    short_steps=3,
    bare_steps=3,
    alone_ns=2 * SECOND,
    requests=100,
    latency_runs=1,
    solo_runs=1,
    cost_pairs=3,
    agents=40,
    baselines=False,
)


@dataclass(frozen=True, slots=True)
class HardwareScale(Scale):
    """The same for a real GPU, with what is only measured there: everything has to fit into 7.5 minutes."""

    windows: tuple[int, ...] = (1, 10)
    minute_steps: int = 10
    share_steps: int = 10
    short_steps: int = 4
    bare_steps: int = 3
    alone_ns: int = 5 * SECOND // 2
    requests: int = 400
    latency_runs: int = 2
    solo_runs: int = 1
    cost_pairs: int = 5
    chain_rounds: int = 800
    memory_rounds: int = 10
    slices_ms: int = 300
    drift_ms: int = 4000
    call_group: int = 32
    copy_bytes: int = 256 << 20
    captures: int = 40
    """Captures in each mode."""
    mix_rounds: int = 200


HARDWARE = HardwareScale()
DRY = HardwareScale(
    step_ns=100 * MS,
    settle_ns=30 * MS,
    windows=(1, 2),
    minute_steps=2,
    share_steps=2,
    short_steps=1,
    bare_steps=1,
    alone_ns=80 * MS,
    counts=(2,),
    requests=5,
    latency_runs=1,
    cost_pairs=1,
    cost_batches=5,
    noop_batches=200,
    chain_rounds=20,
    memory_rounds=1,
    slices_ms=100,
    drift_ms=200,
    call_group=4,
    copy_bytes=1 << 20,
    captures=2,
    mix_rounds=2,
)
"""Runs every line of the orchestration on the simulated GPU, in seconds. Its figures mean nothing."""
