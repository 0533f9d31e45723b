"""The Python of the strangers: the packages of the extra `strangers`, in a virtual environment of their own.

They are large, and nothing but their tests needs them: `make build` leaves them out, and the first test makes the
environment, in half a minute. It is made anew when a version of it changes.
"""

import hashlib
import subprocess
import sys
import tomllib
import venv
from pathlib import Path

from rig import REPO_ROOT

ENVIRONMENT = REPO_ROOT / ".venv" / "strangers"
PYTHON = ENVIRONMENT / "bin" / "python"
TOOLKIT = ENVIRONMENT / "cuda"
"""NVRTC and the headers of CUDA, laid out as an installer of NVIDIA's lays them out: slangpy looks for them so."""
LIBRARIES = TOOLKIT / "lib64"


def requirements() -> list[str]:
    """Return what the extra names."""
    project = tomllib.loads((REPO_ROOT / "pyproject.toml").read_text())["project"]
    return list(project["optional-dependencies"]["strangers"])


def make() -> None:
    """Make the environment, unless it is there as it would be made."""
    wanted, pins = requirements(), REPO_ROOT / "constraints.txt"
    version = hashlib.sha256("\n".join([sys.version, *wanted, pins.read_text()]).encode()).hexdigest()
    stamp = ENVIRONMENT / "version"
    if stamp.is_file() and stamp.read_text() == version:
        return
    venv.create(ENVIRONMENT, clear=True, with_pip=True)
    pip = [PYTHON, "-m", "pip", "--disable-pip-version-check", "-qq", "install", "-c", pins, *wanted]
    subprocess.run(pip, check=True)
    lay_toolkit_out(next(ENVIRONMENT.glob("lib/*/site-packages/nvidia/cu13")))
    stamp.write_text(version)


def lay_toolkit_out(packages: Path) -> None:
    """Lead from the folders of an installed toolkit to what NVIDIA's Python packages have of it."""
    LIBRARIES.mkdir(parents=True)
    (TOOLKIT / "include").symlink_to(packages / "include")
    for library in (packages / "lib").glob("libnvrtc*.so.*"):
        (LIBRARIES / library.name).symlink_to(library)
        (LIBRARIES / library.name.partition(".so")[0]).with_suffix(".so").symlink_to(library)
