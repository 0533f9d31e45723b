"""Asks the cluster's scheduler, which listens on the loopback of its own pod."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from http.client import HTTPException
from typing import Any, Final
from urllib.parse import urlsplit

from sharepod.cli.errors import EXIT_USAGE, CliError

URL: Final = "http://127.0.0.1:9467"
"""The scheduler's default address."""
STRANGER: Final = "what answers at {url} is no SharePod scheduler of this version: give its address with --scheduler"
PATIENCE_S: Final = 10.0
_ANSWER_MAX: Final = 16 * 2**20
"""Bytes that are read of an answer."""
_ERROR_MAX: Final = 1000
"""Bytes that are read of an error's text."""
_INSIDE: Final = "kubectl -n sharepod exec deploy/sharepod-scheduler -- sharepod {command}"


def get(url: str, path: str, command: str) -> dict[str, Any]:
    """Return the answer of the scheduler at `url` for `path`. Raises CliError.

    `command` is for an error: what the user can run in the scheduler's pod instead.
    """
    try:
        parts = urlsplit(url)
        is_address = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:
        is_address = False
    if not is_address:
        raise CliError(f"--scheduler {url} is no address: give {URL}", EXIT_USAGE)
    # The address is on the loopback: no proxy from the environment.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(url.rstrip("/") + path, timeout=PATIENCE_S) as response:
            found = json.loads(response.read(_ANSWER_MAX))
    except urllib.error.HTTPError as error:
        reason = error.read(_ERROR_MAX).decode("utf-8", "replace").strip()
        # With 404 and 503 the scheduler says why it has no answer. "404: Not Found" comes from an unknown server.
        if error.code not in (404, 503) or not reason or reason == "404: Not Found":
            raise CliError(STRANGER.format(url=url)) from None
        raise CliError(reason) from None
    except (OSError, HTTPException) as error:
        cause = getattr(error, "reason", None) or error
        inside = _INSIDE.format(command=command)
        raise CliError(f"no scheduler answers at {url} ({cause}): from outside its pod: {inside}") from None
    except ValueError:
        raise CliError(STRANGER.format(url=url)) from None
    if not isinstance(found, dict):
        raise CliError(STRANGER.format(url=url))
    return found
