"""Runs of gangs of several shares, for tests of what happens and of how long it takes."""

from __future__ import annotations

import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rig.loads import Load, Terms
from rig.node import Node
from rig.programs import load_command

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from rig.programs import Program


MS = 1_000_000


ROUNDS = 10_000_000


@contextmanager
def job_beside_others(
    directory: Path, gang: str, *, request: float = 40, others: float = 60
) -> Iterator[tuple[Node, dict[str, Program]]]:
    """Two ranks of one job, `rank0` and `rank1`, each with a share of its own device, beside two that saturate."""
    with Node("2xH200") as node:
        programs = {}
        for device in (0, 1):
            options = {"unit": "100us", "ranks": 2, "rank": device, "words": directory / "words", "count": ROUNDS}
            terms = Terms(request, devices=(str(device),), gang=gang)
            name = f"rank{device}"
            programs[name] = node.add(name, load_command("spin", options), node.share_environment(name, terms))
            load = Load(Terms(others, devices=(str(device),)), "saturate", {"unit": "500us"})
            programs[f"other{device}"] = node.start(f"other{device}", load)
        yield node, programs


def go(programs: dict[str, Program], seconds: float) -> int:
    start_ns = time.monotonic_ns() + 100 * MS
    for program in programs.values():
        program.go(start_ns, start_ns + round(seconds * 1e9))
    return start_ns
