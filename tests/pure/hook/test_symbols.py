"""Test that the library exports exactly the functions that driver.def and nvml.def list as wrapped."""

from hooklab import read_nvml_symbols, read_symbols, run

from sharepod.driver.coverage import ACTIONS
from sharepod.hook import LIBRARY


def test_the_library_defines_exactly_what_the_tables_say_is_wrapped_and_the_loader_calls() -> None:
    done = run(["nm", "--dynamic", "--defined-only", LIBRARY])
    defined = {line.split()[-1] for line in done.stdout.splitlines()}
    assert len(defined) > 230
    assert defined == {"dlopen", "dlsym", *(symbol.name for symbol in read_symbols()), *read_nvml_symbols()}


def test_every_kind_of_wrapper_is_in_use() -> None:
    assert {symbol.action for symbol in read_symbols()} == set(ACTIONS)
