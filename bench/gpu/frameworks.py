"""Runs common frameworks with and without the hook: the same bits, the same pace, and within their cap.

Each program is framework_program.py in one mode. If this python3 lacks a row's package, the row says so at no cost. All
results must be the same bit for bit. What differs between two runs without the hook is reported, but not judged.
"""

import importlib.util
import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.bars import figures
from bench.gpu.build import ROOT
from bench.gpu.host import Host
from bench.gpu.node import Node
from bench.gpu.process import ask_once
from bench.table import Line
from rig.loads import Terms
from rig.programs import ProgramFailed

GIB = 1 << 30
CAP_BYTES = 20 * GIB
STEP_S = 1.5
NO_DRIVER = "not here: its runtime needs NVIDIA's driver"
DETERMINED = {"CUBLAS_WORKSPACE_CONFIG": ":4096:8", "XLA_FLAGS": "--xla_gpu_deterministic_ops=true"}
POLITE = {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
"""Otherwise JAX takes three quarters of the device at once, whatever else runs there."""
Told = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Case:
    """A program of a framework.

    Attributes:
        what: its name in the table.
        mode: the mode of framework_program.py.
        packages: what this python3 must have.
        pairs: the number of runs without and with the hook, in turn.
        paced: whether its pace is judged; else it is only shown.
    """

    what: str
    mode: str
    packages: tuple[str, ...] = ("torch",)
    environment: Mapping[str, str] = field(default_factory=dict)
    pairs: int = 1
    paced: bool = True
    timeout_s: float = 60.0


EXPANDABLE = {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}
CASES: Mapping[str, Case] = {
    "torch-training": Case("PyTorch training", "training", pairs=2),
    "torch-inference": Case("PyTorch inference", "inference", pairs=2),
    "torch-graph": Case("torch.cuda.graph", "graphs"),
    "torch-expandable": Case("PyTorch training, expandable segments", "training", environment=EXPANDABLE, paced=False),
    "torch-compile": Case('torch.compile(mode="reduce-overhead")', "compiled", timeout_s=80),
    "triton": Case("a Triton kernel", "triton", ("torch", "triton")),
    "jax": Case("JAX training", "jax", ("jax",)),
    "cupy": Case("CuPy", "cupy", ("cupy",)),
}


def missing(packages: Sequence[str]) -> list[str]:
    """Return the packages that this python3 does not have."""
    return [name for name in packages if importlib.util.find_spec(name) is None]


def command(mode: str, seconds: float = STEP_S) -> list[str]:
    """Return the command of a program. -P: this folder's modules must not shadow those that frameworks import."""
    return [sys.executable, "-P", str(Path(__file__).with_name("framework_program.py")), mode, f"{seconds:g}"]


def _unavailable(host: Host, what: str, packages: Sequence[str]) -> Line | None:
    if host.simulated:
        return Line(what, "", NO_DRIVER)
    absent = missing(packages)
    return Line(what, "", f"not here: this python3 has no {', '.join(absent)}") if absent else None


# ---- the same bits at the same pace ----


def differences(bare: Sequence[Told], hooked: Sequence[Told]) -> tuple[int, list[str]]:
    """Return how many results of the hooked runs no bare run had, and which results differ without the hook too."""
    names = sorted(bare[0]["digests"])
    loose = [name for name in names if len({told["digests"][name] for told in bare}) > 1]
    strict = [name for name in names if name not in loose]
    return sum(told["digests"].get(name) != bare[0]["digests"][name] for told in hooked for name in strict), loose


def judged(case: Case, bare: Sequence[Told], hooked: Sequence[Told]) -> list[Line]:
    """Return the lines of a case from the outputs of its runs, in the order of the runs."""
    different, loose = differences(bare, hooked)
    compared = len(hooked) * (len(bare[0]["digests"]) - len(loose))
    text = f"{different} of {compared} results" + (f"; without the hook too: {', '.join(loose)}" if loose else "")
    met = different == 0 if compared else None
    lines = [Line(f"bits that differ with the hook: {case.what}", "0", text, met)]
    paces = [(figures.median(b["step_ns"]), figures.median(h["step_ns"])) for b, h in zip(bare, hooked, strict=True)]
    added = figures.median([(with_hook / without - 1) * 100 for without, with_hook in paces])
    step = f"(a step: {figures.median([without for without, _ in paces]) / 1e3:.0f} µs)"
    bar, held = ("≤ 0.5 %", added <= 0.5) if case.paced else ("", None)
    detail = {"pairs_ns": paces}
    return [*lines, Line(f"added end to end, alone: {case.what}", bar, f"{added:+.2f} %", held, step, detail=detail)]


def compare(host: Host, case: Case) -> list[Line]:
    """Run a program alternately without and with the hook."""
    unavailable = _unavailable(host, f"with and without the hook: {case.what}", case.packages)
    if unavailable:
        return [unavailable]
    caches = {f"{name}_CACHE_DIR": str(host.directory / name.lower()) for name in ("TORCHINDUCTOR", "TRITON", "CUPY")}
    own = {**DETERMINED, **POLITE, **caches, **case.environment}
    bare, hooked = [], []
    with Node(host) as node:
        share = node.share("a", Terms(100))
        for _ in range(case.pairs):
            bare.append(ask_once(command(case.mode), {**node.environment, **own}, case.timeout_s))
            if "not_here" in bare[0]:
                return [Line(f"with and without the hook: {case.what}", "", f"not here: {bare[0]['not_here']}")]
            hooked.append(ask_once(command(case.mode), {**share, **own}, case.timeout_s))
        if node.usage()["a"]["launches"] == 0:
            raise RuntimeError("the share launched nothing: the hook was not there")
    return judged(case, bare, hooked)


# ---- one share, two processes ----


def one_share(host: Host) -> list[Line]:
    """Run two training processes together in one share. Each must compute what it computes alone without the hook."""
    what = "two processes of one share: PyTorch training"
    unavailable = _unavailable(host, what, ("torch",))
    if unavailable:
        return [unavailable]
    with Node(host) as node:
        alone = ask_once(command("training", 0.1), {**node.environment, **DETERMINED})
        if "not_here" in alone:
            return [Line(what, "", f"not here: {alone['not_here']}")]
        share = {**node.share("a", Terms(50)), **DETERMINED}
        started = [
            subprocess.Popen(command("training"), env=share, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
            for _ in range(2)
        ]
        try:
            done = [process.communicate(timeout=60) for process in started]
        finally:
            for process in started:
                process.kill()
        failed = [error for process, (_, error) in zip(started, done, strict=True) if process.returncode]
        if failed:
            raise ProgramFailed(f"{what}: {failed[0].strip()[-500:]}")
        usage = node.usage()["a"]
    told = [ask_json(output) for output, _ in done]
    different, loose = differences([alone], told)
    text = f"{different} of {2 * len(alone['digests'])} results"
    return [Line(f"bits that differ: {what}", "0", text, different == 0, detail={"usage": usage, "loose": loose})]


def ask_json(output: str) -> Told:
    """Return the object on a program's last line."""
    told: Told = json.loads(output.strip().splitlines()[-1])
    return told


# ---- the cap ----


def capped_lines(told: Told, cap_bytes: int, how: str) -> list[Line]:
    """Return the lines of the greedy program from its output."""
    if "not_here" in told:
        return [Line("PyTorch that wants all memory", "", f"not here: {told['not_here']}")]
    reached, total = int(told["reached"]), int(told["total"])
    text = f"{reached / GIB:.2f} GiB, of {total / GIB:.2f} GiB that it was shown"
    met = total <= cap_bytes and cap_bytes - 2 * GIB <= reached <= cap_bytes and bool(told["said"])
    retried = f"{'it did' if told['recovered'] else 'it did not'}, {told['retries']} retries of its own"
    name = f"{cap_bytes / GIB:.0f} GiB"
    return [
        Line(
            f"PyTorch in a share of {name} that wants all ({how}): reached", f"≤ {name}", text, met, detail=dict(told)
        ),
        Line(
            "after out of memory, empty_cache and more allocations work; so does PyTorch's own retry",
            "both",
            retried,
            bool(told["recovered"]) and int(told["retries"]) > 0,
        ),
    ]


def _sharepod_runs() -> bool:
    """Tell whether `sharepod run` itself can run here: its packages and the outputs of `make build` are there."""
    probe = "import grpc, typer, cffi, sharepod.agent._native, sharepod.proto.v1_pb2"
    return subprocess.run([sys.executable, "-c", probe], cwd=ROOT, capture_output=True, check=False).returncode == 0


def capped(host: Host) -> list[Line]:
    """Run a program that takes all the memory it can get in a share of 20 GiB: by `sharepod run` if that can run."""
    unavailable = _unavailable(host, "PyTorch in a share of 20 GiB that wants all", ("torch",))
    if unavailable:
        return [unavailable]
    cap = min(CAP_BYTES, host.device.memory_bytes // 4)
    if _sharepod_runs():
        run = ["run", "--private", "--gpu", "100", "--memory", f"{cap // 2**20}MiB", "--", *command("greedy")]
        environment = {**host.environment, "SHAREPOD_RUNTIME_DIRECTORY": str(host.directory / "run")}
        told = ask_once([sys.executable, "-m", "sharepod.cli", *run], environment)
        return capped_lines(told, cap, "sharepod run")
    with Node(host) as node:
        told = ask_once(command("greedy"), node.share("a", Terms(100, memory_bytes=cap)))
    return capped_lines(told, cap, "the arbiter alone: sharepod run cannot run here")
