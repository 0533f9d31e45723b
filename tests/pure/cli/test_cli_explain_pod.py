"""`sharepod explain pod/NAME`, with a scheduler that answers from memory."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING

import pytest

from sharepod.cli.errors import EXIT_USAGE

if TYPE_CHECKING:
    from cli_fixtures import Sharepod


EXPLANATION = {
    "pod": "team/train-0", "state": "waiting", "policy": "worth", "text": "its shares fit on no node", "held": [],
    "there": [], "left": None, "incomplete": "", "fitting": [], "fitting_nodes": 0,
    "refused": [{"reason": "no device with 60 percent left", "nodes": 3, "examples": []}],
}  # fmt: skip
"""What of an explanation is shown, the scheduler's own tests have: they show what it really says."""


class Scheduler(ThreadingHTTPServer):
    """Answers each request with `status` and `body`; remembers the paths."""

    status, body = 200, json.dumps(EXPLANATION).encode()

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.asked: list[str] = []
        self.url = f"http://127.0.0.1:{self.server_address[1]}"


class Handler(BaseHTTPRequestHandler):
    server: Scheduler

    def do_GET(self) -> None:
        self.server.asked.append(self.path)
        self.send_response(self.server.status)
        self.end_headers()
        self.wfile.write(self.server.body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def scheduler() -> Iterator[Scheduler]:
    with Scheduler() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def test_a_pod_is_asked_for_by_namespace_and_name(sharepod: Sharepod, scheduler: Scheduler) -> None:
    answer = sharepod("explain", "pod/train-0", "-n", "team", "--scheduler", scheduler.url + "/")
    assert (answer.code, answer.err) == (0, "")
    assert scheduler.asked == ["/explain/team/train-0"]
    assert answer.out.splitlines() == [
        "team/train-0: its shares fit on no node",
        "3 nodes: no device with 60 percent left",
        "      and 3 more",
    ]
    answer = sharepod("explain", "pod/train-0", "-o", "json", "--scheduler", scheduler.url)
    assert json.loads(answer.out) == EXPLANATION, "machines get all of it"


def test_what_the_scheduler_refuses_is_its_one_line(sharepod: Sharepod, scheduler: Scheduler) -> None:
    scheduler.status, scheduler.body = 404, b"pod default/trein is not known: did you mean train?\n"
    answer = sharepod("explain", "pod/trein", "--scheduler", scheduler.url)
    assert (answer.code, answer.out) == (1, "")
    assert answer.err == "error: pod default/trein is not known: did you mean train?\n"


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (200, b"<html>"), (200, b"[]"), (200, b'{"pod": "a", "text": "b"}'), (404, b"404: Not Found"), (404, b""),
        (500, b"500 Internal Server Error"),
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
