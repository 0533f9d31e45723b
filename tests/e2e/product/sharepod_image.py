"""Builds SharePod's own image by the steps of its Containerfile, and keeps it between runs.

It owns the cache: archives, each named by a digest of everything that the steps see, and the results of the steps that
do not see the sources.
"""

import hashlib
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path

from build_tools import cache_root, locked, say
from containerfile import Build, context_files
from image import Image, debian_root, write_image

from rig import REPO_ROOT

NAME = "docker.io/library/sharepod:0.1.0"
KEPT = 3
"""How many images the cache keeps, as several checkouts share it."""
LAYERS = 6
"""How many results of steps that do not see the sources it keeps: enough for two versions of the Containerfile."""
BASE = ("ca-certificates",)


def passed_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the developer's settings with which the build's package installer reaches its registry."""
    names = {"PIP_CERT", "PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "PIP_DEFAULT_TIMEOUT", "PIP_TRUSTED_HOST"}
    names |= {name for name in environment if name.lower() in {"http_proxy", "https_proxy", "no_proxy"}}
    return {name: environment[name] for name in sorted(names & environment.keys())}


def context_digest(context: Path, base: Path) -> str:
    """Return a digest of what the steps see: every file of the build's context, its mode, and the base."""
    said = hashlib.sha256(f"{base.name}\n".encode())
    for path in sorted([*context_files(context), Path("Containerfile")]):
        whole = context / path
        content = str(whole.readlink()).encode() if whole.is_symlink() else whole.read_bytes()
        said.update(f"{path} {whole.lstat().st_mode:o} {len(content)}\n".encode() + content)
    return said.hexdigest()[:16]


def by_age(folder: Path, pattern: str) -> list[Path]:
    return sorted(folder.glob(pattern), key=lambda path: path.stat().st_mtime)


def sharepod_image(context: Path = REPO_ROOT) -> Path:
    """Return the archive of the image; build it if it is missing. Raises ContainerfileError, BuildError."""
    base = debian_root(BASE)
    folder = cache_root() / "images"
    kept = folder / f"sharepod-{context_digest(context, base)}.tar"
    if kept.exists():
        return kept  # without the lock, as another checkout may build its own for minutes
    with locked(folder):
        if kept.exists():
            os.utime(kept)  # an image in use must not count as old
            return kept
        for older in [*by_age(folder, "sharepod-*.tar")[: -(KEPT - 1)], *by_age(folder, "layers/*.tar")[:-LAYERS]]:
            older.unlink()
        say("building SharePod's image, some minutes")
        with tempfile.TemporaryDirectory(prefix="build-", dir=folder) as name:
            layers = folder / "layers"
            layers.mkdir(exist_ok=True)
            build = Build(context, Path(name) / "stages", lambda _: base, passed_variables(os.environ), layers)
            stage = build.run((context / "Containerfile").read_text())
            image = Image(NAME, (), stage.environment, stage.user, stage.entrypoint)
            write_image(image, stage.root, Path(name) / "image.tar").rename(kept)
    return kept
