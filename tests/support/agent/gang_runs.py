"""Runs of gangs beside other shares, for tests of what happens and of how long it takes."""

from __future__ import annotations

import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from rig.loads import Load, Terms
from rig.node import Node
from rig.programs import Program, load_command, ring_command

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping


MS = 1_000_000


BOTH = ("0", "1")


@contextmanager
def gang_node(programs: Mapping[str, tuple[Terms, list[str]]]) -> Iterator[tuple[Node, dict[str, Program]]]:
    """Start programs on two devices; each has its own share and waits for its `go`."""
    with Node("2xH200") as node:
        started = {}
        for name, (terms, command) in programs.items():
            environment = node.share_environment(name, terms)
            if len(terms.devices) == 1:
                environment = {**environment, "CUDA_VISIBLE_DEVICES": terms.devices[0]}
            started[name] = node.add(name, command, environment)
        yield node, started


def ring(request: float = 30, **terms: Any) -> tuple[Terms, list[str]]:
    return Terms(request, devices=BOTH, **terms), ring_command(2, steps=4, work="200us")


def single(device: int, request: float = 40) -> tuple[Terms, list[str]]:
    load = Load(Terms(request, devices=(str(device),)), "saturate", {"unit": "500us"})
    return load.terms, load_command(load.mode, load.options)


def go(programs: dict[str, Program], seconds: float) -> int:
    start_ns = time.monotonic_ns() + 100 * MS
    for program in programs.values():
        program.go(start_ns, start_ns + round(seconds * 1e9))
    return start_ns
