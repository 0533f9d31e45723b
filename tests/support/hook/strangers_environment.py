"""Makes a virtual environment with the packages of the extra `strangers`: frameworks that SharePod does not depend on.

The packages are large, and only their tests need them, so `make build` leaves them out. The first test makes the
environment, in half a minute. It is made anew when the version of a package changes.
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
"""NVRTC and the headers of CUDA, in the layout of NVIDIA's installer, which slangpy expects."""
LIBRARIES = TOOLKIT / "lib64"


def requirements() -> list[str]:
    """Return the requirements that the extra names."""
    project = tomllib.loads((REPO_ROOT / "pyproject.toml").read_text())["project"]
    return list(project["optional-dependencies"]["strangers"])


def make() -> None:
    """Make the environment, unless an equal one is there."""
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
    """Make the folders of an installed toolkit as links to the files in NVIDIA's Python packages."""
    LIBRARIES.mkdir(parents=True)
    (TOOLKIT / "include").symlink_to(packages / "include")
    for library in (packages / "lib").glob("libnvrtc*.so.*"):
        (LIBRARIES / library.name).symlink_to(library)
        (LIBRARIES / library.name.partition(".so")[0]).with_suffix(".so").symlink_to(library)
