"""Reads Kubernetes' quantities, "1500m" or "10Gi", exactly. Pure.

The library's `parse_quantity` is not used. It rounds to 28 digits. It takes "NaN", "1_000" and Arabic digits for
numbers, and also "1e999999", an integer that fills the memory. Here a number has at most 20 digits before its point and
as many after it.
"""

from __future__ import annotations

import re
from fractions import Fraction
from functools import lru_cache
from typing import Final

_TEXT: Final = re.compile(
    r"([+-]?)([0-9]{1,20}(?:\.[0-9]{0,20})?|\.[0-9]{1,20})([KMGTPE]i|[numkMGTPE]|[eE][+-]?[0-9]{1,2})?"
)
_BINARY: Final = {"Ki": 10, "Mi": 20, "Gi": 30, "Ti": 40, "Pi": 50, "Ei": 60}
"""The exponent of 2 for a suffix."""
_DECIMAL: Final = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
"""The exponent of 10 for a suffix."""
_MOST: Final = 2**31 - 1
"""More than any machine has; the largest number that placement uses."""
_LENGTH_MAX: Final = 64
"""Longer texts are no quantities, and are not cached: a tenant's pods must not fill the memory."""


def exact(text: str) -> Fraction | None:
    """Return the number that a quantity stands for; None: the text is no quantity."""
    match = _TEXT.fullmatch(text)
    if match is None:
        return None
    number, suffix = Fraction(match[1] + match[2].removesuffix(".")), match[3] or ""
    if suffix in _BINARY:
        return number * (1 << _BINARY[suffix])
    exponent = _DECIMAL[suffix] if suffix in _DECIMAL else int(suffix[1:])  # else it is "e3" or "E-3"
    return number * Fraction(10) ** exponent


def milli(text: str) -> int:
    """Return a quantity in thousandths, 0..2³¹-1: "1.5" is 1500. A text that is no quantity, or negative, is 0.

    It is rounded up, as kube-scheduler and kubelet round requests.
    """
    return _scaled(text, 1000, 1) if len(text) <= _LENGTH_MAX else 0


def mib(text: str) -> int:
    """Return a quantity of bytes in MiB, rounded up, 0..2³¹-1. A text that is no quantity, or negative, is 0."""
    return _scaled(text, 1, 2**20) if len(text) <= _LENGTH_MAX else 0


def whole(text: str) -> int:
    """Return a quantity that is a whole number, 0..2³¹-1. Any other text, and a negative quantity, is 0."""
    value = exact(text)
    return max(0, min(value.numerator, _MOST)) if value is not None and value.denominator == 1 else 0


@lru_cache(maxsize=4096)
def _scaled(text: str, factor: int, divisor: int) -> int:
    """Return a quantity times `factor` / `divisor`, rounded up, 0..2³¹-1; 0: it is negative, or no quantity."""
    value = (exact(text) or Fraction(0)) * factor / divisor
    return max(0, min(-(-value.numerator // value.denominator), _MOST))
