"""Test that an event is one line of the log, whatever its values hold."""

import io
import json
import logging

from sharepod.process import log


def record(formatter: logging.Formatter) -> str:
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(formatter)
    logger = logging.Logger("sharepod.agent")  # noqa: LOG001 - one that no other test sees
    logger.addHandler(handler)
    logger.warning("turn reclaimed", extra={"share": "abc", "cause": 'a "b"\nc', "pids": [1]})
    return stream.getvalue()


def test_an_event_is_one_line_of_json_or_of_text_with_its_values_which_cannot_break_it() -> None:
    event = json.loads(record(log.JsonFormatter()))
    assert event.pop("time").endswith("+00:00")
    assert event == {
        "level": "warning", "event": "turn reclaimed", "logger": "sharepod.agent",
        "share": "abc", "cause": 'a "b"\nc', "pids": [1],
    }  # fmt: skip
    line = record(log.TextFormatter())
    assert line.count("\n") == 1
    assert 'WARNING turn reclaimed share=abc cause="a \\"b\\"\\nc" pids=[1]' in line
