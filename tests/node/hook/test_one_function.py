"""Test that each function of the driver is one function however a program finds it, and that its code can be patched.

Programs patch the driver's code to hear of memory: UCX, and what is built on it. They patch one address.
"""

import json
import platform
import re
from pathlib import Path

import pytest
from hooklab import C, compile_c, read_symbols, run

from rig.gpu import LIBRARIES
from rig.script import script
from sharepod.hook import LIBRARY

X86_64 = pytest.mark.skipif(platform.machine() != "x86_64", reason="the patch and the bytes are of x86-64")
JUMP_BYTES = 5
"""The length of the jump that a patch writes."""
MOVABLE = re.compile(r"push |sub +\$0x[0-9a-f]+,%rsp|mov +%rsp,%rbp|endbr64")
"""The instructions that UCX moves to another place (1.22); others refer to their place, or it does not know them."""
ADDRESSES = """
import ctypes, json, sys
driver, program = ctypes.CDLL("libcuda.so.1"), ctypes.CDLL(None)
find = lambda library, name: ctypes.cast(getattr(library, name), ctypes.c_void_p).value
print(json.dumps({name: [find(driver, name), find(program, name)] for name in sys.argv[1:]}))
"""


def unshared_names() -> list[str]:
    """Return the wrapped functions that have an address of their own in the simulated driver."""
    lines = run(["nm", "-D", "--defined-only", LIBRARIES / "libcuda.so.1"]).stdout.splitlines()
    addresses = {line.split()[2]: line.split()[0] for line in lines if " T " in line}
    names = [symbol.name for symbol in read_symbols() if symbol.name in addresses]
    return [name for name in names if list(addresses.values()).count(addresses[name]) == 1]


def test_a_function_has_one_address_in_the_drivers_handle_and_in_the_program(simgpu: dict[str, str]) -> None:
    names = unshared_names()
    assert len(names) > 150
    done = run([*script(ADDRESSES), *names], simgpu | {"LD_PRELOAD": str(LIBRARY)})
    assert done.returncode == 0, done.stderr
    assert [name for name, found in json.loads(done.stdout).items() if len(set(found)) != 1] == []


@X86_64
@pytest.mark.parametrize("hook", [True, False], ids=["in a share", "without the hook"])
def test_who_patches_a_function_sees_every_call_of_it(simgpu: dict[str, str], tmp_path: Path, hook: bool) -> None:
    linked = ["-Wl,--no-as-needed", "-L", LIBRARIES, "-l:libcuda.so.1"]
    program = compile_c(tmp_path / "patcher", "-O2", C / "patcher.c", *linked, "-ldl")
    done = run([program], simgpu | ({"LD_PRELOAD": str(LIBRARY)} if hook else {}))
    assert (done.returncode, done.stdout) == (0, "3 of 3\n"), done.stderr


@X86_64
def test_every_exported_function_begins_with_instructions_that_a_patch_can_move() -> None:
    code = run(["objdump", "-d", LIBRARY]).stdout
    functions = dict(re.findall(r"^[0-9a-f]+ <(cu[A-Z]\w*)>:\n((?:.+\n){1,8})", code, re.MULTILINE))
    assert {symbol.name for symbol in read_symbols()} <= functions.keys()
    for name, text in functions.items():
        movable = 0
        for line in text.splitlines():
            _, encoding, instruction, *_ = [*line.split("\t"), "", ""]
            if movable >= JUMP_BYTES or not MOVABLE.match(instruction):
                break
            movable += len(encoding.split())
        assert movable >= JUMP_BYTES, f"{name}:\n{text}"
