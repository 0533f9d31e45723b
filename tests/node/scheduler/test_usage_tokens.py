"""The scheduler's TokenReviews through the client of the API server that it shares with the device plugin."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from rig.cluster.apiserver import ApiServer, Body, with_server
from sharepod.kube.client import ApiUnavailable, Client
from sharepod.scheduler.usage_identity import AGENT_USER, AUDIENCE, Identities, NotAnAgent, Unanswered

NODE_KEY = "authentication.kubernetes.io/node-name"


def reviewed(extra: dict[str, list[str]]) -> Body:
    """Return what the API server says of a token that is good for us."""
    return {"authenticated": True, "audiences": [AUDIENCE], "user": {"username": AGENT_USER, "extra": extra}}


def test_a_token_is_reviewed_once() -> None:
    async def test(server: ApiServer, account: Path) -> None:
        server.registry.reviews = {"new.one": reviewed({NODE_KEY: ["n1"]}), "of.no.pod": reviewed({})}
        async with Client(server.access(account), "sharepod-test") as client:
            identities = Identities(client, ApiUnavailable, time.monotonic)
            assert [await identities.node_of("new.one") for _ in range(2)] == ["n1", "n1"]
            with pytest.raises(NotAnAgent, match="bound to no pod"):
                await identities.node_of("of.no.pod")
            with pytest.raises(NotAnAgent, match="does not know the token"):
                await identities.node_of("nobodys")
            assert server.requests["post tokenreviews"] == 3

    with_server(test)


@pytest.mark.parametrize("code", [401, 403, 500, 503])
def test_a_server_that_refuses_to_review_says_nothing_about_the_token(code: int) -> None:
    async def test(server: ApiServer, account: Path) -> None:
        server.registry.reviews = {"new.one": reviewed({NODE_KEY: ["n1"]})}
        async with Client(server.access(account), "sharepod-test") as client:
            identities = Identities(client, ApiUnavailable, time.monotonic)
            server.refuse(code, 2 if code == 401 else 1)  # once with our own token read again
            with pytest.raises(Unanswered, match=rf"cannot be checked now \(API server https://127.0.0.1:\d+: {code}"):
                await identities.node_of("new.one")
            assert await identities.node_of("new.one") == "n1"
            await server.stop()
            assert await identities.node_of("new.one") == "n1"  # it is remembered
            with pytest.raises(Unanswered, match="see that it runs and is reached from here"):
                await identities.node_of("another.one")

    with_server(test)
