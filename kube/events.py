"""Decides which Events about a pod are written (`kubectl describe pod` shows them) and which are only counted. Pure.

The same Event again within ten minutes only raises the count of the first one. Few Events of one pod are written in a
minute, whatever happens to it. One that is not written is included in the count of the next one that is.

The Events are those of core/v1, as kubelet writes them, so our roles need no second API group. The library has their
types, but nothing that counts or limits them.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

WINDOW_S: Final = 600.0
"""The same Event again within this time is counted in the first one."""
WRITES_PER_MINUTE: Final = 4
"""The most writes about one subject."""
COUNTS_PER_MINUTE: Final = 2
"""The most writes that only raise a count: the others of WRITES_PER_MINUTE are kept for new Events."""
_KNOWN_MAX: Final = 1024
"""How many Events and how many subjects are remembered. The oldest are forgotten first."""
_MESSAGE_MAX: Final = 1024
_REASON_MAX: Final = 128
_NAME_MAX: Final = 253

Body = dict[str, object]


@dataclass(frozen=True, slots=True)
class Subject:
    """The pod, the node or the settings that an event is about."""

    namespace: str
    """Empty: a node, which has no namespace."""
    name: str
    uid: str
    """For a node its name, as kubelet writes it: `kubectl describe node` looks for that."""
    kind: str = ""
    """Empty: a pod, or without a namespace a node."""


@dataclass(frozen=True, slots=True)
class Notice:
    """An Event to report about a subject."""

    subject: Subject
    reason: str
    message: str
    warning: bool


@dataclass(frozen=True, slots=True)
class Writing:
    """A write to the API server."""

    notice: Notice
    name: str
    create: bool
    """True: a new Event; False: a change of the one with this name."""
    body: Body


@dataclass(slots=True)
class _Entry:
    """An Event in the book."""

    name: str
    """Empty: it has not been written yet."""
    first_unix_s: float
    last_s: float
    """When it was last counted, by the clock of `now_s`."""
    count: int


class EventBook:
    """The Events that were written. `now_s` never goes back. `unix_s` is the wall clock, only for readers."""

    def __init__(self, host: str, component: str) -> None:
        self._host = host
        self._component = component
        self._entries: OrderedDict[Notice, _Entry] = OrderedDict()
        self._write_times: OrderedDict[str, list[float]] = OrderedDict()
        """By the subject's uid: the times of its last writes, at most WRITES_PER_MINUTE each."""
        self._number = 0
        """How many names were given: a part of the next name."""

    def take(self, notice: Notice, now_s: float, unix_s: float) -> Writing | None:
        """Count an Event. Return what to write now; None: enough was written about its subject in the last minute.

        The same Event within WINDOW_S, once it is written, only gets a higher count. Every other Event is created.
        """
        known = self._entries.get(notice)
        if known is None or now_s - known.last_s > WINDOW_S:
            known = self._remember(notice, _Entry("", unix_s, now_s, 0))
        known.count += 1
        known.last_s = now_s
        is_written = bool(known.name)
        if not self._may_write(notice.subject.uid, now_s, COUNTS_PER_MINUTE if is_written else WRITES_PER_MINUTE):
            return None
        if not is_written:
            known.name = self._name(notice.subject.name, unix_s)
            return Writing(notice, known.name, create=True, body=self._whole(notice, known, unix_s))
        body: Body = {"count": known.count, "lastTimestamp": _time(unix_s)}
        return Writing(notice, known.name, create=False, body=body)

    def again(self, writing: Writing, unix_s: float) -> Writing:
        """Return a write that creates the Event of `writing` under a new name. The book notes the name.

        Called when `writing` has failed: the Event that it changes has expired, or the name of its new Event is taken.
        """
        known = self._entries.get(writing.notice) or _Entry("", unix_s, 0.0, 1)  # the book may have forgotten it
        known.name = self._name(writing.notice.subject.name, unix_s)
        body = self._whole(writing.notice, known, unix_s)
        return Writing(writing.notice, known.name, create=True, body=body)

    def forget(self, writing: Writing) -> None:
        """Forget an Event that could not be created, so that the next write does not try to change it.

        An Event that could not be changed stays known.
        """
        known = self._entries.get(writing.notice)
        if writing.create and known is not None and known.name == writing.name:
            del self._entries[writing.notice]

    def _may_write(self, uid: str, now_s: float, writes_max: int) -> bool:
        """Tell whether a subject had fewer than `writes_max` writes in the last minute. If so, note one at `now_s`."""
        recent = [at for at in self._write_times.get(uid, []) if now_s - at < 60]
        allowed = len(recent) < writes_max
        if allowed:
            recent.append(now_s)
        self._write_times[uid] = recent
        self._write_times.move_to_end(uid)
        while len(self._write_times) > _KNOWN_MAX:
            self._write_times.popitem(last=False)
        return allowed

    def _remember(self, notice: Notice, entry: _Entry) -> _Entry:
        """Put an Event into the book as its newest, and return it. If there are too many, forget the oldest."""
        self._entries[notice] = entry
        self._entries.move_to_end(notice)
        while len(self._entries) > _KNOWN_MAX:
            self._entries.popitem(last=False)
        return entry

    def _name(self, subject_name: str, unix_s: float) -> str:
        """Return a new Event's name. The time in µs and a number make it unique, even after a restart."""
        self._number += 1
        suffix = f".{int(unix_s * 1e6):x}{self._number % 256:02x}"
        return subject_name[: _NAME_MAX - len(suffix)].rstrip("-.") + suffix

    def _whole(self, notice: Notice, known: _Entry, unix_s: float) -> Body:
        """Return all fields of an Event, for the write that creates it."""
        subject = notice.subject
        return {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": known.name, "namespace": event_namespace(subject)},
            "involvedObject": {
                "apiVersion": "v1",
                "kind": subject.kind or ("Pod" if subject.namespace else "Node"),
                "namespace": subject.namespace,
                "name": subject.name,
                "uid": subject.uid,
            },
            "reason": notice.reason,
            "message": notice.message,
            "type": "Warning" if notice.warning else "Normal",
            "count": known.count,
            "firstTimestamp": _time(known.first_unix_s),
            "lastTimestamp": _time(unix_s),
            "source": {"component": self._component, "host": self._host},
            "reportingComponent": self._component,
            "reportingInstance": self._host[:_REASON_MAX],
        }


def event_namespace(subject: Subject) -> str:
    """Return the namespace of an Event. If its subject has none, the API server accepts only `default`."""
    return subject.namespace or "default"


def notice(subject: Subject, reason: str, message: str, *, warning: bool) -> Notice:
    """Return a notice that the API server accepts.

    Its reason keeps only letters and digits. Its message becomes one line of at most _MESSAGE_MAX characters.
    """
    line = " ".join("".join(c if c.isprintable() else " " for c in message).split())
    if len(line) > _MESSAGE_MAX:
        line = line[: _MESSAGE_MAX - 1] + "…"
    return Notice(subject, re.sub(r"[^A-Za-z0-9]", "", reason)[:_REASON_MAX] or "SharePod", line, warning)


def _time(unix_s: float) -> str:
    """Return a time in whole seconds, as Kubernetes writes it."""
    return datetime.fromtimestamp(int(unix_s), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
