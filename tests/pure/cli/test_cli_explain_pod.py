"""`sharepod explain pod/NAME`, with a scheduler that answers from memory."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

import pytest

from sharepod.cli import console
from sharepod.cli.errors import EXIT_USAGE

if TYPE_CHECKING:
    from manifests import Sharepod


def device(index: int, **more: Any) -> dict[str, Any]:
    numbers = {"left_percent": 40, "left_mib": 32768, "memory_mib": 81920}
    measured = {"used_percent": 0, "waited_percent": 0, "latency_percent": 0, "closed": ""}
    return {"index": index, **numbers, **measured, **more}


def left(node: str) -> dict[str, Any]:
    devices = [device(index, used_percent=37, latency_percent=30) for index in range(8)]
    return {"node": node, "cpu_milli": 1500, "memory_mib": 2048, "devices": devices}


def explanation() -> dict[str, Any]:
    fit = {"behind": 0, "behind_milli": 0, "behind_use": 0, "devices": [[0], [1, 2]]}
    return {
        "pod": "team/train-0", "uid": "u", "state": "waiting", "node": "", "policy": "worth", "known_by": "",
        "text": "its shares fit on 2 of 3 nodes", "held": [], "there": [], "left": None, "incomplete": "",
        "fitting": [
            {"left": left("n1"), **fit},
            {"left": left("n2"), **fit, "behind": 12, "behind_milli": 240, "behind_use": -1},
        ],
        "fitting_nodes": 2,
        "refused": [{"reason": "no device with 60 percent left", "nodes": 1, "examples": [left("n3")]}],
    }  # fmt: skip


@dataclass
class Scheduler:
    """Answers each request with `status` and `body`; remembers the paths."""

    port: int = 0
    status: int = 200
    body: bytes = field(default_factory=lambda: json.dumps(explanation()).encode())
    asked: list[str] = field(default_factory=list)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"


@pytest.fixture
def scheduler() -> Iterator[Scheduler]:
    told = Scheduler()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            told.asked.append(self.path)
            self.send_response(told.status)
            self.end_headers()
            self.wfile.write(told.body)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        told.port = server.server_address[1]
        yield told
        server.shutdown()
        thread.join()


def test_a_pod_is_asked_for_by_namespace_and_name(sharepod: Sharepod, scheduler: Scheduler) -> None:
    answer = sharepod("explain", "pod/train-0", "-n", "team", "--scheduler", scheduler.url + "/")
    assert (answer.code, answer.err) == (0, "")
    assert scheduler.asked == ["/explain/team/train-0"]
    lines = answer.out.splitlines()
    assert lines[0] == "team/train-0: its shares fit on 2 of 3 nodes"
    assert "   1  n1: device 0; 1, 2, the best" in lines
    costs = "costs 240 milli of a device more (+260 for the room it takes, -20 for what runs, is promised or not linked"
    assert f"   2  n2: device 0; 1, 2, {costs}" in answer.out
    assert "1.5 processors and 2 GiB of memory" in " ".join(answer.out.split())


def test_it_is_read_at_80_columns(sharepod: Sharepod, scheduler: Scheduler, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(console, "PIPE_WIDTH", 80)
    console.console.cache_clear()
    try:
        answer = sharepod("explain", "pod/train-0", "--scheduler", scheduler.url)
    finally:
        console.console.cache_clear()
    assert max(map(len, answer.out.splitlines())) <= 80
    assert "7 40 % and 32 GiB (37 % used, 30 % latency)" in " ".join(answer.out.split()), "nothing is cut off"


def test_machines_get_all_of_it(sharepod: Sharepod, scheduler: Scheduler) -> None:
    answer = sharepod("explain", "pod/train-0", "-o", "json", "--scheduler", scheduler.url)
    assert json.loads(answer.out) == explanation()


def test_what_the_scheduler_refuses_is_its_one_line(sharepod: Sharepod, scheduler: Scheduler) -> None:
    scheduler.status, scheduler.body = 404, b"pod default/trein is not known: did you mean train?\n"
    answer = sharepod("explain", "pod/trein", "--scheduler", scheduler.url)
    assert (answer.code, answer.out) == (1, "")
    assert answer.err == "error: pod default/trein is not known: did you mean train?\n"


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (200, b"<html>"), (200, b"[]"), (200, b"{}"), (200, b'{"pod": "a", "text": "b"}'), (200, b"\xff\xfe"),
        (404, b"404: Not Found"), (404, b""), (500, b"500 Internal Server Error"), (403, b"Forbidden"),
    ],
)  # fmt: skip
def test_what_is_none_is_told_as_such(sharepod: Sharepod, scheduler: Scheduler, status: int, body: bytes) -> None:
    scheduler.status, scheduler.body = status, body
    answer = sharepod("explain", "pod/a", "--scheduler", scheduler.url)
    assert (answer.code, answer.out) == (1, "")
    assert answer.err == (
        f"error: what answers at {scheduler.url} is no SharePod scheduler of this version: "
        "give its address with --scheduler\n"
    )


def test_where_nobody_listens_the_command_that_works_is_named(sharepod: Sharepod, scheduler: Scheduler) -> None:
    answer = sharepod("explain", "pod/train-0", "-n", "team", "--scheduler", "http://127.0.0.1:1")
    assert answer.code == 1
    [line] = answer.err.splitlines()
    assert line.startswith("error: no scheduler answers at http://127.0.0.1:1 (")
    assert line.endswith("kubectl -n sharepod exec deploy/sharepod-scheduler -- sharepod explain pod/train-0 -n team")


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("pod/",), "pod/ '' is no name: give pod/NAME and -n NAMESPACE"),
        (("pod/Train_0",), "pod/ 'Train_0' is no name"),
        (("pod/a/b",), "pod/ 'a/b' is no name"),
        (("pod/a", "-n", "../x"), "-n '../x' is no name"),
        (("pod/a", "--scheduler", "ftp://x"), "--scheduler ftp://x is no address: give http://127.0.0.1:9467"),
        (("pod/a", "--scheduler", "localhost:9467"), "--scheduler localhost:9467 is no address"),
        (("pod/a", "--scheduler", "http://x:99999"), "--scheduler http://x:99999 is no address"),
        (("pod/a", "--scheduler", "http://[x"), "--scheduler http://[x is no address"),
        (("pod/a", "--namespaec", "x"), "No such option"),
    ],
)
def test_a_name_or_address_that_cannot_be_is_a_usage_error(
    sharepod: Sharepod, arguments: tuple[str, ...], text: str
) -> None:
    answer = sharepod("explain", *arguments)
    assert (answer.code, answer.out) == (EXIT_USAGE, "")
    [line] = answer.err.splitlines()
    assert line.startswith("error: ")
    assert text in line
