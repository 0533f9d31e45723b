"""Whose token it is: what is asked of the API server, what is believed, and for how long."""

from __future__ import annotations

import asyncio
import base64
from dataclasses import dataclass, field
from typing import Any

import pytest

from sharepod.scheduler.usage_identity import (
    AGENT_USER,
    AT_ONCE,
    AUDIENCE,
    REMEMBER_REFUSAL_S,
    REMEMBER_S,
    TOKEN_MAX,
    Identities,
    NotAnAgent,
    Unanswered,
)

NODE_KEY = "authentication.kubernetes.io/node-name"


class Away(Exception):
    """The double's error when nobody answers."""


@dataclass(frozen=True)
class Answer:
    status: int
    body: dict[str, Any]


def reviewed(
    extra: dict[str, list[str]], *, user: str = AGENT_USER, audiences: tuple[str, ...] = (AUDIENCE,)
) -> Answer:
    status = {"authenticated": True, "audiences": list(audiences), "user": {"username": user, "extra": extra}}
    return Answer(201, {"kind": "TokenReview", "status": status})


@dataclass
class ApiServer:
    """Answers reviews with `review`."""

    review: Answer = field(default_factory=lambda: reviewed({NODE_KEY: ["n1"]}))
    away: str = ""
    asked: list[tuple[str, str, Any]] = field(default_factory=list)
    at_once: int = 0
    most_at_once: int = 0

    async def call(self, method: str, path: str, *, body: Any = None, timeout_s: float) -> Answer:
        assert 0 < timeout_s <= 10
        self.asked.append((method, path, body))
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        await asyncio.sleep(0.001)
        self.at_once -= 1
        if self.away:
            raise Away(self.away)
        return self.review


class Clock:
    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


def node_of(api: ApiServer, token: str = "a.b.c") -> str:  # noqa: S107
    return asyncio.run(Identities(api, Away, Clock()).node_of(token))


def test_the_review_is_for_our_audience_and_names_the_node() -> None:
    api = ApiServer()
    assert node_of(api) == "n1"
    [(method, path, body)] = api.asked
    assert (method, path) == ("POST", "/apis/authentication.k8s.io/v1/tokenreviews")
    assert body["spec"] == {"token": "a.b.c", "audiences": ["sharepod-scheduler"]}
    assert (body["apiVersion"], body["kind"]) == ("authentication.k8s.io/v1", "TokenReview")


@pytest.mark.parametrize(
    ("review", "text"),
    [
        (
            Answer(201, {"status": {"authenticated": False, "error": "expired"}}),
            "the API server does not know the token",
        ),
        (Answer(201, {"status": {}}), "does not know the token"),
        (Answer(201, {}), "does not know the token"),
        (Answer(201, {"status": {"authenticated": "true"}}), "does not know the token"),
        (reviewed({NODE_KEY: ["n1"]}, audiences=("https://kubernetes.default.svc",)), "the token is not for us"),
        (reviewed({NODE_KEY: ["n1"]}, audiences=()), "the token is not for us"),
        (
            reviewed({NODE_KEY: ["n1"]}, user="system:serviceaccount:default:sharepod-node"),
            "only system:serviceaccount:",
        ),
        (reviewed({NODE_KEY: ["n1"]}, user="system:node:n1"), "the token is of 'system:node:n1'"),
        (reviewed({}), "bound to no pod"),
        (reviewed({NODE_KEY: ["n1", "n2"]}), "bound to no pod"),
    ],
)
def test_a_token_of_anybody_else_is_refused(review: Answer, text: str) -> None:
    with pytest.raises(NotAnAgent, match=text):
        node_of(ApiServer(review))


@pytest.mark.parametrize("token", ["", "two words", "line\nbreak", "ü", "x" * (TOKEN_MAX + 1)])
def test_what_is_no_token_is_not_even_asked_about(token: str) -> None:
    api = ApiServer()
    with pytest.raises(NotAnAgent, match="no token"):
        node_of(api, token)
    assert not api.asked


def test_an_api_server_that_is_away_is_no_reason_to_believe_or_to_remember() -> None:
    async def check() -> None:
        api = ApiServer(away="connection refused")
        identities = Identities(api, Away, Clock())
        with pytest.raises(Unanswered, match=r"cannot be checked now \(connection refused\): try again"):
            await identities.node_of("a.b.c")
        api.away, api.review = "", Answer(422, {})
        with pytest.raises(Unanswered, match="the API server says 422"):
            await identities.node_of("a.b.c")
        api.review = reviewed({NODE_KEY: ["n1"]})
        assert await identities.node_of("a.b.c") == "n1"

    asyncio.run(check())


def test_an_answer_is_remembered_for_minutes_and_a_refusal_for_seconds() -> None:
    async def check() -> None:
        api, clock = ApiServer(), Clock()
        identities = Identities(api, Away, clock)
        assert [await identities.node_of("a.b.c") for _ in range(3)] == ["n1"] * 3
        assert len(api.asked) == 1
        api.review = Answer(201, {"status": {"authenticated": False}})
        clock.now_s += REMEMBER_S - 1
        assert await identities.node_of("a.b.c") == "n1"
        clock.now_s += 1  # revoked meanwhile
        for _ in range(3):
            with pytest.raises(NotAnAgent):
                await identities.node_of("a.b.c")
        assert len(api.asked) == 2
        api.review = reviewed({NODE_KEY: ["n1"]})
        clock.now_s += REMEMBER_REFUSAL_S
        assert await identities.node_of("a.b.c") == "n1"
        assert await identities.node_of("d.e.f") == "n1"
        assert len(api.asked) == 4

    asyncio.run(check())


def test_tokens_are_not_kept() -> None:
    async def check() -> None:
        identities = Identities(ApiServer(), Away, Clock())
        secret = base64.b64encode(b"a token that nobody else may have").decode()
        await identities.node_of(secret)
        assert identities._known
        assert secret not in repr(identities._known)

    asyncio.run(check())


def test_a_cluster_that_connects_at_once_does_not_flood_the_api_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sharepod.scheduler.usage_identity.REMEMBER_MAX", 50)

    async def check() -> None:
        api = ApiServer()
        identities = Identities(api, Away, Clock())
        nodes = await asyncio.gather(*(identities.node_of(f"token-{number}") for number in range(200)))
        assert set(nodes) == {"n1"}
        assert api.most_at_once == AT_ONCE
        assert len(identities._known) == 50

    asyncio.run(check())
