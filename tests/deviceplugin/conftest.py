"""Async tests run in an event loop of their own; sockets lie in directories with short names."""

from __future__ import annotations

import asyncio
import inspect
import os
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # before grpc loads: its C core logs to stderr in its own way

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a test that is a coroutine; what it leaves behind is cancelled, as at the end of a program."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    names = inspect.signature(pyfuncitem.obj).parameters
    asyncio.run(pyfuncitem.obj(**{name: pyfuncitem.funcargs[name] for name in names}))
    return True


@pytest.fixture
def directory() -> Iterator[Path]:
    """Return an empty directory whose path leaves room for a socket's name."""
    made = Path(tempfile.mkdtemp(prefix="sp-"))
    yield made
    shutil.rmtree(made)
