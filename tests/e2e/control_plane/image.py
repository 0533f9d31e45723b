"""Makes container images without a registry: one layer from a root file system, as an archive for containerd.

A root file system is a tar archive; ``debian_root`` makes one from Debian's packages and keeps it between runs.
"""

import hashlib
import io
import json
import subprocess
import tarfile
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from build_tools import BuildError, cache_root, locked, output

SUITE = "bookworm"


@dataclass(frozen=True, slots=True)
class Image:
    """The settings of an image: its full name with tag, its command, and its environment."""

    name: str
    command: Sequence[str]
    environment: Mapping[str, str] = field(default_factory=dict)
    user: str = ""
    entrypoint: Sequence[str] = ()


def digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def add_bytes(archive: tarfile.TarFile, name: str, content: bytes) -> None:
    entry = tarfile.TarInfo(name)
    entry.size = len(content)
    archive.addfile(entry, io.BytesIO(content))


def write_image(image: Image, root: Path, archive: Path) -> Path:
    """Write an image's archive from its root file system, a folder or a tar archive; return the archive."""
    with tempfile.TemporaryDirectory(dir=archive.parent) as scratch:
        layer = root
        if root.is_dir():
            layer = Path(scratch) / "layer.tar"
            with tarfile.open(layer, "w") as packed:
                packed.add(root, ".")
        configuration = json.dumps(
            {
                "architecture": "amd64",
                "os": "linux",
                "config": {
                    "Entrypoint": list(image.entrypoint) or None,
                    "Cmd": list(image.command) or None,
                    "Env": [f"{key}={value}" for key, value in image.environment.items()],
                    "User": image.user,
                },
                "rootfs": {"type": "layers", "diff_ids": [f"sha256:{digest(layer)}"]},
            }
        ).encode()
        named = f"{hashlib.sha256(configuration).hexdigest()}.json"
        manifest = [{"Config": named, "RepoTags": [image.name], "Layers": ["layer.tar"]}]
        with tarfile.open(archive, "w") as written:
            add_bytes(written, named, configuration)
            add_bytes(written, "manifest.json", json.dumps(manifest).encode())
            written.add(layer, "layer.tar")
    return archive


def debian_root(packages: Sequence[str]) -> Path:
    """Return the archive of a Debian root file system with these packages; make it if it is missing."""
    targets = output(
        "apt-get", "indextargets", "--format", "deb $(REPO_URI) $(RELEASE) $(COMPONENT)", "Created-By: Packages"
    )
    places = sorted({line for line in targets.splitlines() if line.split()[2].startswith(SUITE)})
    if not places:
        raise BuildError(f"the package lists do not know Debian's {SUITE}: apt-get update")
    key = hashlib.sha256("\n".join(["apt", *sorted(packages)]).encode()).hexdigest()[:12]
    folder = cache_root() / "roots"
    kept = folder / f"{key}.tar"
    with locked(folder):
        if not kept.exists():
            sources, partial = folder / "sources.list", folder / f"{key}.partial.tar"
            sources.write_text("\n".join(places) + "\n")
            chosen = ["--variant=apt", f"--include={','.join(packages)}"]
            output("mmdebstrap", "--quiet", *chosen, SUITE, partial, sources)
            partial.rename(kept)
    return kept


def static_program(source: Path, root: Path, name: str) -> Path:
    """Compile one C file statically into a root file system that needs nothing else; return the root."""
    root.mkdir(parents=True, exist_ok=True)
    subprocess.run(["cc", "-Os", "-static", "-o", root / name, source], check=True, capture_output=True)
    return root
