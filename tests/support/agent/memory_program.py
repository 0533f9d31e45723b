"""An ordinary driver-API program that takes memory of device 0 as it is told on stdin, a line each, and answers each.

    take KIND BYTES      take memory; answers the driver's result
    give                 give the last of it back
    race KIND BYTES N    take pieces in N threads until each was refused 200 times in a row; answers how many it got
    open KIND PID WHAT   open what another process shows of its memory
    show KIND            answers how another process opens the last of it
    cached KIND BYTES    take memory as an allocator that keeps what the program gives back, until memory runs out
    again                import the last external memory once more
    keep BYTES           what the default pool may keep
    trim BYTES           give back all of the default pool but this
    sync                 wait for the stream

`free` answers what cuMemGetInfo says is free.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from ctypes import byref, c_char, c_size_t, c_uint64, c_void_p

from memory_driver import FILE, OUT_OF_MEMORY, Give, Refused, bring_to_an_end, call, shown, stream
from memory_kinds import KINDS, default_of, imported, known, mapped, unmap

from rig.structs import IpcHandle

RELEASE_THRESHOLD = 4

context = c_void_p()


def open_linear(_pid: str, what: str) -> Give:
    """Open another process's linear memory."""
    address = c_uint64()
    call("cuIpcOpenMemHandle_v2", byref(address), IpcHandle.from_buffer_copy(bytes.fromhex(what)), 1)
    return lambda: call("cuIpcCloseMemHandle", address)


def open_physical(pid: str, what: str) -> Give:
    """Import another process's physical memory and map it."""
    number, size = what.split(",")
    descriptor, handle = os.open(f"/proc/{pid}/fd/{number}", os.O_RDWR), c_uint64()
    call("cuMemImportFromShareableHandle", byref(handle), c_void_p(descriptor), FILE)
    os.close(descriptor)
    address = mapped(handle, int(size))

    def give() -> None:
        unmap(address, int(size))
        call("cuMemRelease", handle)

    return give


def open_pool(pid: str, what: str) -> Give:
    """Import another process's pool, and an allocation of it."""
    number, text = what.split(",")
    descriptor, made, address = os.open(f"/proc/{pid}/fd/{number}", os.O_RDWR), c_void_p(), c_uint64()
    pointer = (c_char * 64).from_buffer_copy(bytes.fromhex(text))
    call("cuMemPoolImportFromShareableHandle", byref(made), c_void_p(descriptor), FILE, c_uint64(0))
    call("cuMemPoolImportPointer", byref(address), made, byref(pointer))

    def give() -> None:
        call("cuMemFreeAsync", address, stream)
        bring_to_an_end()
        call("cuMemPoolDestroy", made)
        os.close(descriptor)

    return give


OPEN = {"linear": open_linear, "physical": open_physical, "pool": open_pool}


cache: list[tuple[str, Give]] = []


def cached(size: str, take: Callable[[], Give]) -> Give:
    """Take what is kept, or new memory; when that is refused, give back all that is kept and ask once more."""
    kept = next((item for item in cache if item[0] == size), None)
    if kept is not None:
        cache.remove(kept)
        give = kept[1]
    else:
        try:
            give = take()
        except Refused:
            while cache:
                cache.pop()[1]()
            give = take()
    return lambda: cache.append((size, give))


def race(kind: str, size: int, threads: int) -> int:
    """Take pieces in threads until each was refused again and again; return how many there are."""
    got = []

    def work() -> None:
        call("cuCtxSetCurrent", context)
        refused = 0
        while refused < 200:
            try:
                got.append(KINDS[kind](size))
                refused = 0
            except Refused as error:
                if error.args != (OUT_OF_MEMORY,):
                    raise
                refused += 1

    working = [threading.Thread(target=work) for _ in range(threads)]
    for thread in working:
        thread.start()
    for thread in working:
        thread.join()
    return len(got)


def answer(held: list[Give], command: str, *words: str) -> object:
    """Do what a line says."""
    if command == "take":
        held.append(KINDS[words[0]](int(words[1])))
    elif command == "open":
        held.append(OPEN[words[0]](words[1], words[2]))
    elif command == "cached":
        held.append(cached(words[1], lambda: KINDS[words[0]](int(words[1]))))
    elif command == "keep":
        call("cuMemPoolSetAttribute", default_of(), RELEASE_THRESHOLD, byref(c_uint64(int(words[0]))))
    elif command == "trim":
        call("cuMemPoolTrimTo", default_of(), c_size_t(int(words[0])))
    elif command == "sync":
        bring_to_an_end()
    elif command == "again":
        held.append(imported(*known[-1]))
    elif command == "give":
        held.pop()()
    elif command == "show":
        return shown[-1]()
    elif command == "race":
        return race(words[0], int(words[1]), int(words[2]))
    elif command == "free":
        free, total = c_size_t(), c_size_t()
        call("cuMemGetInfo_v2", byref(free), byref(total))
        return free.value
    return 0


def main() -> None:
    """Answer lines until there are no more."""
    call("cuInit", 0)
    call("cuDevicePrimaryCtxRetain", byref(context), 0)
    call("cuCtxSetCurrent", context)
    call("cuStreamCreate", byref(stream), 1)
    print("ready", flush=True)
    held: list[Give] = []
    for line in sys.stdin:
        try:
            print(answer(held, *line.split()), flush=True)
        except Refused as error:
            print(error.args[0], flush=True)


if __name__ == "__main__":
    main()
