"""What the hardware itself does: time slices, the cost of calls, and how soon the host learns of the device's progress.

The measurements that the design wants from a real device first, as far as they need no privilege and leave its
settings alone. Each leaves what the simulated GPU needs in `host.facts`.
"""

import time
from collections.abc import Mapping
from typing import Any

from bench.bars import figures
from bench.bars.rig import START_DELAY_NS, run
from bench.gpu import spans
from bench.gpu.host import Host
from bench.gpu.node import HardwareRig, Node
from bench.table import Line, micro, milli
from rig.loads import MS, Load, Terms, saturating
from rig.programs import Program

BUDGETS = ("20us", "50us", "100us", "200us", "500us", "1ms")


# ---- slices ----


def _together(host: Host, commands: Mapping[str, list[str]]) -> dict[str, Mapping[str, Any]]:
    programs = {name: Program(name, command, host.environment) for name, command in commands.items()}
    try:
        for program in programs.values():
            program.await_ready()
        begin_ns = time.monotonic_ns() + START_DELAY_NS
        for program in programs.values():
            program.go(begin_ns, begin_ns + (host.scale.slices_ms + 100) * MS)
        return {name: program.result().other for name, program in programs.items()}
    finally:
        for program in programs.values():
            program.kill()


def slices(host: Host) -> list[Line]:
    """Measure time slices and switches between two contexts that always have work, small ones and full ones."""
    lines = []
    gap_ns = max(5_000, 4 * int(host.facts["device_clock_resolution_ns"]))
    full = {"blocks": host.device.multiprocessors, "threads": 1024}
    for what, size in (("one block each", {"blocks": 1, "threads": 32}), ("every multiprocessor full", full)):
        command = host.probe("slices", work=f"{host.scale.slices_ms}ms", gap=f"{gap_ns}ns", wait=1, **size)
        found = _together(host, {"one": command, "other": command})
        title = f"time slice between two busy contexts, {what}"
        if not all(told["began"] for told in found.values()):
            lines.append(Line(title, "", "the device does not log: simulated"))
            continue
        one, other = (spans.running(told["began"], told["ended"], told["gaps"]) for told in found.values())
        try:
            seen = spans.slicing(one, other)
        except ValueError as error:
            lines.append(Line(title, "", str(error)))
            continue
        slice_ns = figures.median(seen.slices_ns) if seen.slices_ns else 0
        switch_ns = figures.median(seen.switches_ns) if seen.switches_ns else 0
        text = f"{micro(slice_ns)}, a switch {micro(switch_ns)}, lost {seen.lost * 100:.2f} %"
        detail = {"slices_ns": seen.slices_ns[:400], "switches_ns": seen.switches_ns[:400], "lost": seen.lost}
        lines.append(Line(title, "", text, None, detail=detail))
        host.facts |= {"slice_ns": slice_ns, "switch_ns": switch_ns}  # the full one comes last and stays
    return [*lines, _visits(host), _beside_deep_queue(host)]


def _visits(host: Host) -> Line:
    """Measure a context that empties its queue at once, beside one that always has work."""
    gap_ns = max(5_000, 4 * int(host.facts["device_clock_resolution_ns"]))
    path = host.directory / "visits.log"
    size = {"blocks": 1, "threads": 32}
    log = {} if host.simulated else {"log": 65536}
    commands = {
        "busy": host.probe("slices", work=f"{host.scale.slices_ms}ms", gap=f"{gap_ns}ns", wait=1, **size),
        "visitor": host.probe("sync", unit="100us", gap="1ms", path=path, wait=1, **size, **log),
    }
    found = _together(host, commands)
    title = "a 100 µs kernel beside a busy context"
    gaps = [(left, back) for left, back in found["busy"]["gaps"]]
    content = path.read_bytes() if path.exists() else b""
    seen = spans.visits(gaps, [(began, ended) for _, began, ended in spans.RECORD.iter_unpack(content)])
    path.unlink(missing_ok=True)
    if not seen:
        return Line(title, "", "the device does not log: simulated" if host.simulated else "it never ran in a gap")
    preempt, back = figures.median([v.preempted_ns for v in seen]), figures.median([v.back_ns for v in seen])
    host.facts |= {"preempt_ns": preempt, "drain_switch_ns": back}
    text = f"begins {micro(preempt)} after the other stops; that one is back {micro(back)} after its end"
    return Line(title, "", text, None, detail={"visits": len(seen)})


def _beside_deep_queue(host: Host) -> Line:
    """Measure what a context that waits for each short kernel gets beside a deep queue: what sharing must repair."""
    loads = {"deep": saturating(50), "short": Load(Terms(50), "sync", {"unit": "100us"})}
    rig = HardwareRig(host)
    bare_run = run(rig, loads, host.scale.bare_steps, hook=False)
    part = figures.utilisation(bare_run.samples, ["short"]) / (figures.utilisation(bare_run.samples) or 1)
    latencies = bare_run.results["short"].latencies_ns
    hooked = run(rig, loads, host.scale.short_steps)
    part_hooked = figures.utilisation(hooked.samples, ["short"]) / (figures.utilisation(hooked.samples) or 1)
    p50 = figures.median(latencies)
    text = f"{part_hooked * 100:.1f} % ({milli(figures.median(hooked.results['short'].latencies_ns))} a kernel)"
    bare = f"{part * 100:.1f} % ({milli(p50)} a kernel)"
    return Line("100 µs kernels, each waited for, beside a deep queue: part of the device", "", text, None, bare)


# ---- calls and signals ----


def calls(host: Host) -> list[Line]:
    """Measure the host's time of the calls that the hook makes or meets, and what the device's queue holds."""
    with Node(host, hook=False) as node:  # only for the memory that a context takes: nothing else runs now
        before = host.free_bytes()
        load = Load(Terms(100), "cost", {"unit": "20ns", "count": 1})
        program = node.start({"a": load}, 1)["a"]
        taken = before - host.free_bytes()
        program.go(time.monotonic_ns(), time.monotonic_ns() + MS)
        program.result()
    host.facts["context_bytes"] = taken
    unit = "1us" if host.simulated else "20us"
    found = host.ask("calls", unit=unit, group=host.scale.call_group, bytes=host.scale.copy_bytes)
    host.facts["calls"] = found
    lines = []
    for name, told in found.items():
        if isinstance(told, dict):
            text = f"{told['p50_ns']} ns" if "p50_ns" in told else f"refused: {told['error']}"
            lines.append(Line(f"host time of {name}, p50", "", text, None, detail=told))
    lines.append(Line("launches that fit behind a running kernel", "", str(found["queue_depth"] or "more than 8192")))
    lines.append(Line("copy from pinned host memory", "", f"{found['copy_mb_s']} MB/s"))
    lines.append(Line("device memory of a context", "", f"{taken / 2**20:.0f} MiB"))
    return lines


def signals(host: Host) -> list[Line]:
    """Measure how soon the host learns that a kernel has ended, by each way to learn it."""
    found = host.ask("signals", unit="200us")
    host.facts["signals"] = found
    names = {
        "word_alone": "cuStreamWriteValue32 on an idle stream → the host sees the word",
        "call_to_start": "cuLaunchKernel called → the kernel begins, idle device",
        "write": "kernel ends → the host sees the word written behind it",
        "blocking_event": "kernel ends → cuEventSynchronize returns, blocking event",
        "spinning_event": "kernel ends → cuEventSynchronize returns, spinning",
        "synchronize": "kernel ends → cuStreamSynchronize returns",
    }
    return [
        Line(
            what,
            "",
            f"p50 {micro(found[name]['p50_ns'])}, p99 {micro(found[name]['p99_ns'])}",
            None,
            detail=found[name],
        )
        for name, what in names.items()
    ]


def budget(host: Host) -> list[Line]:
    """Measure throughput against what may be in flight, when the host learns of ends as the hook does."""
    unit = "20us"
    work = f"{host.scale.budget_ms}ms"
    found = host.ask("budget", unit=unit, work=work, units=",".join(BUDGETS))["busy"]
    alone = max(found.values()) or 1.0
    return [
        Line(
            f"throughput with {int(limit) // 1000} µs of {unit} kernels in flight",
            "",
            f"{busy:.3f} of the device",
            None,
            detail={"of_the_best": busy / alone},
        )
        for limit, busy in found.items()
    ]


def capture(host: Host) -> list[Line]:
    """Count errors of captures in every mode while another thread launches and another share wants the device."""
    options = {"unit": "200us", "gap": "3ms", "count": host.scale.captures}

    def errors(*, hook: bool) -> tuple[int, Mapping[str, int]]:
        seconds = host.scale.captures * 3 * 0.02
        rival = saturating(50)
        with Node(host, hook=hook) as node:
            programs = node.start({"rival": rival, "a": Load(Terms(50), "capture", options)}, seconds + 10)
            begin_ns = time.monotonic_ns() + START_DELAY_NS
            for program in programs.values():
                program.go(begin_ns, begin_ns + round((seconds + 10) * 1e9))
            result = programs["a"].result()
            programs["rival"].stop()
            programs["rival"].result()
        return int(result.other["captures"]), result.other["errors"]

    captures, hooked = errors(hook=True)
    _, bare = errors(hook=False)
    met = sum(hooked.values()) <= sum(bare.values())
    what = f"errors in {captures} captures, every mode, beside launches and another share"
    detail = {"with": dict(hooked), "without": dict(bare)}
    return [Line(what, "none more", str(sum(hooked.values())), met, str(sum(bare.values())), detail=detail)]
