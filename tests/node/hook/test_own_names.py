"""Test that programs and libraries which define names of the driver's functions themselves work and are metered."""

import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest
from hooklab import STRICT, C, compile_c

from rig.arbiter import Arbiter
from rig.gpu import MakeSimgpu
from rig.until import until

SOURCE = C / "own_names.c"
SHARED = ("-shared", "-Wl,-z,relro,-z,now")


@dataclass(frozen=True)
class Build:
    """How a program is built: its libraries, each linked with those before it, and its own flags."""

    libraries: tuple[tuple[str, ...], ...]
    program: tuple[str, ...]
    opens: tuple[str, ...] | None = None
    """The program's arguments after the library's name if it opens the last library instead of linking with all."""


MAIN = ("-DMAIN",)
VARIABLES = ("-DVARIABLES", "-DWORK")
STUBS = ("-DSTUBS", "-DWORK")
BUILDS = {
    "variables of a library that is linked": Build(((*SHARED, *VARIABLES),), MAIN),
    "variables that a constructor fills": Build(((*SHARED, *VARIABLES, "-DEARLY", "-DFILLS"),), MAIN),
    "variables of a library that is opened": Build(((*SHARED, *VARIABLES),), MAIN, ()),
    "variables that a constructor fills while it is opened": Build(
        ((*SHARED, *VARIABLES, "-DEARLY", "-DFILLS"),), MAIN, ()
    ),
    "variables for everybody": Build(((*SHARED, *VARIABLES),), MAIN, ("global",)),
    "variables without a read-only table": Build((("-shared", "-Wl,-z,norelro", *VARIABLES),), MAIN, ()),
    "variables in a library of the old hash table": Build(((*SHARED, "-Wl,--hash-style=sysv", *VARIABLES),), MAIN, ()),
    "variables bound when the library was linked": Build(((*SHARED, "-Wl,-Bsymbolic", *VARIABLES),), MAIN, ()),
    "variables of another library": Build(((*SHARED, "-DVARIABLES"), (*SHARED, "-DWORK")), MAIN, ()),
    "variables of another library, linked": Build(((*SHARED, "-DVARIABLES"), (*SHARED, "-DWORK")), MAIN),
    "variables of a library that the program uses": Build(((*SHARED, "-DVARIABLES"),), (*MAIN, "-DWORK", "-fPIC")),
    "variables that the program has a copy of": Build(
        ((*SHARED, "-DVARIABLES"),), (*MAIN, "-DWORK", "-fno-pic", "-no-pie")
    ),
    "variables of the program": Build((), (*MAIN, *VARIABLES, "-rdynamic")),
    "stubs of a library that is linked": Build(((*SHARED, *STUBS),), MAIN),
    "stubs of a library that is opened": Build(((*SHARED, *STUBS),), MAIN, ()),
    "stubs that a constructor calls": Build(((*SHARED, *STUBS, "-DEARLY"),), MAIN, ()),
    "stubs that are called without a table of jumps": Build(((*SHARED, *STUBS, "-fno-plt"),), MAIN),
    "stubs that are bound late": Build((("-shared", "-Wl,-z,lazy", *STUBS),), MAIN, ()),
    "stubs of another library": Build(((*SHARED, "-DSTUBS"), (*SHARED, "-DCALLS", "-DWORK")), MAIN, ()),
    "stubs of the program": Build((), (*MAIN, *STUBS)),
}


def build(directory: Path, how: Build) -> list[str | Path]:
    """Build a program and its libraries; return its command."""
    made: list[Path] = []
    for number, flags in enumerate(how.libraries):
        path = directory / f"lib{number}.so"
        soname = f"-Wl,-soname,{path.name}"
        made.append(compile_c(path, *STRICT, soname, *flags, SOURCE, *made, f"-Wl,-rpath,{directory}", "-ldl"))
    linked = made if how.opens is None else []
    opens = () if how.opens is None else ("-DOPENS",)
    flags_last = (*how.program, *opens)  # these must come after STRICT, which has -fPIC
    program = compile_c(directory / "program", *STRICT, *flags_last, SOURCE, *linked, f"-Wl,-rpath,{directory}", "-ldl")
    return [program, *([] if how.opens is None else [made[-1], *how.opens])]


@pytest.mark.parametrize("name", BUILDS)
def test_a_name_of_its_own_is_its_own_and_the_work_is_metered(
    name: str, make_simgpu: MakeSimgpu, arbiter: Arbiter, tmp_path: Path
) -> None:
    gpu, share = make_simgpu(), arbiter.share(tmp_path / "share")
    how = BUILDS[name]
    command = build(tmp_path, how)
    runs = 1 + any("-DEARLY" in flags for flags in how.libraries)
    without, within = (
        subprocess.run(command, env=env, capture_output=True, text=True, timeout=30, check=False)
        for env in (gpu.env, gpu.env | share.env)
    )
    assert (without.returncode, without.stdout, without.stderr) == (0, "0\n" * runs, "")
    assert (within.returncode, within.stdout) == (0, without.stdout), within.stderr
    told = within.stderr.splitlines()
    copies = "-fno-pic" in how.program  # for such a program the loader itself warns that the sizes differ
    assert [line for line in told if not (copies and "different size" in line)] == []
    until(lambda: not share.usage().processes)
    assert share.usage().launches == 3 * runs
