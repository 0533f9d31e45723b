"""The arbiter as Python sees it: typed calls into `sharepod.agent._native`, the only importer of it.

Every call takes the arbiter's lock for microseconds; all are made on the event loop. Errors become OSError with the
errno that the C function returned.
"""

from __future__ import annotations

import errno
import importlib
import os
from typing import TYPE_CHECKING, Any

from sharepod.agent.devices.device import DeviceCounters
from sharepod.agent.shares.share import (
    NUMBERS,
    Copies,
    Diagnostic,
    Handle,
    Histogram,
    Holding,
    Process,
    ShareClass,
    ShareState,
    Terms,
    Turn,
    Usage,
)

if TYPE_CHECKING:
    from collections.abc import Sequence


def _check(result: int, what: str) -> int:
    """Return a result >= 0; raise OSError for -errno. `what`: the call, for the error's text."""
    if result < 0:
        raise OSError(-result, f"{what}: {os.strerror(-result)}")
    return result


def _histogram(found: Any) -> Histogram:
    """Return a `struct sp_histogram` as a value."""
    return Histogram(tuple(found.counts), found.sum_ns)


def _copies(said: Any) -> Copies:
    """Return a `struct sp_copies` as a value."""
    return Copies(said.to_device_bytes, said.to_host_bytes, said.to_device_count, said.to_host_count)


class NativeArbiter:
    """The arbiter of arbiter.c, running on its own thread from construction to `close`.

    Tests of the registry replace it with one in memory.
    """

    def __init__(self) -> None:
        """Make the arbiter and start its threads. Raises OSError."""
        native: Any = importlib.import_module("sharepod.agent._native")  # only where a real arbiter runs
        self._ffi = native.ffi
        self._lib = native.lib
        self.region_abi_version: int = self._lib.SP_ABI
        # Buffers that the calls below use again and again: all calls are made on the event loop.
        self._usage = self._ffi.new("struct sp_usage *")
        self._waits, self._turns = (self._ffi.new("struct sp_histogram *") for _ in range(2))
        self._processes = self._ffi.new("struct sp_process[]", self._lib.SP_SLOTS_MAX)
        self._holdings = self._ffi.new("struct sp_holding[]", self._lib.SP_SLOTS_MAX)
        self._diagnostics = self._ffi.new("struct sp_diagnostic[]", 16)  # SP_DIAGNOSTICS_KEPT of node.h
        self._arbiter: Any = self._lib.sp_arbiter_new()
        if self._arbiter == self._ffi.NULL:
            raise OSError(errno.ENOMEM, "arbiter: out of memory")
        started = self._lib.sp_arbiter_start(self._arbiter)
        if started < 0:
            self.close()
            _check(started, "arbiter")

    def add_device(self, uuid: str) -> Handle:
        """Add a device by its NVML UUID."""
        return Handle(_check(self._lib.sp_arbiter_add_device(self._arbiter, uuid.encode()), f"device {uuid}"))

    def _terms(self, terms: Sequence[tuple[Handle, Terms]], share_class: ShareClass) -> Any:
        """Return an array of `struct sp_terms`, each with the share's class."""
        return self._ffi.new(
            "struct sp_terms[]",
            [
                {
                    "device": device,
                    "request_millipercent": held.request_millipercent,
                    "limit_millipercent": held.limit_millipercent,
                    "share_class": int(share_class),
                    "memory_limit_bytes": held.memory_limit_bytes,
                }
                for device, held in terms
            ],
        )

    def add_share(
        self, directory: str, terms: Sequence[tuple[Handle, Terms]], share_class: ShareClass, used_ns: Sequence[int]
    ) -> Handle:
        """Create the region in `directory`, or adopt the live one there. An adopted share that was paused stays paused.

        `used_ns`: of each device, where its earlier account ended; empty: the accounts begin at 0.
        """
        used = self._ffi.new("uint64_t[]", list(used_ns)) if used_ns else self._ffi.NULL
        packed = self._terms(terms, share_class)
        result = self._lib.sp_arbiter_add_share(self._arbiter, os.fsencode(directory), packed, len(terms), used)
        return Handle(_check(result, f"region {directory}"))

    def region_error(self, directory: str) -> int:
        """Return 0 when the files in `directory` are a region that can be used, else the errno."""
        return -int(self._lib.sp_region_error(os.fsencode(directory)))

    def region_terms(self, directory: str) -> tuple[tuple[tuple[str, Terms], ...], ShareClass, bool]:
        """Return what a region says of its share: its terms by device, its class, and whether it is paused.

        Raises OSError if the region cannot be used, InvalidInput if its terms are out of range.
        """
        found = self._ffi.new("struct sp_found[]", self._lib.SP_DEVICES_MAX)
        count = _check(self._lib.sp_region_terms(os.fsencode(directory), found), f"region {directory}")
        terms = tuple(
            (
                self._ffi.string(one.uuid).decode("ascii", "replace"),
                Terms(one.terms.request_millipercent, one.terms.limit_millipercent, one.terms.memory_limit_bytes),
            )
            for one in found[0:count]
        )
        try:
            share_class = ShareClass(found[0].terms.share_class)
        except ValueError:
            raise OSError(errno.EPROTO, f"region {directory}: {os.strerror(errno.EPROTO)}") from None
        return terms, share_class, any(one.paused for one in found[0:count])

    def region_tenants(self, directory: str) -> int:
        """Return 2 if a process has a slot of the region, 1 if a slot is claimed but its lock is not held, else 0."""
        return int(self._lib.sp_region_tenants(os.fsencode(directory)))

    def update_share(self, share: Handle, terms: Sequence[tuple[Handle, Terms]], share_class: ShareClass) -> None:
        """Change the terms of a live share; `terms` has its devices in the same order as `add_share` got them."""
        packed = self._terms(terms, share_class)
        _check(self._lib.sp_arbiter_update_share(self._arbiter, share, packed, len(terms)), "update share")

    def pause_share(self, share: Handle, paused: bool) -> None:
        """Pause the share, or resume it. The gates of its gang are closed while any share of the gang is paused."""
        _check(self._lib.sp_arbiter_pause_share(self._arbiter, share, int(paused)), "pause share")

    def join_gang(self, share: Handle, key: int) -> None:
        """Make shares with the same key one gang, as far as they are on different devices; key 0: a gang by itself."""
        _check(self._lib.sp_arbiter_join_gang(self._arbiter, share, key), "join gang")

    def remove_share(self, share: Handle) -> None:
        """Forget a share; its gates open."""
        _check(self._lib.sp_arbiter_remove_share(self._arbiter, share), "remove share")

    def read_usage(self, share: Handle, term: int) -> Usage:
        """Return the account of the share on its `term`-th device."""
        usage = self._usage
        _check(self._lib.sp_arbiter_read_usage(self._arbiter, share, term, usage), "read usage")
        return Usage(
            **{name: getattr(usage, name) for name in NUMBERS},
            gone_copies=_copies(usage.gone_copies),
            state=ShareState(usage.state),
            gang_device=Handle(usage.gang_device),
        )

    def read_turn_times(self, share: Handle, term: int) -> tuple[Histogram, Histogram]:
        """Return how long the share waited for its turns on its `term`-th device, and how long it had them."""
        waits, turns = self._waits, self._turns
        _check(self._lib.sp_arbiter_read_turn_times(self._arbiter, share, term, waits, turns), "read turn times")
        return _histogram(waits), _histogram(turns)

    def read_processes(self, share: Handle) -> tuple[Process, ...]:
        """Return the live processes of the share, as of the last `read_usage`."""
        found, capacity = self._processes, self._lib.SP_SLOTS_MAX
        count = _check(self._lib.sp_arbiter_read_processes(self._arbiter, share, found, capacity), "read processes")
        return tuple(Process(p.pid, p.slot, p.launches, p.memory_used_bytes) for p in found[0:count])

    def read_holdings(self, share: Handle, term: int) -> tuple[Holding, ...]:
        """Return what each live process of the share is charged with on its `term`-th device."""
        found, capacity = self._holdings, self._lib.SP_SLOTS_MAX
        count = _check(self._lib.sp_arbiter_read_holdings(self._arbiter, share, term, found, capacity), "read holdings")
        return tuple(Holding(h.pid, h.slot, h.memory_used_bytes, h.context_bytes) for h in found[0:count])

    def set_overhead(self, share: Handle, term: int, holding: Holding, overhead_bytes: int) -> None:
        """Set how much more (negative: less) memory of the device the process takes than it is charged with."""
        slot, pid = holding.slot, holding.pid
        result = self._lib.sp_arbiter_set_overhead(self._arbiter, share, term, slot, pid, overhead_bytes)
        _check(result, "set overhead")

    def context_bytes(self, device: Handle, context_bytes: int = 0) -> int:
        """Set how many bytes of memory a context takes on the device; 0: only ask. Return what is set; 0: nothing."""
        return int(self._lib.sp_arbiter_context_bytes(self._arbiter, device, context_bytes))

    def forget_contexts(self) -> None:
        """Forget what contexts take: it was learned from another driver."""
        self._lib.sp_arbiter_forget_contexts(self._arbiter)

    def read_diagnostics(self, share: Handle) -> tuple[Diagnostic, ...]:
        """Return the last diagnostics of the share's processes, oldest first."""
        found, capacity = self._diagnostics, len(self._diagnostics)
        count = _check(
            self._lib.sp_arbiter_read_diagnostics(self._arbiter, share, 0, found, capacity), "read diagnostics"
        )
        return tuple(
            Diagnostic(m.number, m.pid, m.kind, m.detail, self._ffi.string(self._lib.sp_function_of(m.detail)).decode())
            for m in found[0:count]
        )

    def read_turns(self, after: int, capacity: int) -> tuple[Turn, ...]:
        """Return up to `capacity` finished turns with a sequence above `after`, oldest first."""
        found = self._ffi.new("struct sp_turn[]", capacity)
        count = _check(self._lib.sp_arbiter_read_turns(self._arbiter, after, found, capacity), "read turns")
        return tuple(
            Turn(
                sequence=turn.sequence,
                share=Handle(turn.share),
                device=Handle(turn.device),
                requested_ns=turn.requested_ns,
                granted_ns=turn.granted_ns,
                closed_ns=turn.closed_ns,
                drained_ns=turn.drained_ns,
                charged_ns=turn.charged_ns,
                end=turn.reason,
                cogranted=bool(turn.cogranted),
            )
            for turn in found[0:count]
        )

    def read_device(self, device: Handle) -> DeviceCounters:
        """Return the counters of a device since the arbiter was made."""
        charged_ns, decisions, spent_ns = (self._ffi.new("uint64_t *") for _ in range(3))
        _check(self._lib.sp_arbiter_read_device(self._arbiter, device, charged_ns, decisions, spent_ns), "read device")
        hand_offs = self._waits
        _check(self._lib.sp_arbiter_read_hand_offs(self._arbiter, device, hand_offs), "read hand-offs")
        return DeviceCounters(charged_ns[0], decisions[0], spent_ns[0], _histogram(hand_offs))

    def close(self) -> None:
        """Stop as planned: gates that are not paused open within 50 ms. A second call does nothing."""
        if self._arbiter != self._ffi.NULL:
            self._lib.sp_arbiter_free(self._arbiter)
            self._arbiter = self._ffi.NULL
