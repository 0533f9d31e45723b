"""Faults on demand: refusals, delays and lost answers.

It knows a request only as two words, `verb resource`: `patch pods`, `watch nodes`, `post pods/eviction`. An empty
`only` means any request.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from .refusal import Refusal


@dataclass
class _Due:
    refusal: Refusal
    only: str


@dataclass
class Faults:
    """The faults of one server."""

    lag_s: float = 0.0
    """Every answer is delayed by this time."""
    _due: list[_Due] = field(default_factory=list)
    _lags: dict[str, float] = field(default_factory=dict)
    _lost: Counter[str] = field(default_factory=Counter)

    def refuse(self, code: int, times: int = 1, after: str | None = None, only: str = "") -> None:
        """Answer the next `times` requests with a status, as an overloaded server or a broken proxy does.

        `after` is the answer's Retry-After.
        """
        reason = {429: "TooManyRequests", 500: "InternalError", 503: "ServiceUnavailable"}.get(code, "ServerTimeout")
        refusal = Refusal(code, reason, f"told to say {code}")
        refusal.headers = {"Retry-After": after} if after else None
        self._due += [_Due(refusal, only)] * times

    def stop_refusing(self) -> None:
        """Answer normally again."""
        self._due.clear()

    def delay(self, seconds: float, only: str) -> None:
        """Delay the answers to one kind of request, until the delay is set to 0."""
        self._lags[only] = seconds

    def lose(self, only: str, times: int = 1) -> None:
        """Do what the next requests ask, but cut the connection instead of an answer."""
        self._lost[only] += times

    def lag_of(self, request: str) -> float:
        """Return how long the answer to this request is delayed, in seconds."""
        return self.lag_s + self._lags.get(request, 0.0)

    def check(self, request: str) -> None:
        """Raise Refusal if one is due, and take it off the list."""
        for number, due in enumerate(self._due):
            if due.only in ("", request):
                del self._due[number]
                raise due.refusal

    def loses(self, request: str) -> bool:
        """Tell whether the answer to this request should be lost, and count it."""
        if self._lost[request] <= 0:
            return False
        self._lost[request] -= 1
        return True
