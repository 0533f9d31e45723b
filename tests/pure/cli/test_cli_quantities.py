"""Test how the command reads and prints quantities: sizes, times, percentages and a share's terms."""

import pytest

from sharepod.cli.errors import EXIT_USAGE, UsageError
from sharepod.cli.render.quantities import (
    format_bytes,
    format_duration,
    format_percent,
    parse_memory,
    parse_percent,
    parse_terms,
)


@pytest.mark.parametrize(("text", "millipercent"), [("30", 30_000), ("12.5", 12_500), ("100%", 100_000), ("1 %", 1000)])
def test_percentages_are_read_in_thousandths(text: str, millipercent: int) -> None:
    assert parse_percent(text, "--gpu") == millipercent


@pytest.mark.parametrize(
    "text", ["0", "101", "-5", "0.9", "nan", "inf", "", "ten", "30,5", "1e3", "33.33333", "1." + 42 * "0" + "1"]
)
def test_what_is_no_percentage_from_1_to_100_is_refused_with_the_flag_and_the_value(text: str) -> None:
    with pytest.raises(UsageError, match="--gpu") as refused:
        parse_percent(text, "--gpu")
    assert refused.value.exit_code == EXIT_USAGE
    assert ": " in str(refused.value)


def test_a_limit_below_the_request_is_refused_with_both_values_and_the_cure() -> None:
    with pytest.raises(UsageError, match=r"--limit 40 % is below --gpu 60 %: raise the limit or lower the request"):
        parse_terms("60", "40")
    assert parse_terms("60", "60") == (60_000, 60_000)
    assert parse_terms("0", None) == (0, None), "what the others leave"


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("10GiB", 10 * 2**30),
        ("10Gi", 10 * 2**30),
        ("1.5gib", 3 * 2**29),
        ("512MB", 512_000_000),
        ("1k", 1000),
        ("7", 7),
    ],
)
def test_sizes_are_read_as_kubernetes_does(text: str, size: int) -> None:
    assert parse_memory(text) == size


@pytest.mark.parametrize("text", ["", "GiB", "10 apples", "-1GiB", "0", "0.1", "10EiB", "999999999TiB", "1i"])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="--memory"):
        parse_memory(text)


def test_quantities_are_written_for_people() -> None:
    assert [format_percent(value) for value in (0, 1000, 12_500, 30_000, 100_000)] == [
        "0 %", "1 %", "12.5 %", "30 %", "100 %",
    ]  # fmt: skip
    assert [format_bytes(size) for size in (0, 999, 2**20, 10 * 2**30, 141 * 2**30, 2**50)] == [
        "0 B", "999 B", "1 MiB", "10 GiB", "141 GiB", "1024 TiB",
    ]  # fmt: skip
    assert [format_duration(ns) for ns in (0, 500, 1500, 250_000_000, 12_340_000_000, 250_000_000_000)] == [
        "0 ns", "500 ns", "1.5 µs", "250 ms", "12.3 s", "4 min 10 s",
    ]  # fmt: skip
