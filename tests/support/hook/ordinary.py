"""Ordinary programs under the hook."""

import subprocess


def gate_was_reached(done: subprocess.CompletedProcess[str], symbols: int) -> bool:
    """Tell whether every symbol was called and the launches among them passed the gate."""
    lines = [line.split() for line in done.stdout.splitlines()]
    return len(lines) == symbols and {line[0]: line[4] for line in lines}["cuLaunchKernel"] == "1"
