"""Asks the cluster's scheduler about a pod, and writes its explanation as text."""

from __future__ import annotations

import re
import textwrap
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

from sharepod.cli.connection import scheduler
from sharepod.cli.errors import EXIT_USAGE, CliError
from sharepod.cli.render import queue_explain

if TYPE_CHECKING:
    from collections.abc import Iterator

_NAME: Final = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")

Object = dict[str, Any]


def ask(url: str, namespace: str, name: str) -> Object:
    """Return the explanation of a pod by the scheduler at `url`. Raises CliError.

    It is the JSON of an Explanation of scheduler/explain/explanation.py, as is the parameter `found` below.
    """
    for flag, text in (("-n", namespace), ("pod/", name)):
        if not _NAME.fullmatch(text):
            raise CliError(
                f"{flag} {text!r} is no name: give pod/NAME and -n NAMESPACE as kubectl shows them", EXIT_USAGE
            )
    path = f"/explain/{quote(namespace, safe='')}/{quote(name, safe='')}"
    return scheduler.get(url, path, f"explain pod/{name} -n {namespace}")


def lines(found: Object, url: str, width: int) -> list[str]:
    """Return an explanation as lines of at most `width` columns. Raises CliError if the answer is no explanation."""
    try:
        unwrapped = list(_lines(found))
    except (KeyError, TypeError, ValueError, AttributeError):
        raise CliError(scheduler.STRANGER.format(url=url)) from None
    wrapped = []
    for line in unwrapped:
        plain = "".join(letter if letter.isprintable() else "?" for letter in line)
        indent = " " * (len(plain) - len(plain.lstrip()) + 2)
        wrapped += textwrap.wrap(plain, width, subsequent_indent=indent, break_on_hyphens=False) or [""]
    return wrapped


def _lines(found: Object) -> Iterator[str]:
    """Yield the lines of an explanation before they are wrapped. Raises KeyError and others if it has another form."""
    yield f"{found['pod']}: {found['text']}"
    if found["incomplete"]:
        yield f"Not everything is known yet: {found['incomplete']}"
    for held in found["held"]:
        devices = ", ".join(f"{index} ({uuid})" for index, uuid in held["devices"])
        yield f"  container {held['container'] or '(init)'}: device {devices}"
    yield from _neighbours(found)
    turn = found.get("turn")
    if turn is not None:
        yield from queue_explain.lines(turn)
    if found["fitting"]:
        yield f"It would go to (policy {found['policy']}):"
    for number, fit in enumerate(found["fitting"], 1):
        chosen = "; ".join(", ".join(map(str, devices)) for devices in fit["devices"])
        yield f"  {number:>2}  {fit['left']['node']}: device {chosen}, {_behind(fit, number)}"
        yield f"      left: {_devices(fit['left'])}"
    if found["fitting_nodes"] > len(found["fitting"]):
        yield f"  and {found['fitting_nodes'] - len(found['fitting'])} more"
    for refused in found["refused"]:
        yield f"{_nodes(refused['nodes'])}: {refused['reason']}"
        for left in refused["examples"]:
            yield f"      {left['node']}: {_devices(left) or 'nothing is known of it'}{_rest(left)}"
        if refused["nodes"] > len(refused["examples"]):
            yield f"      and {refused['nodes'] - len(refused['examples'])} more"


def _neighbours(found: Object) -> Iterator[str]:
    """Yield what is left of each device on which the pod has a share, and which other shares are there."""
    devices = found["left"]["devices"] if found["left"] else []
    for place in found["there"]:
        yield f"  device {_device(devices[place['device']])} left, beside it:"
        for share in place["shares"]:
            used = "" if share["used_percent"] is None else f", used {share['used_percent']} % of the last minute"
            holder = f"{share['pod']} {share['container']}".strip() or "a share of no pod"
            yields = {"pause": ", paused to make room", "limit": ", limited to that"}.get(share.get("yields", ""), "")
            yield f"      {holder}: {share['share_class']}, asked for {share['asked_percent']} %{yields}{used}"
        if not place["shares"]:
            yield "      nobody"
        if place["more"]:
            yield f"      and {place['more']} more"


def _behind(fit: Object, number: int) -> str:
    """Say how much more a place costs than the best one, and for what. `number` is its position in the list, from 1.

    `fit` is a Fit of scheduler/explain/explanation.py. `behind` is the difference in steps of the policy's cost.
    `behind_milli` is the same in 1/1000 of a device; null: the policy does not tell.
    """
    if fit["behind"] == 0:
        return "the best" if number == 1 else "as good, but later by name"
    if fit["behind_milli"] is not None:
        step_milli = fit["behind_milli"] / fit["behind"]  # milli of a device in one step
        text, use = f"costs {fit['behind_milli']} milli of a device more", round(fit["behind_use"] * step_milli)
        room = fit["behind_milli"] - use
    else:
        text, use = f"costs {fit['behind']} steps more", fit["behind_use"]
        room = fit["behind"] - use
    parts = [f"{room:+} for the room it takes"] if room else []
    parts += [f"{use:+} for what runs, is promised or not linked there"] if use else []
    return f"{text} ({', '.join(parts)})"


def _nodes(count: int) -> str:
    """Return the number with the word: "1 node", "2 nodes"."""
    return f"{count} node{'' if count == 1 else 's'}"


def _devices(left: Object) -> str:
    """Return what is left of each device of a node; empty: nothing is known of its devices."""
    return ", ".join(_device(device) for device in left["devices"])


def _device(device: Object) -> str:
    """Return what is left of a device and how it is used, or why the pod cannot have it."""
    if device["closed"]:
        return f"{device['index']} {device['closed']}"
    text = f"{device['index']} {device['left_percent']} % and {device['left_mib'] / 1024:.0f} GiB"
    kinds = ("used", "waited", "latency")
    notes = [f"{device[f'{kind}_percent']} % {kind}" for kind in kinds if device[f"{kind}_percent"]]
    return f"{text} ({', '.join(notes)})" if notes else text


def _rest(left: Object) -> str:
    """Return what is left of a node beside its devices; empty: nothing is known of the node."""
    if not left["devices"]:
        return ""
    processors, gib = max(0, left["cpu_milli"]) / 1000, max(0, left["memory_mib"]) / 1024
    return f"; {processors:g} processors and {gib:.0f} GiB of memory"
