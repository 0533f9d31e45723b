"""The kinds of values that settings have: how a value is read from a flag, a variable or YAML, and how it is shown.

A kind that only one process needs is defined beside the settings of that process.
"""

from __future__ import annotations

import ipaddress
import re
from pathlib import Path
from typing import Final

from sharepod.process.setting import Kind

_ADDRESS: Final = re.compile(r"([A-Za-z0-9]([A-Za-z0-9.-]{0,251}[A-Za-z0-9])?|\[[0-9a-fA-F:.]+\]):([0-9]{1,5})")
_PORT_MAX: Final = 65535
_TRUE: Final = ("1", "true", "yes", "on")
_FALSE: Final = ("0", "false", "no", "off", "")


def plain(value: object) -> str:
    """Return a value as text: YAML may have read it as a number. Raises ValueError for a boolean, a list or None."""
    if isinstance(value, (str, int, float)) and not isinstance(value, bool):
        return str(value)
    raise ValueError("give text")


def text(pattern: str = r".*", remedy: str = "give text", metavar: str = "NAME") -> Kind[str]:
    """Return the kind of text that matches `pattern` as a whole. `remedy` is the error for any other text."""

    def read(value: object) -> str:
        """Return the text. Raises ValueError."""
        found = plain(value)
        if not re.fullmatch(pattern, found):
            raise ValueError(remedy)
        return found

    return Kind(metavar, read)


def choice(*words: str) -> Kind[str]:
    """Return the kind of one word out of `words`, which are two or more."""

    def read(value: object) -> str:
        """Return the word. Raises ValueError."""
        # YAML 1.1 reads on and off as booleans.
        word = ("on" if value else "off") if isinstance(value, bool) else value
        if word not in words:
            raise ValueError(f"give {', '.join(words[:-1])} or {words[-1]}")
        return str(word)

    return Kind("WORD", read, bounds=f"One of {', '.join(words)}.")


def whole(least: int, most: int, what: str = "a whole number", metavar: str = "NUMBER") -> Kind[int]:
    """Return the kind of whole numbers from `least` (>= 0) to `most`. `what` is what the error asks for."""

    def read(value: object) -> int:
        """Return the number. Raises ValueError."""
        found = plain(value)
        if not re.fullmatch(r"[0-9]{1,9}", found) or not least <= int(found) <= most:
            raise ValueError(f"give {what} from {least} to {most}")
        return int(found)

    return Kind(metavar, read, bounds=f"From {least} to {most}.")


def percent(least: int, most: int) -> Kind[int]:
    """Return the kind of percentages from `least` to `most`."""
    return whole(least, most, "a percentage", "PERCENT")


def _read_flag(value: object) -> bool:
    """Return whether a word means true; an empty text means false. Raises ValueError for any other."""
    word = str(value).lower()
    if word not in _TRUE + _FALSE:
        raise ValueError("give true or false")
    return word in _TRUE


FLAG: Final[Kind[bool]] = Kind("", _read_flag, lambda value: "true" if value else "false")
"""True or false. Its flags are `--name` and `--no-name`."""


def _read_path(value: object) -> Path:
    """Return an absolute path. Raises ValueError."""
    found = Path(plain(value))
    if not found.is_absolute():
        raise ValueError("give an absolute path")
    return found


PATH: Final[Kind[Path]] = Kind("PATH", _read_path)
"""An absolute path."""


def _read_file(value: object) -> str:
    """Return an absolute path, or the empty text, as text. Raises ValueError for any other."""
    return str(_read_path(value)) if plain(value) else ""


FILE: Final[Kind[str]] = Kind("PATH", _read_file)
"""An absolute path; empty: no file."""


def _read_words(value: object) -> tuple[str, ...]:
    """Return the words of a list, or of a text with commas. Empty words are left out. Raises ValueError."""
    parts = value if isinstance(value, (list, tuple)) else plain(value).split(",")
    return tuple(word for word in (plain(part).strip() for part in parts) if word)


WORDS: Final[Kind[tuple[str, ...]]] = Kind("LIST", _read_words, ",".join)
"""Words separated by commas; in YAML a list."""


def address(remedy: str, *, off: str | None = None, least_port: int = 0) -> Kind[str]:
    """Return the kind of `HOST:PORT`. `remedy` is the error for any other text.

    `off` is the value for the word off and for an empty text; None: these are errors, too. A port below `least_port` is
    refused.
    """

    def read(value: object) -> str:
        """Return the address. Its host is a name, an IPv4 address or an IPv6 one in brackets. Raises ValueError."""
        if off is not None and (value is False or plain(value) in ("off", "")):  # YAML reads off as False
            return off
        found = plain(value)
        match = _ADDRESS.fullmatch(found)
        if not match or not least_port <= int(match[3]) <= _PORT_MAX:
            raise ValueError(remedy)
        return found

    return Kind("HOST:PORT", read)


def is_loopback(place: str) -> bool:
    """Tell whether a `HOST:PORT` can be reached only from this machine. The only name that counts is localhost."""
    host = place.rpartition(":")[0].strip("[]")
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


LOG_FORMAT: Final = choice("text", "json")
LOG_LEVEL: Final = choice("debug", "info", "warning", "error")
