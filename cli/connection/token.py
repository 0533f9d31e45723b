"""This user's token: the agent's users' socket lets a caller change the shares that were registered with it.

One token serves all shares of a user, so that the programs of a gang find each other, and `pause` finds its share.
"""

from __future__ import annotations

import functools
import os
import secrets
from pathlib import Path

from sharepod.agent.settings import USERS_SOCKET_NAME
from sharepod.cli.errors import CliError


def metadata(socket_path: str, *, gang: str = "") -> tuple[tuple[str, str], ...]:
    """Return what a call on this socket carries: nothing on the operators'.

    Where the token cannot be kept, it is this process's alone. Raises CliError when others of a `gang` are to have it.
    """
    if Path(socket_path).name != USERS_SOCKET_NAME:
        return ()
    try:
        token = _kept(Path(os.environ.get("XDG_STATE_HOME") or Path("~/.local/state").expanduser()) / "sharepod/token")
    except (OSError, RuntimeError) as error:  # without a home it is no OSError
        if gang:
            raise CliError(
                f"--gang {gang}: your token, which its programs share, cannot be kept: {error}: "
                "name a directory of yours with XDG_STATE_HOME"
            ) from None
        token = _passing()
    return (("sharepod-token", token),)


@functools.cache
def _passing() -> str:
    """Return a token of this process."""
    return secrets.token_urlsafe(32)


def _kept(path: Path) -> str:
    """Return the token in the file, which is made when it is not there. Raises OSError."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    fresh = path.with_name(f"{path.name}.{os.getpid()}")
    while True:
        try:
            return path.read_text(encoding="ascii").strip()
        except FileNotFoundError:
            pass
        # Two commands may draw one at once: the first link is everybody's.
        file = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        with open(file, "w", encoding="ascii") as out:  # noqa: PTH123 - a descriptor
            out.write(secrets.token_urlsafe(32))
        try:
            path.hardlink_to(fresh)
        except FileExistsError:
            pass
        finally:
            fresh.unlink()
