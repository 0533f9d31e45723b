"""Says hello to the agent before a registration: the kernel then tells the agent which process the caller is."""

from __future__ import annotations

import contextlib
import socket
from pathlib import Path
from typing import TYPE_CHECKING, Final

from sharepod.agent.settings import HELLO_SOCKET_NAME
from sharepod.cli.errors import EXIT_NO_AGENT, CliError

if TYPE_CHECKING:
    from collections.abc import Iterator

_TIMEOUT_S: Final = 10.0


@contextlib.contextmanager
def ticket(socket_path: str) -> Iterator[str]:
    """Yield a ticket of the agent at `socket_path`; it is valid inside the context. Raises CliError."""
    path = Path(socket_path).with_name(HELLO_SOCKET_NAME)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC) as connection:
        connection.settimeout(_TIMEOUT_S)
        try:
            connection.connect(str(path))
            answer = connection.makefile("rb").readline().strip().decode("ascii")
        except (OSError, UnicodeDecodeError) as error:
            text = f"the agent cannot be told who owns the share: {path}: {error}"
            remedy = f"mount its whole directory, {path.parent}, or start the agent of this version"
            raise CliError(text, EXIT_NO_AGENT, remedy) from None
        if not answer:
            raise CliError(f"the agent gives this user no more tickets at {path}", EXIT_NO_AGENT, "try again")
        yield answer
