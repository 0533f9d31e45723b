"""Test that the hook's own reader of loaded libraries finds what dlsym finds, and nothing else."""

import ctypes
import re
from pathlib import Path

import pytest
from hooklab import C, compile_c, load_c, run

NAMES = [f"name_{number}" for number in range(200)]
SOURCE = "\n".join(
    [
        "extern int puts(const char *);",
        "int variable = 7, other[4];",
        "int *pointers[3] = {&variable, other, &other[2]};",
        *(f"int {name}(void) {{ return {number}; }}" for number, name in enumerate(NAMES)),
        'int calls(void) { return puts(""); }',
    ]
)


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    library = load_c(tmp_path_factory.mktemp("objects") / "objects.so", C / "objects.c")
    library.lab_find.restype = ctypes.c_void_p
    library.lab_soname.restype = ctypes.c_char_p
    library.lab_relocations.restype = ctypes.c_size_t
    return library


def build(directory: Path, text: str, *flags: str) -> tuple[Path, ctypes.CDLL]:
    """Compile a library; return its file and the library."""
    source = directory / "source.c"
    source.write_text(text)
    path = compile_c(directory / "built.so", "-shared", "-fPIC", *flags, source)
    return path, ctypes.CDLL(str(path))


@pytest.mark.parametrize("style", ["gnu", "sysv", "both"])
def test_every_name_is_found_by_either_table_and_no_other(lab: ctypes.CDLL, tmp_path: Path, style: str) -> None:
    _, library = build(tmp_path, SOURCE, f"-Wl,--hash-style={style}", "-Wl,-soname,libnamed.so.3")
    handle = ctypes.c_void_p(library._handle)

    def found(name: str, *, variable: bool = False) -> int | None:
        address: int | None = lab.lab_find(handle, name.encode(), variable)
        return address

    for name in (*NAMES, "calls"):
        assert found(name) == ctypes.cast(library[name], ctypes.c_void_p).value
    for name in ("variable", "other", "pointers"):
        assert found(name, variable=True) == ctypes.addressof(ctypes.c_int.in_dll(library, name))
        assert found(name) is None
    assert found("calls", variable=True) is None
    for name in ("puts", "name_", "name_200", "name_20x", "x", ""):  # the first is needed, and not defined here
        assert found(name) is None
        assert found(name, variable=True) is None
    assert lab.lab_soname(handle) == b"libnamed.so.3"


@pytest.mark.parametrize("style", ["gnu", "sysv"])
def test_a_library_with_one_name_has_it(lab: ctypes.CDLL, tmp_path: Path, style: str) -> None:
    _, library = build(tmp_path, "int only(void) { return 1; }", f"-Wl,--hash-style={style}", "-nostdlib")
    handle = ctypes.c_void_p(library._handle)
    assert lab.lab_find(handle, b"only", 0) == ctypes.cast(library.only, ctypes.c_void_p).value
    assert lab.lab_find(handle, b"another", 0) is None
    assert lab.lab_soname(handle) == b""


def test_relocations_are_counted_as_the_linker_has_written_them(lab: ctypes.CDLL, tmp_path: Path) -> None:
    path, library = build(tmp_path, SOURCE + "\nstatic int hidden; int *to_hidden = &hidden;")
    told = dict(re.findall(r"\((RELASZ|RELACOUNT)\)\s+(\d+)", run(["readelf", "-d", path]).stdout))
    handle = ctypes.c_void_p(library._handle)
    assert lab.lab_relocations(handle, 0) == int(told["RELASZ"]) // 24 > 3
    assert lab.lab_relocations(handle, 1) == int(told["RELACOUNT"]) > 0


def test_a_section_without_symbols_is_no_object(lab: ctypes.CDLL) -> None:
    assert lab.lab_reads_nothing() == 0
