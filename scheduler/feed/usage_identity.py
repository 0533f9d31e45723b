"""Finds the node of an agent's token: asks the API server with a TokenReview, and remembers the answer for minutes.

The review of a pod's token names the node on which the pod runs. Tokens are neither kept nor logged: answers are
remembered by the token's hash.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable

AUDIENCE: Final = "sharepod-scheduler"
AGENT_USER: Final = "system:serviceaccount:sharepod:sharepod-node"
REMEMBER_S: Final = 300.0
REMEMBER_REFUSAL_S: Final = 10.0
REMEMBER_MAX: Final = 32_768
"""The most answers that are remembered; the oldest are forgotten first."""
AT_ONCE: Final = 32
"""The most reviews at a time: a whole cluster that connects again must not flood the API server."""
REVIEW_S: Final = 5.0
TOKEN_MAX: Final = 8192
_PATH: Final = "/apis/authentication.k8s.io/v1/tokenreviews"
_NODE: Final = "authentication.kubernetes.io/node-name"
_TOKEN: Final = re.compile(r"[\x21-\x7e]+")

Object = dict[str, object]


class Answer(Protocol):
    """The API server's answer to one request."""

    @property
    def status(self) -> int:
        """The HTTP status."""

    @property
    def body(self) -> Object:
        """The object."""


class ApiServer(Protocol):
    """The API server: `kube.client.Client`, or a double."""

    async def call(self, method: str, path: str, *, body: Object | None = None, timeout_s: float) -> Answer:
        """Return the answer to one request; raise the exception that `Identities` expects if there is none."""


class NotAnAgent(Exception):
    """The token is not that of the agent on a node; the text says why. Asking again soon would not help."""


class Unanswered(Exception):
    """The API server has not checked the token; the text says why. It may be asked again."""


@dataclass(frozen=True, slots=True)
class _Known:
    """What is remembered of a token."""

    until_s: float
    node: str
    """Empty: refused."""
    reason: str = ""


class Identities:
    """The cache of reviews: finds the node that an agent's token belongs to."""

    def __init__(
        self,
        api: ApiServer,
        unavailable: type[Exception],
        clock: Callable[[], float],
        *,
        user: str = AGENT_USER,
        audience: str = AUDIENCE,
    ) -> None:
        """Ask `api`, which raises `unavailable` if it has no answer; `clock` is monotonic, in seconds.

        `user`: the service account that all agents have. `audience`: what their tokens have to be made for.
        """
        self._api = api
        self._unavailable = unavailable
        self._clock = clock
        self._user = user
        self._audience = audience
        self._known: OrderedDict[bytes, _Known] = OrderedDict()
        """By the hash of a token, the oldest answer first."""
        self._reviews = asyncio.Semaphore(AT_ONCE)

    async def node_of(self, token: str) -> str:
        """Return the name of the node on which the agent with the token runs. Raises NotAnAgent or Unanswered."""
        if len(token) > TOKEN_MAX or not _TOKEN.fullmatch(token):
            raise NotAnAgent(f"no token, or one that is none: send one of audience {self._audience}")
        key = hashlib.sha256(token.encode("ascii")).digest()
        known = self._known.get(key)
        if known is None or known.until_s <= self._clock():
            async with self._reviews:
                known = await self._ask(token)
            self._known[key] = known
            self._known.move_to_end(key)
            while len(self._known) > REMEMBER_MAX:
                self._known.popitem(last=False)
        if not known.node:
            raise NotAnAgent(known.reason)
        return known.node

    async def _ask(self, token: str) -> _Known:
        """Ask about a token; return what is to be remembered of it: its node, or why it is refused.

        Raises Unanswered if there is no answer; nothing is to be remembered then.
        """
        try:
            node = await self._review(token)
        except self._unavailable as error:
            raise Unanswered(f"the token cannot be checked now ({' '.join(str(error).split())}): try again") from None
        except NotAnAgent as error:
            return _Known(self._clock() + REMEMBER_REFUSAL_S, "", str(error))
        return _Known(self._clock() + REMEMBER_S, node)

    async def _review(self, token: str) -> str:
        """Ask the API server for the node of the agent that has the token, by a TokenReview.

        Raises NotAnAgent if the token is not an agent's, Unanswered if the review fails, `unavailable` if there is no
        answer.
        """
        body: Object = {
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenReview",
            "spec": {"token": token, "audiences": [self._audience]},
        }
        answer = await self._api.call("POST", _PATH, body=body, timeout_s=REVIEW_S)
        if not 200 <= answer.status < 300:
            raise Unanswered(f"the token cannot be checked: the API server says {answer.status}: see its log")
        status = _object(answer.body, "status")
        audiences = status.get("audiences")
        if status.get("authenticated") is not True:
            raise NotAnAgent(f"the API server does not know the token: send a live one of audience {self._audience}")
        if not isinstance(audiences, list) or self._audience not in audiences:
            raise NotAnAgent(f"the token is not for us: send one of audience {self._audience}")
        user = _object(status, "user")
        if user.get("username") != self._user:
            raise NotAnAgent(f"the token is of {str(user.get('username'))[:253]!r}: only {self._user} reports usage")
        node = _first(_object(user, "extra"), _NODE)
        if not node:
            raise NotAnAgent("the token is bound to no pod on a node: send a projected one, as daemonset/base")
        return node


def _object(body: Object, key: str) -> Object:
    """Return the object under a key; empty: there is none."""
    value = body.get(key)
    return value if isinstance(value, dict) else {}


def _first(extra: Object, key: str) -> str:
    """Return the only value of a user's extra field; empty: the field has no value or several."""
    values = extra.get(key)
    return values[0] if isinstance(values, list) and len(values) == 1 and isinstance(values[0], str) else ""
