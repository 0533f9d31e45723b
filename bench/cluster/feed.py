"""Measures the usage feed of a large cluster: the scheduler's cost when ten thousand agents tell every second.

Server and agents are separate processes on the loopback, with TLS. The server is the real one. Its own processor time
and memory are judged, not the agents' use of the same processors. Each node has eight devices and ten shares.
"""

import os
import sys
import time
from pathlib import Path

import trustme

from bench.bars import figures
from bench.bars.arbiter import cpu_s
from bench.cluster.density import rss_mib
from bench.gpu.process import Asked
from bench.scale import FULL, Scale
from bench.table import Line, milli
from sharepod.cli.scratch import Scratch

MEMORY_MIB = 1024
WARM_UP_S = 20
CONNECT_S = 120
LOADS = ((1, 2, True), (8, 10, False))
"""Devices and shares with new numbers in each message; and whether the bar applies."""


def _child(module: str, *arguments: str) -> Asked:
    return Asked([sys.executable, "-m", f"bench.cluster.{module}", *arguments], os.environ)


def _measure(scale: Scale, directory: Path, devices: int, shares: int, *, judged: bool) -> list[Line]:
    """Measure the server while each message has new numbers of this many devices and shares.

    `directory` has the certificates. Only at the full number of agents the bars are judged.
    """
    seconds = 3 * scale.short_s if scale.agents >= FULL.agents else scale.short_s
    certificate, key = str(directory / "tls.crt"), str(directory / "tls.key")
    with _child("feed_server", certificate, key) as server:
        port, pid = server.read_line(), server.pid
        arguments = (port, str(directory / "ca.crt"), str(scale.agents), str(devices), str(shares))
        with _child("feed_clients", *arguments) as clients:
            began = time.monotonic()
            clients.read_line(CONNECT_S)
            connected_s, connected_cpu_s = time.monotonic() - began, cpu_s(pid)
            time.sleep(WARM_UP_S if scale.agents >= FULL.agents else 2)
            before, cpu_before, at = server.ask(""), cpu_s(pid), time.monotonic()
            time.sleep(seconds)
            passed, cpu_after = time.monotonic() - at, cpu_s(pid)
            cores = (cpu_after - cpu_before) / passed
            after, mib = server.ask(""), rss_mib(pid)
            sent = clients.ask("")
    rate = (after["messages"] - before["messages"]) / passed
    us_each = cores / rate * 1e6
    whole = after["nodes"] == scale.agents and not any(after["ended"].values()) and rate > 0.98 * scale.agents
    detail: dict[str, object] = {
        "agents": scale.agents, "cores": cores, "mib": mib, "messages_per_s": rate, "ended": after["ended"],
        "us_per_message": us_each, "clients": sent, "connected_s": connected_s,
        "connected_cpu_s": connected_cpu_s, "whole": whole,
    }  # fmt: skip
    what = f"{scale.agents:,} agents that tell {devices} device(s) and {shares} shares each second"
    judge = judged and scale.agents >= FULL.agents
    told = f"{rate:,.0f} messages/s" + ("" if whole else ", NOT ALL of them")
    pauses = [pause * 1e9 for pause in after["pauses_s"]]
    at_99, longest = milli(figures.percentile(pauses, 99)), milli(max(pauses))
    return [
        Line(
            f"{what}: of a core", "≤ 1" if judge else "", f"{cores:.2f} ({told}, {us_each:.0f} µs each)",
            (whole and cores <= 1) if judge else None, detail=detail,
        ),
        Line(
            f"{what}: memory", f"≤ {MEMORY_MIB} MiB" if judge else "", f"{mib:.0f} MiB",
            (whole and mib <= MEMORY_MIB) if judge else None,
        ),
        Line(f"{what}: how late the server's loop is, p99 / longest", "", f"{at_99} / {longest}", None),
        Line(
            f"{what}: all connect again", "",
            f"{connected_s:.0f} s, {connected_cpu_s / scale.agents * 1e3:.1f} ms of a core each", None,
        ),
    ]  # fmt: skip


def feed(scale: Scale) -> list[Line]:
    """Let the agents tell, and measure the server."""
    scratch = Scratch("sharepod-bench")
    try:
        authority = trustme.CA(key_type=trustme.KeyType.ECDSA)
        served = authority.issue_cert("localhost", key_type=trustme.KeyType.ECDSA)
        authority.cert_pem.write_to_path(str(scratch.path / "ca.crt"))
        served.private_key_pem.write_to_path(str(scratch.path / "tls.key"))
        served.cert_chain_pems[0].write_to_path(str(scratch.path / "tls.crt"))
        lines: list[Line] = []
        for devices, shares, judged in LOADS:
            lines += _measure(scale, scratch.path, devices, shares, judged=judged)
        return lines
    finally:
        scratch.remove()
