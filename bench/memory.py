"""The memory cap: exact to the byte for every kind of allocation, and nothing leaked."""

from bench.node import Load, Node, Terms
from bench.scale import Scale
from bench.table import Line

CAP_BYTES = 3 * 2**30 + 4096 * 3
"""Of whole rows, so that a pitched allocation and an array can be as large as the cap."""
ROUNDS = 50


def caps(scale: Scale) -> list[Line]:
    """Fill a share to its cap by every kind of allocation that the driver has, over and over."""
    with Node() as node:
        program = node.start("a", Load(Terms(100, memory_bytes=CAP_BYTES), "memory", {"count": ROUNDS}))
        start_ns = node.sample().now_ns
        program.go(start_ns, start_ns + 60_000_000_000)
        result = program.result()
        left = node.usage()["a"].devices[0].memory_used_bytes
    lines = []
    for kind, verdict in result.other["kinds"].items():
        lines.append(
            Line(
                "memory",
                f"memory cap: {kind}, filled and freed {ROUNDS} times",
                "exact to the byte",
                verdict,
                None if verdict == "not supported" else verdict == "exact",
                "no cap" if scale.baselines else "",
                detail={"free_bytes": result.other["free_bytes"]},
            )
        )
    lost = int(result.other["lost_bytes"])
    over = int(result.other["free_bytes"]) > CAP_BYTES
    text = f"{lost} B in the program, {left} B in the account"
    lines.append(Line("memory", "memory lost after all that", "0 B", text, lost == 0 and left == 0 and not over))
    return lines
