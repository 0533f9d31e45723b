"""Test that quantities are read exactly as Kubernetes writes them, and that other texts are refused."""

from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kubernetes.utils.quantity import parse_quantity

from sharepod.kube import quantity

SUFFIXES = st.sampled_from(
    ["", "n", "u", "m", "k", "M", "G", "T", "P", "E", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei", "e3", "E-2"]
)


@pytest.mark.parametrize(
    ("count", "text", "number"),
    [
        ("milli", "1.5", 1500), ("milli", "1n", 1), ("milli", "2k", 2_000_000), ("milli", "1e3", 1_000_000),
        ("milli", "9E", 2**31 - 1), ("milli", "-1", 0),
        ("mib", "1Gi", 1024), ("mib", "1", 1), ("mib", "1048577", 2), ("mib", "1500m", 1), ("mib", "5Ei", 2**31 - 1),
        ("whole", "1k", 1000), ("whole", "1500m", 0), ("whole", "2000m", 2), ("whole", "9E", 2**31 - 1),
    ],
)  # fmt: skip
def test_processors_and_memory_are_rounded_up_and_units_are_whole(count: str, text: str, number: int) -> None:
    assert getattr(quantity, count)(text) == number


def test_a_quantity_is_exact_where_the_library_rounds() -> None:
    text = "12345678901234567890.12345678901234567890"
    assert quantity.exact("12345678901234567890.5Ki") == Fraction(24691357802469135781, 2) * 1024
    assert quantity.exact(text) == Fraction(parse_quantity(text))
    assert quantity.exact(text + "Ki") != Fraction(parse_quantity(text + "Ki"))


@settings(deadline=None)
@given(st.integers(-99_999, 99_999), st.integers(0, 999), SUFFIXES)
def test_it_is_what_the_library_reads_of_what_people_write(whole: int, part: int, suffix: str) -> None:
    text = f"{whole}.{part:03}{suffix}"
    assert quantity.exact(text) == Fraction(parse_quantity(text))


@pytest.mark.parametrize(
    "text",
    ["1" + "0" * 70, "1e999999", "NaN", "Infinity", " 1", "1_000", "١", "1Ki1", "0x1", "1e3Ki", "--1", ".", "+",
     "9" * 21, "1\n"],
)  # fmt: skip
def test_a_text_that_is_none_is_none(text: str) -> None:
    assert quantity.exact(text) is None
    assert quantity.milli(text) == quantity.mib(text) == quantity.whole(text) == 0


@settings(deadline=None)
@given(st.text(max_size=12))
def test_no_text_makes_the_reader_fail(text: str) -> None:
    quantity.exact(text)
    assert 0 <= quantity.milli(text) < 2**31
    assert 0 <= quantity.mib(text) < 2**31


def test_a_strangers_long_text_is_not_kept() -> None:
    before = quantity._scaled.cache_info().currsize
    for length in range(65, 165):
        text = "1" + "0" * length
        assert (quantity.milli(text), quantity.mib(text)) == (0, 0)
    assert quantity._scaled.cache_info().currsize == before
