"""The fixtures of this room."""

from importlib import metadata
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def toolkit() -> Path:
    """Return the directory of CUDA headers from the newest toolkit in the environment."""
    files = metadata.files("nvidia-cuda-runtime") or ()
    return next(Path(file.locate()) for file in files if file.name == "cuda.h").parent
