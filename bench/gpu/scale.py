"""How long each measurement takes: one frozen value, so that a real run and the dry run are the same code."""

from dataclasses import dataclass

from rig.loads import MS, SECOND


@dataclass(frozen=True, slots=True)
class Scale:
    """Lengths and counts of the measurements."""

    step_ns: int = SECOND
    """A sampling step: the shortest window over which a share is judged."""
    windows: tuple[int, ...] = (1, 10)
    """Windows of the share error, in steps."""
    long_steps: int = 10
    """Steps of a run that is judged over every window."""
    short_steps: int = 4
    """Steps of any other run under shares."""
    bare_steps: int = 3
    """Steps of a run without the hook."""
    settle_ns: int = SECOND // 2
    """Left out at the begin of a run: programs start, and nothing is promised of it."""
    alone_ns: int = 5 * SECOND // 2
    """How long a share runs alone before another joins."""
    counts: tuple[int, ...] = (2, 4, 8)
    """How many shares saturate the device together."""
    requests: int = 400
    """Requests of a latency run."""
    latency_runs: int = 2
    """Latency runs under shares; the bar is judged on their median."""
    cost_pairs: int = 5
    """Pairs of runs with and without the hook, interleaved."""
    cost_batches: int = 300
    noop_batches: int = 20_000
    chain_rounds: int = 800
    memory_rounds: int = 10
    slices_ms: int = 300
    budget_ms: int = 700
    call_group: int = 32
    copy_bytes: int = 256 << 20
    captures: int = 40
    """Captures in each mode."""
    torch_steps: int = 30
    mix_rounds: int = 200


FULL = Scale()
DRY = Scale(
    step_ns=100 * MS,
    windows=(1, 2),
    long_steps=2,
    short_steps=1,
    bare_steps=1,
    settle_ns=30 * MS,
    alone_ns=80 * MS,
    counts=(2,),
    requests=5,
    latency_runs=1,
    cost_pairs=1,
    cost_batches=5,
    noop_batches=200,
    chain_rounds=20,
    memory_rounds=1,
    slices_ms=20,
    budget_ms=20,
    call_group=4,
    copy_bytes=1 << 20,
    captures=2,
    torch_steps=1,
    mix_rounds=2,
)
"""Every line of the orchestration on the simulated GPU, in seconds; its figures mean nothing."""
