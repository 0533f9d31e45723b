"""`agent/policy/policy.c` for Python, compiled alone. The models and the policy's tests drive it.

The shared object is built in a temporary directory that is removed when `load` returns. The loaded code stays.
"""

import functools
import importlib.util
import shutil
import tempfile
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import Any

from cffi import FFI

from sharepod.agent.build_native import cdef_block
from sharepod.cli.scratch import Scratch

AGENT = Path(__file__).resolve().parents[2] / "agent"
NEVER_NS = (1 << 64) - 1


class ShareClass(IntEnum):
    """`enum sp_class`."""

    LATENCY = 0
    STANDARD = 1
    BATCH = 2


class Rule(IntEnum):
    """`enum sp_rule`."""

    NONE = 0
    LATENCY = 1
    REQUEST = 2
    SURPLUS = 3
    LEFTOVER = 4


@dataclass(frozen=True, slots=True)
class Choice:
    """`struct sp_choice`. `share` is None when no share is eligible."""

    share: int | None
    quantum_ns: int
    retry_ns: int
    rule: Rule


@functools.cache
def load() -> tuple[Any, Any]:
    """Compile `agent/policy/policy.c` and return its `(ffi, lib)`. Once per process."""
    ffi = FFI()
    ffi.cdef(cdef_block((AGENT / "policy" / "policy.h").read_text(encoding="utf-8")))
    with Scratch("sharepod-policy", tempfile.gettempdir()) as scratch:
        directory = str(scratch.path)
        # Compile beside the output: a compiler that writes object files by relative path then stays in the directory.
        shutil.copytree(AGENT / "policy", Path(directory, "agent", "policy"))
        ffi.set_source(
            "_sharepod_policy",
            '#include "agent/policy/policy.h"',
            sources=[str(path) for path in Path(directory).rglob("*.c")],
            include_dirs=[directory],
            extra_compile_args=["-std=c11", "-O2"],
        )
        built = ffi.compile(tmpdir=directory)
        spec = importlib.util.spec_from_file_location("_sharepod_policy", built)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    return module.ffi, module.lib


class Policy:
    """One device's policy: `struct sp_policy` and its functions, percentages in percent, times in ns."""

    def __init__(self) -> None:
        self.ffi, self.lib = load()
        self.state = self.ffi.new("struct sp_policy *")
        self.lib.sp_policy_init(self.state)

    def share(self, share: int) -> Any:
        """Return the live `struct sp_policy_share`, for a test to read."""
        return self.state.shares[share]

    def add(
        self, now_ns: int, request: float, limit: float = 100, share_class: ShareClass = ShareClass.STANDARD
    ) -> int:
        """Add a share; -1: the table is full."""
        return int(self.lib.sp_policy_add(self.state, round(request * 1000), round(limit * 1000), share_class, now_ns))

    def update(
        self, now_ns: int, share: int, request: float, limit: float, share_class: ShareClass = ShareClass.STANDARD
    ) -> None:
        """Change a share's terms."""
        self.lib.sp_policy_update(self.state, share, round(request * 1000), round(limit * 1000), share_class, now_ns)

    def remove(self, now_ns: int, share: int) -> None:
        """Forget a share."""
        self.lib.sp_policy_remove(self.state, share, now_ns)

    def pause(self, now_ns: int, share: int, paused: bool) -> None:
        """Pause or resume a share."""
        self.lib.sp_policy_pause(self.state, share, paused, now_ns)

    def wait(self, now_ns: int, share: int, waiting: bool = True) -> None:
        """Let a share begin to wait for a turn, or stop waiting for one."""
        self.lib.sp_policy_wait(self.state, share, waiting, now_ns)

    def charge(self, now_ns: int, share: int, used_ns: int) -> None:
        """Bill device time to a share."""
        self.lib.sp_policy_charge(self.state, share, used_ns, now_ns)

    def end(self, now_ns: int, share: int) -> None:
        """End the turn of a share."""
        self.lib.sp_policy_end(self.state, share, now_ns)

    def next(self, now_ns: int) -> Choice:
        """Choose the share that runs next."""
        choice = self.lib.sp_policy_next(self.state, now_ns)
        share = None if choice.share < 0 else int(choice.share)
        return Choice(share, int(choice.quantum_ns), int(choice.retry_ns), Rule(choice.rule))

    def preempts(self, now_ns: int, waiter: int, holder: int) -> bool:
        """Say whether `waiter` should revoke `holder` now."""
        return bool(self.lib.sp_policy_preempts(self.state, waiter, holder, now_ns))

    def quantum(self, now_ns: int, share: int) -> int:
        """Return the quantum the share would get now."""
        return int(self.lib.sp_policy_quantum(self.state, share, now_ns))

    def unit(self, share: int, longest_unit_ns: int) -> int:
        """Tell the policy the longest unit of a share. Return its quantum from now on."""
        return int(self.lib.sp_policy_unit(self.state, share, longest_unit_ns))

    def valid(self) -> bool:
        """Tell whether the invariants hold."""
        return bool(self.lib.sp_policy_valid(self.state))
