"""symbols.def is the one table: what is exported and what CUDA says agree with it."""

import re

from hooklab import HOOK, read_nvml_symbols, read_symbols, run

from sharepod.hook import LIBRARY

SYMBOLS = read_symbols()
NVML_SYMBOLS = read_nvml_symbols()
EXPORTED = {"dlopen", "dlsym", *(symbol.name for symbol in SYMBOLS), *NVML_SYMBOLS}


def test_no_row_of_the_table_escapes_its_reader() -> None:
    rows = [line for line in (HOOK / "symbols.def").read_text().splitlines() if line.startswith("SP_SYMBOL(")]
    assert len(rows) == len(SYMBOLS) == len({symbol.name for symbol in SYMBOLS}) > 80
    rows = [line for line in (HOOK / "nvml.def").read_text().splitlines() if line.startswith("SP_NVML(")]
    assert len(rows) == len(NVML_SYMBOLS) == len({*NVML_SYMBOLS}) > 10


def test_the_export_map_names_the_table_and_the_loader_calls_and_nothing_else() -> None:
    text = (HOOK / "exports.map").read_text()
    exported = re.findall(r"^    (\w+);$", text, re.MULTILINE)
    assert sorted(exported) == sorted(EXPORTED)
    assert re.search(r"local:\s+\*;", text)


def test_the_library_defines_exactly_what_the_export_map_names() -> None:
    done = run(["nm", "--dynamic", "--defined-only", LIBRARY])
    defined = {line.split()[-1] for line in done.stdout.splitlines()}
    assert defined == EXPORTED


def test_per_thread_rows_are_those_that_the_driver_names_so() -> None:
    for symbol in SYMBOLS:
        assert symbol.per_thread == symbol.name.endswith(("_ptsz", "_ptds")), symbol


def test_every_kind_of_row_is_in_use_and_no_other() -> None:
    kinds = {"LOOKUP", "LAUNCH", "COPY", "SYNC", "COUNT", "LIFECYCLE", "CHANGE", "MEMORY", "PASS"}
    assert {symbol.action for symbol in SYMBOLS} == kinds
