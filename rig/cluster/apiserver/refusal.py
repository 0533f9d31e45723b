"""Refusals: answers with a Status, in the words of the API server. Owns no rule: the module that refuses says why."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

Body = dict[str, Any]


class Refusal(Exception):
    """An answer with a Status."""

    def __init__(
        self,
        code: int,
        reason: str,
        message: str,
        *,
        about: str = "",
        name: str = "",
        causes: Iterable[Mapping[str, str]] = (),
        retry_after_s: int = 0,
    ) -> None:
        """`about` is the resource or kind that the refusal is about."""
        super().__init__(message)
        self.code = code
        self.message = message
        self.headers = {"Retry-After": str(retry_after_s)} if retry_after_s else None
        details: Body = {"name": name, "kind": about, "causes": [dict(cause) for cause in causes]}
        details["retryAfterSeconds"] = retry_after_s
        self.status: Body = {
            "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "message": message,
            "reason": reason, "details": {key: value for key, value in details.items() if value}, "code": code,
        }  # fmt: skip


def not_found(about: str, name: str) -> Refusal:
    return Refusal(404, "NotFound", f'{about} "{name}" not found', about=about, name=name)


def already_exists(about: str, name: str) -> Refusal:
    return Refusal(409, "AlreadyExists", f'{about} "{name}" already exists', about=about, name=name)


def conflict(about: str, name: str, why: str) -> Refusal:
    message = f'Operation cannot be fulfilled on {about} "{name}": {why}'
    return Refusal(409, "Conflict", message, about=about, name=name)


MODIFIED = "the object has been modified; please apply your changes to the latest version and try again"


def forbidden(about: str, name: str, why: str) -> Refusal:
    return Refusal(403, "Forbidden", f'{about} "{name}" is forbidden: {why}', about=about, name=name)


def bad_request(message: str) -> Refusal:
    return Refusal(400, "BadRequest", message)


def expired(message: str) -> Refusal:
    return Refusal(410, "Expired", message)


def invalid(kind: str, name: str, faults: Iterable[tuple[str, str]]) -> Refusal:
    """Return the refusal of an object for its fields: pairs of a field and what is wrong with it."""
    listed = list(faults)
    text = "; ".join(f"{field}: {why}" for field, why in listed)
    causes = [
        {"reason": why.partition(":")[0].replace(" ", ""), "message": why, "field": field} for field, why in listed
    ]
    return Refusal(422, "Invalid", f'{kind} "{name}" is invalid: {text}', about=kind, name=name, causes=causes)
