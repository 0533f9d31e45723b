"""How long each measurement takes: one frozen value, so that `make bench`, `--quick` and tests run one code."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Scale:
    """Lengths and counts of the measurements."""

    short_s: int = 12
    """A run that is judged over windows of 1 s and 10 s."""
    long_s: int = 62
    """The run that is judged over 60 s as well."""
    alone_s: int = 6
    """How long a share runs alone before another joins."""
    requests: int = 3000
    """Requests of one latency run."""
    latency_runs: int = 5
    """The latency bar is the median of so many runs."""
    cost_pairs: int = 7
    """Pairs of runs with and without the hook, interleaved."""
    agents: int = 10_000
    """Nodes that tell the scheduler what they use."""
    baselines: bool = True
    """Run the same cases without the hook too."""


FULL = Scale()
QUICK = Scale(short_s=4, long_s=12, alone_s=3, requests=250, latency_runs=3, cost_pairs=3, agents=2000)
TEST = Scale(short_s=3, long_s=4, alone_s=2, requests=100, latency_runs=1, cost_pairs=3, agents=40, baselines=False)
