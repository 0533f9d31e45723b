"""Test which node a token belongs to: what is asked of the API server, what is believed, and for how long."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from rig.cluster.apiserver import ApiServer, Body
from sharepod.kube.client import ApiUnavailable, Client
from sharepod.scheduler.feed.usage_identity import (
    AGENT_USER,
    AUDIENCE,
    REMEMBER_REFUSAL_S,
    REMEMBER_S,
    TOKEN_MAX,
    Identities,
    NotAnAgent,
    Unanswered,
)

NODE_KEY = "authentication.kubernetes.io/node-name"
REVIEWS = "post tokenreviews"


def reviewed(*nodes: str, user: str = AGENT_USER, audiences: tuple[str, ...] = (AUDIENCE,)) -> Body:
    """Return the API server's review of a token; the token is valid if it has exactly one node."""
    extra = {NODE_KEY: list(nodes)} if nodes else {}
    return {"authenticated": True, "audiences": list(audiences), "user": {"username": user, "extra": extra}}


@contextlib.asynccontextmanager
async def asking(account: Path) -> AsyncIterator[tuple[ApiServer, Identities, SimpleNamespace]]:
    """Run an API server that knows "new.one" as the token of n1's agent; yield it, the reviewer and its clock."""
    clock = SimpleNamespace(now_s=1000.0)
    async with ApiServer() as server:
        server.registry.reviews = {"new.one": reviewed("n1")}
        async with Client(server.access(account), "sharepod-test") as client:
            yield server, Identities(client, ApiUnavailable, lambda: clock.now_s), clock


@pytest.mark.parametrize(
    ("review", "text"),
    [
        ({"authenticated": False, "error": "expired"}, "the API server does not know the token"),
        ({}, "does not know the token"),
        ({"authenticated": "true"}, "does not know the token"),
        (reviewed("n1", audiences=("https://kubernetes.default.svc",)), "the token is not for us"),
        (reviewed("n1", audiences=()), "the token is not for us"),
        (reviewed("n1", user="system:serviceaccount:default:sharepod-node"), "only system:serviceaccount:"),
        (reviewed("n1", user="system:node:n1"), "the token is of 'system:node:n1'"),
        (reviewed(), "bound to no pod"),
        (reviewed("n1", "n2"), "bound to no pod"),
    ],
)
async def test_a_token_of_anybody_else_is_refused(tmp_path: Path, review: Body, text: str) -> None:
    async with asking(tmp_path) as (server, identities, _):
        server.registry.reviews["another.one"] = review
        with pytest.raises(NotAnAgent, match=text):
            await identities.node_of("another.one")


async def test_what_is_no_token_is_not_even_asked_about(tmp_path: Path) -> None:
    async with asking(tmp_path) as (server, identities, _):
        for token in ("", "two words", "line\nbreak", "ü", "x" * (TOKEN_MAX + 1)):
            with pytest.raises(NotAnAgent, match="no token"):
                await identities.node_of(token)
        assert not server.requests[REVIEWS]


@pytest.mark.parametrize("code", [401, 403, 422, 503])
async def test_a_server_that_refuses_to_review_or_is_away_says_nothing_about_the_token(
    tmp_path: Path, code: int
) -> None:
    async with asking(tmp_path) as (server, identities, _):
        server.faults.refuse(code, 2 if code == 401 else 1)  # after a 401 our own token is read again for a second try
        with pytest.raises(Unanswered, match=rf"the token cannot be checked.*{code}"):
            await identities.node_of("new.one")
        assert await identities.node_of("new.one") == "n1"
        await server.stop()
        assert await identities.node_of("new.one") == "n1"  # the answer is remembered
        with pytest.raises(Unanswered, match=r"cannot be checked now .*see that it runs and is reached from here"):
            await identities.node_of("another.one")


async def test_an_answer_is_remembered_for_minutes_and_a_refusal_for_seconds_and_no_token_is_kept(
    tmp_path: Path,
) -> None:
    async with asking(tmp_path) as (server, identities, clock):
        assert [await identities.node_of("new.one") for _ in range(3)] == ["n1"] * 3
        assert server.requests[REVIEWS] == 1
        reviews, server.registry.reviews = server.registry.reviews, {}  # the token is revoked
        clock.now_s += REMEMBER_S - 1
        assert await identities.node_of("new.one") == "n1"
        clock.now_s += 1
        for _ in range(3):
            with pytest.raises(NotAnAgent):
                await identities.node_of("new.one")
        assert server.requests[REVIEWS] == 2
        server.registry.reviews = reviews
        clock.now_s += REMEMBER_REFUSAL_S
        assert await identities.node_of("new.one") == "n1"
        assert server.requests[REVIEWS] == 3
        assert "new.one" not in repr(vars(identities))


async def test_a_cluster_that_connects_at_once_does_not_flood_the_api_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sharepod.scheduler.feed.usage_identity.AT_ONCE", 4)
    monkeypatch.setattr("sharepod.scheduler.feed.usage_identity.REMEMBER_MAX", 12)
    async with asking(tmp_path) as (server, identities, _):
        tokens = [f"token-{number}" for number in range(24)]
        server.registry.reviews = dict.fromkeys(tokens, reviewed("n1"))
        server.faults.delay(2.0, REVIEWS)
        asked = asyncio.gather(*map(identities.node_of, tokens))
        await asyncio.sleep(1.0)
        assert server.requests[REVIEWS] <= 4
        server.faults.delay(0.0, REVIEWS)
        assert set(await asked) == {"n1"}
        for token, times in ((tokens[-1], 24), (tokens[0], 25)):  # the last token is remembered, the first is not
            await identities.node_of(token)
            assert server.requests[REVIEWS] == times
