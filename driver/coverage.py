"""Lists what the hook does about each driver API function: reads ``driver.def``, writes ``docs/cuda-coverage.md``.

It may not load the driver or any other library. No process needs it at run time.
"""

import re
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

_HERE = Path(__file__).resolve().parent
_ABSENT = re.compile(r"^ABSENT\((\w+), (\d+)\)$", re.MULTILINE)
_AS_DRIVER_ROW = r'DRIVER(\1, \2, passed, "not in the driver for Linux", "absent")'
"""What an ABSENT row stands for."""
_ROW = re.compile(r'^(WRAPPED|DRIVER)\((\w+), (\d+), (\w+), (?:([A-Z]+), )?"([^"]*)", "([^"]*)"\)$', re.MULTILINE)
_ROW_BEGIN = re.compile(r"^[A-Z]+\(", re.MULTILINE)
_VARIANT = re.compile(r"(_v\d+)?(_ptsz|_ptds)?$")
"""The suffixes that tell the variants of a function apart; _ptsz and _ptds: for per-thread default streams."""

CLASSES = {
    "metered": "work on the device: it passes the gate, is counted as a launch and billed; a copy that serves host "
    "memory too, when both sides are device memory",
    "charged": "obtains device memory, or gives it back, against the share’s cap",
    "virtualised": "answers with the share’s part of the device instead of the whole",
    "lifecycle": "goes to the driver with its arguments untouched, and the hook takes note; what a new context is "
    "known to take for itself is charged",
    "passed": "goes to the driver untouched and takes no turn and no device memory",
    "escape": "takes device time or memory, or leads round the hook, and is not accounted by it",
}
"""The classes in the order of the document. A function is in exactly one."""

ACTIONS = {
    "LOOKUP": {"lifecycle"},
    "LAUNCH": {"metered"},
    "COPY": {"metered"},
    "PASS": {"escape"},
    "SYNC": {"lifecycle"},
    "COUNT": {"lifecycle"},
    "AWAIT": {"lifecycle"},
    "LIFECYCLE": {"lifecycle"},
    "CHANGE": {"lifecycle"},
    "MEMORY": {"charged", "virtualised"},
}
"""What a wrapper does, with the classes that it may serve.

``LOOKUP``: a program asks for addresses; the driver answers first, then its own exports are replaced in the answer.
``LAUNCH``: gated and billed. ``COPY``: a launch if both sides are device memory. ``PASS``: a launch that takes no turn;
it is counted as passed. ``SYNC``: returns when work is done; the gate then learns that the thread's work has drained.
``COUNT``: another copy between the host's memory and the device's. ``AWAIT``: a stream waits for more than the device's
work; that wait is not billed. ``LIFECYCLE``: an object that the gate has to know is made or ends. ``CHANGE``: an
executable graph changes; its duration is learned anew. ``MEMORY``: charged to the share, or shown as the share sees it.
"""

REASONS = {
    "query": "answers a question",
    "attribute": "tells what kind of device it is: no attribute has a size of its memory, and a share has all of what "
    "they tell; its part of the memory is in `cuDeviceTotalMem` and `cuMemGetInfo`",
    "state": "changes a setting or makes an object of no more than a few bytes",
    "ordering": "orders streams; takes no device time itself",
    "host copy": "copies from, to or inside host memory, or moves managed memory: copy engines, beside the kernels",
    "host memory": "memory and work of the host",
    "host function": "the driver calls the program back, on the host",
    "mapping": "gives an address, or a way over the fabric, to memory that was charged where it was made",
    "graph": "makes or changes a graph: what is in it is metered when the graph is launched",
    "graphics": "shares the memory of a graphics API, which is not CUDA’s to charge",
    "tool": "for profilers and debuggers",
    "absent": "no Linux driver exports it: Windows, consoles, or a name that only tracing tools know",
}
"""Why a function may pass."""

ESCAPES = {
    "private": "Hands out unnamed functions of the driver, for NVIDIA’s runtime and tools. A launch through one passes "
    "no gate, memory through one is not charged; NVML’s figures for the process show both.",
    "module memory": "Code and globals of a module lie in device memory: part of NVML’s figure for the process.",
    "context memory": "A context has device memory of its own, stacks and heap included: part of NVML’s figure for the "
    "process.",
    "graphics work": "Launches are recorded and run when the graphics API submits them: counted when they are "
    "recorded, not billed when they run. NVML’s utilisation of the process shows them.",
    "several devices": "One launch onto several devices at once takes no turn on any of them and is not billed. It is "
    "counted as a passed launch on the current device; NVML’s utilisation of the process shows it.",
    "other process": "Takes the memory of a process off its device, or brings it back, while its charge stays. NVML’s "
    "figure for that process shows it.",
}
"""Functions that escape, and how their effect is still seen."""

NOTES = {
    "device launch": "A graph made for it can also be launched by kernels, which no gate sees: it runs before the "
    "graph that launched it is done, and the bill lasts until then.",
}
"""Notes on wrapped functions."""


@dataclass(frozen=True, slots=True)
class Function:
    """One function under the name by which a driver exports it.

    Attributes:
        name: the exported name; each variant has its own row.
        since: the first CUDA version that has it, as in ``CUDA_VERSION``; 0: none is documented.
        kind: its class, a key of ``CLASSES``.
        subject: the heading that it is listed under.
        reason: a key of ``REASONS`` or ``ESCAPES``; for a wrapped function empty or a key of ``NOTES``.
        action: what its wrapper does, a key of ``ACTIONS``; empty: it has no wrapper.
    """

    name: str
    since: int
    kind: str
    subject: str
    reason: str
    action: str = ""

    def __post_init__(self) -> None:
        """Check that class, reason and action are known and fit together, and that there is a subject.

        Raises:
            ValueError: the text names the function.
        """
        if self.kind not in CLASSES:
            raise ValueError(f"{self.name}: no class {self.kind!r}: one of {', '.join(CLASSES)}")
        if not self.subject:
            raise ValueError(f"{self.name}: the subject is missing")
        known: Iterable[str] = {"passed": REASONS, "escape": ESCAPES}.get(self.kind, {"": "", **NOTES})
        if self.reason not in known:
            raise ValueError(f"{self.name}: no reason {self.reason!r} of class {self.kind}: one of {', '.join(known)}")
        if self.action and self.kind not in ACTIONS.get(self.action, ()):
            raise ValueError(f"{self.name}: a wrapper that does {self.action} is none of class {self.kind}")
        if not self.action and self.kind not in {"passed", "escape"}:
            raise ValueError(f"{self.name}: class {self.kind} needs a wrapper: make the row WRAPPED")


def read_functions() -> list[Function]:
    """Return the rows of driver.def, in its order.

    Raises:
        ValueError: for a row that does not parse or names something unknown.
    """
    text = _ABSENT.sub(_AS_DRIVER_ROW, (_HERE / "driver.def").read_text(encoding="utf-8"))
    rows = _ROW.findall(text)
    # A row that _ROW does not match is only counted. Only a WRAPPED row has an action, row[3].
    if len(rows) != len(_ROW_BEGIN.findall(text)) or any((macro == "WRAPPED") != bool(row[3]) for macro, *row in rows):
        raise ValueError("driver.def: a row is not of the form that its head describes")
    return [
        Function(name, int(since), kind, subject, reason, action)
        for _, name, since, kind, action, subject, reason in rows
    ]


def plain_name(name: str) -> str:
    """Return the name without the suffixes of variants: ``cuMemcpyDtoD`` for ``cuMemcpyDtoD_v2_ptds``."""
    return _VARIANT.sub("", name)


def _version(since: int) -> str:
    """Return a CUDA version as people write it: 12.3 for 12030; – for 0, as none is documented then."""
    return f"{since // 1000}.{since % 1000 // 10}" if since else "–"


def _variants(group: Sequence[Function]) -> str:
    """Return the exported names of the variants `group` of one function: the plain name, and suffixes.

    A variant that came later than the first is followed by its version.
    """
    plain = plain_name(group[0].name)
    first = min(function.since for function in group)
    parts = []
    for function in sorted(group, key=lambda function: (function.since, function.name)):
        text = f"`{function.name.removeprefix(plain) or plain}`"
        parts.append(text if function.since == first else f"{text} {_version(function.since)}")
    return ", ".join(parts)


def _table(functions: Sequence[Function]) -> list[str]:
    """Return the table of one subject, as lines. All variants of a function that have the same reason are one line."""
    groups: dict[tuple[str, str], list[Function]] = {}
    for function in functions:
        groups.setdefault((plain_name(function.name), function.reason), []).append(function)
    has_reasons = any(function.reason for function in functions)
    columns = ["function", "since", "exported as", *(["reason"] if has_reasons else [])]
    rows = [columns, ["---"] * len(columns)]
    for (plain, reason), group in sorted(groups.items()):
        since = _version(min(function.since for function in group))
        rows.append([plain, since, _variants(group), *([reason] if has_reasons else [])])
    return [f"| {' | '.join(row)} |" for row in rows]


def _counts(functions: Sequence[Function]) -> list[str]:
    """Return the table of the classes, as lines, with the numbers of functions and of exported names in each."""
    exported = Counter(function.kind for function in functions)
    plain = {kind: {plain_name(function.name) for function in functions if function.kind == kind} for kind in CLASSES}
    lines = ["| class | functions | exported names | what the hook does |", "| --- | --- | --- | --- |"]
    for kind, meaning in CLASSES.items():
        lines.append(f"| [{kind}](#{kind}) | {len(plain[kind])} | {exported[kind]} | {meaning} |")
    all_plain = {plain_name(function.name) for function in functions}
    lines.append(f"| all | {len(all_plain)} | {len(functions)} | |")
    return lines


def _legend(functions: Sequence[Function]) -> list[str]:
    """Return the table of what the reasons of these functions mean, as lines; nothing if no function has a reason."""
    used = {function.reason for function in functions}
    rows = [f"| {reason} | {text} |" for reason, text in (REASONS | ESCAPES | NOTES).items() if reason in used]
    return ["", "| reason | meaning |", "| --- | --- |", *rows] if rows else []


def manual() -> str:
    """Return docs/cuda-coverage.md.

    Raises:
        ValueError: when the table does not parse.
    """
    functions = read_functions()
    newest = max(function.since for function in functions)
    parts = [
        "# Coverage of the CUDA driver API",
        "",
        "Generated from `driver/driver.def` by `python -m sharepod.driver.coverage`; a test compares them, and",
        "another fails when a toolkit or a driver has a function that is not listed here.",
        "",
        f"Every function of the driver API from CUDA 11.8 to {_version(newest)}, by every name that a driver exports,",
        "and what the hook does about it. The runtime API stands on these. A function counts once for each class that",
        "its variants are in. A version is that of the first toolkit with the function, – where none is documented.",
        "",
        *_counts(functions),
    ]
    for kind in CLASSES:
        of_kind = [function for function in functions if function.kind == kind]
        parts += ["", f"## {kind.capitalize()}", "", f"{kind.capitalize()}: {CLASSES[kind]}.", *_legend(of_kind)]
        for subject in sorted({function.subject for function in of_kind}):
            title = subject[0].upper() + subject[1:]
            own = [function for function in of_kind if function.subject == subject]
            parts += ["", f"### {title}", "", *_table(own)]
    return "\n".join(parts) + "\n"


if __name__ == "__main__":
    sys.stdout.write(manual())
