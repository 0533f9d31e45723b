"""Formats the log of a process: one event a line on stderr, as text (`key=value`) or JSON.

A call such as log.info gives the values of an event in `extra`.
"""

from __future__ import annotations

import json
import logging
from datetime import UTC, datetime
from typing import Final

_STANDARD: Final = frozenset(logging.makeLogRecord({}).__dict__) | {"message", "asctime", "taskName"}
"""The attributes that any record may have: all others came in `extra`."""


def _fields(record: logging.LogRecord) -> dict[str, object]:
    """Return the values that came in `extra`."""
    return {key: value for key, value in record.__dict__.items() if key not in _STANDARD}


def _time(record: logging.LogRecord) -> str:
    """Return the event's time in UTC, to the millisecond."""
    return datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")


def _word(value: object) -> str:
    """Return a value as text; as a JSON string if it is empty, has a space, a quote or `=`, or cannot be printed."""
    text = str(value)
    plain = bool(text) and text.isprintable() and not any(mark in text for mark in ' "=')
    return text if plain else json.dumps(text, ensure_ascii=False)


class TextFormatter(logging.Formatter):
    """`time LEVEL event key=value …`."""

    def format(self, record: logging.LogRecord) -> str:
        """Return one line. An exception's trace follows on lines of its own."""
        pairs = [f"{key}={_word(value)}" for key, value in _fields(record).items()]
        line = " ".join([_time(record), f"{record.levelname:<7}", record.getMessage(), *pairs])
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line


class JsonFormatter(logging.Formatter):
    """One JSON object a line: time, level, event, logger and the event's own keys."""

    def format(self, record: logging.LogRecord) -> str:
        """Return one line of JSON."""
        fields: dict[str, object] = {
            "time": _time(record),
            "level": record.levelname.lower(),
            "event": record.getMessage(),
            "logger": record.name,
            **_fields(record),
        }
        if record.exc_info:
            fields["exception"] = self.formatException(record.exc_info)
        return json.dumps(fields, ensure_ascii=False, default=str)


def set_up(log_format: str, log_level: str) -> None:
    """Send the log of `sharepod` to stderr in the given format ("text" or "json") from the given level on.

    A second call replaces the handler of the first.
    """
    handler = logging.StreamHandler()
    handler.setFormatter(JsonFormatter() if log_format == "json" else TextFormatter())
    logger = logging.getLogger("sharepod")
    logger.handlers[:] = [handler]
    logger.setLevel(log_level.upper())
    logger.propagate = False
