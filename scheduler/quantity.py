"""Kubernetes quantities of what is not ours: processors and memory, as whole thousandths and whole MiB. Pure.

Rounded up, as the scheduler and kubelet round what is asked for. What is no quantity is nothing: the API server lets
none pass.
"""

from __future__ import annotations

import re
from fractions import Fraction
from functools import lru_cache
from typing import Final

_TEXT: Final = re.compile(
    r"[+]?([0-9]{1,20}(?:\.[0-9]{0,20})?|\.[0-9]{1,20})([KMGTPE]i|[numkMGTPE]|[eE][+-]?[0-9]{1,2})?"
)
_BINARY: Final = {"Ki": 10, "Mi": 20, "Gi": 30, "Ti": 40, "Pi": 50, "Ei": 60}
_DECIMAL: Final = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_MOST: Final = 2**31 - 1
"""More than any machine has, and what placement counts with."""


@lru_cache(maxsize=4096)
def milli(text: str) -> int:
    """Return a quantity in thousandths, 0..2³¹−1: "1.5" is 1500."""
    return _bounded(_value(text) * 1000)


@lru_cache(maxsize=4096)
def mib(text: str) -> int:
    """Return a quantity of bytes in MiB, 0..2³¹−1."""
    return _bounded(_value(text) / 2**20)


def _bounded(value: Fraction) -> int:
    return min(-(-value.numerator // value.denominator), _MOST)


def _value(text: str) -> Fraction:
    match = _TEXT.fullmatch(text)
    if match is None:
        return Fraction(0)
    number, suffix = Fraction(match[1].removesuffix(".")), match[2] or ""
    if suffix in _BINARY:
        return number * (1 << _BINARY[suffix])
    exponent = _DECIMAL[suffix] if suffix in _DECIMAL else int(suffix[1:])
    return number * (Fraction(10**exponent) if exponent >= 0 else Fraction(1, 10**-exponent))


_DURATION: Final = re.compile(r"([1-9][0-9]{0,8})([smhd])")
_SECONDS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86400}


def seconds(text: str) -> int | None:
    """Return a duration in seconds, "90s", "10m", "2h" or "7d"; None: it is none."""
    match = _DURATION.fullmatch(text)
    return int(match[1]) * _SECONDS[match[2]] if match else None
