"""Programs that are talked to: pynvml clients and users of a device."""

import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
Ask = Callable[[str], Any]
Use = Callable[..., "subprocess.Popen[str]"]


@contextmanager
def talking(command: list[str], env: dict[str, str]) -> Iterator["subprocess.Popen[str]"]:
    """Run a program that ends when its input closes."""
    with subprocess.Popen(command, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            if process.stdin is not None:
                process.stdin.close()
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
