"""Reads durations as users write them in annotations and rules: "90s", "10m", "2h", "7d". Pure."""

from __future__ import annotations

import re
from typing import Final

_DURATION: Final = re.compile(r"([1-9][0-9]{0,8})([smhd])")
_SECONDS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86400}


def seconds(text: str) -> int | None:
    """Return a duration in seconds; None: the text is no duration."""
    match = _DURATION.fullmatch(text)
    return int(match[1]) * _SECONDS[match[2]] if match else None
