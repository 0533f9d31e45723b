"""Reads and writes the quantities that users type: percentages, sizes, durations. Pure: text in, integers out."""

from __future__ import annotations

import re
from decimal import Decimal, InvalidOperation
from fractions import Fraction
from typing import Final

from sharepod.cli.errors import UsageError

MILLIPERCENT: Final = 1000
"""Percentages are integers of a thousandth of a percent: 30 % = 30000."""

_UNITS: Final[dict[str, int]] = {
    "": 1,
    "k": 10**3,
    "m": 10**6,
    "g": 10**9,
    "t": 10**12,
    "ki": 2**10,
    "mi": 2**20,
    "gi": 2**30,
    "ti": 2**40,
}
_SIZE: Final = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([kmgt]?i?)b?\s*", re.IGNORECASE)


def parse_percent(text: str, flag: str) -> int:
    """Return `text` ("30", "12.5", "30%") in thousandths of a percent.

    Raises UsageError outside 1–100, and for parts finer than 0.001 %.
    """
    try:
        percent = Decimal(text.strip().removesuffix("%").strip())
    except InvalidOperation:
        raise UsageError(f"{flag} {text!r} is not a percentage: give a number from 1 to 100") from None
    if not percent.is_finite() or not 1 <= percent <= 100:
        raise UsageError(f"{flag} {text} is outside 1–100 %: give a percentage of one device's time")
    # A Fraction is exact; a product of decimals would be rounded to 28 digits.
    scaled = Fraction(percent) * MILLIPERCENT
    if scaled.denominator != 1:
        raise UsageError(f"{flag} {text} is finer than 0.001 %: round it")
    return scaled.numerator


def parse_terms(gpu: str | None, limit: str | None) -> tuple[int | None, int | None]:
    """Return (request, limit) in thousandths of a percent; None: not given; a request may be 0.

    Raises UsageError for a percentage outside its range or a limit below the request.
    """
    request = None if gpu is None else 0 if gpu.strip() == "0" else parse_percent(gpu, "--gpu")
    most = None if limit is None else parse_percent(limit, "--limit")
    if request is not None and most is not None and most < request:
        raise UsageError(
            f"--limit {format_percent(most)} is below --gpu {format_percent(request)}: "
            "raise the limit or lower the request"
        )
    return request, most


def parse_memory(text: str, flag: str = "--memory") -> int:
    """Return `text` in bytes: "10GiB", "10Gi", "512MB", "4096". As in Kubernetes, Gi is 2^30 and G is 10^9.

    Raises UsageError when the text is no size, or zero.
    """
    match = _SIZE.fullmatch(text)
    unit = match.group(2).lower() if match else "?"
    if match is None or unit not in _UNITS:
        raise UsageError(f"{flag} {text!r} is not a size: write it like 10GiB, 512MiB or 4096")
    size = int(Decimal(match.group(1)) * _UNITS[unit])
    if not 0 < size < 2**63:
        raise UsageError(f"{flag} {text} is outside 1 byte–8 EiB: leave the flag out for no cap")
    return size


def format_percent(millipercent: int) -> str:
    """Write 30000 as "30 %" and 12500 as "12.5 %"."""
    return f"{(Decimal(millipercent) / MILLIPERCENT).normalize():f} %"


def format_bytes(size: int) -> str:
    """Write a size with three digits, in the smallest unit in which it is below 1000, but at most in TiB: "9.77 GiB".

    So 1000 bytes are "0.977 KiB".
    """
    value = float(size)
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if value < 1000 or unit == "TiB":
            break
        value /= 1024
    return f"{value:.0f} {unit}" if unit == "B" or value >= 100 else f"{value:.3g} {unit}"


def format_duration(duration_ns: int) -> str:
    """Write a duration with three digits, in the largest unit of which it has one: "500 µs", "12.3 s", "4 min 10 s"."""
    if duration_ns >= 60 * 10**9:
        minutes, seconds = divmod(round(duration_ns / 10**9), 60)
        return f"{minutes} min {seconds} s"
    for unit, scale in (("s", 10**9), ("ms", 10**6), ("µs", 10**3)):
        if duration_ns >= scale:
            value = duration_ns / scale
            return f"{value:.0f} {unit}" if value >= 100 else f"{value:.3g} {unit}"
    return f"{duration_ns} ns"
