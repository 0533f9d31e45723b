"""The memory cap: exact to the last byte for every kind of allocation, and nothing leaked."""

import time

from bench.gpu.host import Host
from bench.gpu.node import Node
from bench.table import Line
from rig.loads import Load, Terms

CAP_BYTES = (1 << 30) + (3 << 21)
"""Of whole blocks of 2 MiB, the coarsest step of any kind, and far below what any device has."""
UNSUPPORTED = "not supported"


def caps(host: Host) -> list[Line]:
    """Fill a share to its cap by every kind of allocation that the driver has, over and over."""
    rounds = host.scale.memory_rounds
    terms = Terms(100, memory_bytes=CAP_BYTES)
    with Node(host) as node:
        load = Load(terms, "memory", {"count": rounds, "bytes": CAP_BYTES})
        program = node.start({"a": load}, 60)["a"]
        program.go(time.monotonic_ns(), time.monotonic_ns() + 60_000_000_000)
        result = program.result()
        left = node.usage()["a"]["memory_used_bytes"]
    lines = []
    for kind, verdict in result.other["kinds"].items():
        met = None if verdict == UNSUPPORTED else verdict == "exact"
        lines.append(Line(f"memory cap: {kind}, {rounds} times", "exact to the byte", verdict, met, "no cap"))
    lost, seen = int(result.other["lost_bytes"]), int(result.other["free_bytes"])
    text = f"{lost} B in the program, {left} B in the account"
    met = lost == 0 and left == 0 and seen <= CAP_BYTES
    lines.append(Line("memory lost after all that", "0 B", text, met, detail={"free_bytes": seen, "cap": CAP_BYTES}))
    return lines
