"""Keeps this user's token. On the users' socket a caller may change only shares that were registered with its token.

All shares of a user have the same token. So the programs of a gang find each other, and `pause` finds its share.
"""

from __future__ import annotations

import functools
import os
import secrets
from pathlib import Path

from sharepod.agent.settings import USERS_SOCKET_NAME
from sharepod.cli.errors import CliError


def metadata(socket_path: str, *, gang: str = "") -> tuple[tuple[str, str], ...]:
    """Return the metadata of a call on this socket: the token. On the operators' socket there is none.

    If the token cannot be stored, only this process has it. Then CliError is raised for a `gang`, because its other
    programs need the token, too.
    """
    if Path(socket_path).name != USERS_SOCKET_NAME:
        return ()
    try:
        token = _load(Path(os.environ.get("XDG_STATE_HOME") or Path("~/.local/state").expanduser()) / "sharepod/token")
    except (OSError, RuntimeError) as error:  # RuntimeError: this user has no home
        if gang:
            raise CliError(
                f"--gang {gang}: your token, which its programs share, cannot be kept: {error}: "
                "name a directory of yours with XDG_STATE_HOME"
            ) from None
        token = _token_of_this_process()
    return (("sharepod-token", token),)


@functools.cache
def _token_of_this_process() -> str:
    """Return a new token that no other process knows; every call returns the same."""
    return secrets.token_urlsafe(32)


def _load(path: Path) -> str:
    """Return the token in the file at `path`. If there is no file, make one. Raises OSError."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    fresh = path.with_name(f"{path.name}.{os.getpid()}")
    while True:
        try:
            return path.read_text(encoding="ascii").strip()
        except FileNotFoundError:
            pass
        # Two commands may each make one at the same time. Both use the one that is linked first.
        file = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        with open(file, "w", encoding="ascii") as out:  # noqa: PTH123 - a descriptor
            out.write(secrets.token_urlsafe(32))
        try:
            path.hardlink_to(fresh)
        except FileExistsError:
            pass
        finally:
            fresh.unlink()
