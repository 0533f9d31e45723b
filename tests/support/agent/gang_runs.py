"""Runs gangs beside other shares, for tests of what happens and of how long it takes."""

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rig.loads import MS, Load, Terms
from rig.node import Node
from rig.programs import Program, load_command, ring_command

BOTH = ("0", "1")


@contextmanager
def gang_node(programs: Mapping[str, tuple[Terms, list[str]]]) -> Iterator[tuple[Node, dict[str, Program]]]:
    """Start programs on two devices; each has its own share and waits for its `go`."""
    with Node("2xH200") as node:
        started = {}
        for name, (terms, command) in programs.items():
            started[name] = node.add(name, command, node.share_environment(name, terms))
        yield node, started


def ring(request: float = 30, **terms: Any) -> tuple[Terms, list[str]]:
    """Return the terms and the program of a share on both devices; each rank of its collectives spins for the next."""
    return Terms(request, devices=BOTH, **terms), ring_command(2, steps=4, work="200us")


def single(device: int, request: float = 40) -> tuple[Terms, list[str]]:
    load = Load(Terms(request, devices=(str(device),)), "saturate", {"unit": "500us"})
    return load.terms, load_command(load.mode, load.options)


@contextmanager
def job_beside_others(
    directory: Path, gang: str, *, request: float = 40, others: float = 60
) -> Iterator[tuple[Node, dict[str, Program]]]:
    """Start the ranks `rank0` and `rank1` of one job, each with a share on its own device, beside two busy shares.

    In each round every rank says "I am here" in memory that both share. It then spins on its device until the other
    has said so, as NCCL's kernels do.
    """
    with Node("2xH200") as node:
        programs = {}
        for device in (0, 1):
            options = {"unit": "100us", "ranks": 2, "rank": device, "words": directory / "words", "count": 10_000_000}
            terms = Terms(request, devices=(str(device),), gang=gang)
            name = f"rank{device}"
            programs[name] = node.add(name, load_command("spin", options), node.share_environment(name, terms))
            load = Load(Terms(others, devices=(str(device),)), "saturate", {"unit": "500us"})
            programs[f"other{device}"] = node.start(f"other{device}", load)
        yield node, programs


def go(programs: dict[str, Program], seconds: float = 120) -> int:
    """Let the programs work, by default longer than any wait of a test; those that still run end with the node."""
    start_ns = time.monotonic_ns() + 100 * MS
    for program in programs.values():
        program.go(start_ns, start_ns + round(seconds * 1e9))
    return start_ns
