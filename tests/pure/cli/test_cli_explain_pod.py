"""Test `sharepod explain pod/NAME` and `sharepod queue` with a scheduler that answers from memory."""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from cli_fixtures import Sharepod

from sharepod.cli.errors import EXIT_USAGE

EXPLANATION = {
    "pod": "team/train-0", "state": "waiting", "policy": "worth", "text": "its shares fit on no node", "held": [],
    "there": [], "left": None, "incomplete": "", "fitting": [], "fitting_nodes": 0,
    "refused": [{"reason": "no device with 60 percent left", "nodes": 3, "examples": []}],
}  # fmt: skip
"""A short explanation. The scheduler's own tests check what is shown of a real one."""


class Scheduler(ThreadingHTTPServer):
    """A scheduler that answers each request with `status` and `body`, and remembers the paths."""

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


DEVICE = {
    "index": 0, "closed": "", "left_percent": 40, "left_mib": 2048, "used_percent": 0, "waited_percent": 0,
    "latency_percent": 0,
}  # fmt: skip
TENANT = {"pod": "team/a", "container": "main", "share_class": "batch", "asked_percent": 30}


def node(name: str, *devices: dict[str, object]) -> dict[str, object]:
    return {"node": name, "devices": list(devices), "cpu_milli": 1500, "memory_mib": 4096}


FITTING = EXPLANATION | {
    "incomplete": "n9 is silent", "fitting_nodes": 3, "left": node("n0", DEVICE),
    "held": [{"container": "", "devices": [[1, "GPU-1"]]}],
    "there": [{"device": 0, "more": 2, "shares": [
        TENANT | {"used_percent": 12, "yields": "pause"}, TENANT | {"pod": "", "container": "", "used_percent": None},
    ]}],
    "fitting": [
        {"left": node("n1", DEVICE | {"used_percent": 7}), "devices": [[0, 1]], "behind": 0, "behind_milli": None,
         "behind_use": 0},
        {"left": node("n2", DEVICE), "devices": [[0], [1]], "behind": 4, "behind_milli": 200, "behind_use": 1},
    ],
    "refused": [{"reason": "no room", "nodes": 2, "examples": [node("n3", DEVICE | {"closed": "is unhealthy"})]}],
}  # fmt: skip


def test_everything_that_is_known_of_a_pods_places_is_told(sharepod: Sharepod, scheduler: Scheduler) -> None:
    scheduler.body = json.dumps(FITTING).encode()
    answer = sharepod("explain", "pod/train-0", "--scheduler", scheduler.url)
    assert (
        answer.out
        == """\
team/train-0: its shares fit on no node
Not everything is known yet: n9 is silent
  container (init): device 1 (GPU-1)
  device 0 40 % and 2 GiB left, beside it:
      team/a main: batch, asked for 30 %, paused to make room, used 12 % of the last minute
      a share of no pod: batch, asked for 30 %
      and 2 more
It would go to (policy worth):
   1  n1: device 0, 1, the best
      left: 0 40 % and 2 GiB (7 % used)
   2  n2: device 0; 1, costs 200 milli of a device more (+150 for the room it takes, +50 for what runs, is promised or \
not linked there)
      left: 0 40 % and 2 GiB
  and 1 more
2 nodes: no room
      n3: 0 is unhealthy; 1.5 processors and 4 GiB of memory
      and 1 more
"""
    )


QUEUE = {
    "decides": True, "trouble": "", "refusal": "",
    "waiting": [
        {"position": n, "job": f"team/j{n}", "queue": "team", "priority": 5, "pods": 4, "least": 2 if n > 1 else 4,
         "devices": 1.5, "waited_s": 90.0, "why": "no room"} for n in range(1, 53)
    ],
    "queues": [
        {"queue": "team", "weight": 2.0, "held_devices": 0.5, "cap_devices": 3.0, "share": 0.25, "waiting": 52},
        {"queue": "other", "weight": 1.0, "held_devices": 0.0, "cap_devices": None, "share": 0.0, "waiting": 0},
    ],
}  # fmt: skip


def test_the_queue_is_shown_in_its_order_with_what_queues_hold(sharepod: Sharepod, scheduler: Scheduler) -> None:
    scheduler.body = json.dumps(QUEUE).encode()
    answer = sharepod("queue", "--scheduler", scheduler.url)
    lines = [" ".join(line.split()) for line in answer.out.splitlines()]
    assert lines[0] == "JOB PRIORITY PODS DEVICES WAITED WHY"
    assert lines[2:4] == ["1 team/j1 5 4 1.5 1 min 30 s no room", "2 team/j2 5 2-4 1.5 1 min 30 s no room"]
    assert lines[-2:] == ["team 2 0.5 3 0.250 52", "other 1 0 - 0.000 0"]
    assert len(lines) == 57
    assert "and 2 more: --all shows them" in answer.err
    assert len(sharepod("queue", "--all", "--scheduler", scheduler.url).out.splitlines()) == 59
    assert "Nothing waits." in sharepod("queue", "-n", "other", "--scheduler", scheduler.url).out
    answer = sharepod("queue", "-n", "tean", "--scheduler", scheduler.url)
    assert "queue tean holds nothing and nothing of it waits: did you mean team?" in answer.err
    assert scheduler.asked == ["/queue"] * 4


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"decides": False}, "error: this replica does not decide, another one has the queue: ask each pod"),
        (
            {"decides": False, "trouble": "no API"},
            "error: this replica does not decide, as it cannot hold the lease (no",
        ),
        ({"refusal": "weight is -1"}, "the rules of queues stay as they were: weight is -1"),
    ],
)
def test_a_queue_that_is_not_decided_on_says_why(
    sharepod: Sharepod, scheduler: Scheduler, change: dict[str, object], says: str
) -> None:
    scheduler.body = json.dumps(QUEUE | change).encode()
    answer = sharepod("queue", "--scheduler", scheduler.url)
    assert says in " ".join(answer.err.split())
    assert answer.code == (0 if "refusal" in change else 1)


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


@pytest.mark.parametrize("command", ["explain pod/train-0 -n team", "queue"])
def test_where_nobody_listens_the_command_that_works_is_named(sharepod: Sharepod, command: str) -> None:
    answer = sharepod(*command.split(), "--scheduler", "http://127.0.0.1:1")
    assert answer.code == 1
    [line] = answer.err.splitlines()
    assert line.startswith("error: no scheduler answers at http://127.0.0.1:1 (")
    assert line.endswith(f"kubectl -n sharepod exec deploy/sharepod-scheduler -- sharepod {command}")


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
