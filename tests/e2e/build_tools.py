"""Builds the programs of the e2e cluster from their Go modules with the Go on the path, and keeps them between runs.

It owns the cache: ``$XDG_CACHE_HOME/sharepod/tools`` has one folder per module of ``tools/``. The folder's name holds a
digest of everything that the binaries depend on: ``go.mod``, ``go.sum``, our own Go sources, the version of Go and the
flags. Modules and build objects are in a temporary folder that is removed when the build ends. Run as a program, it
builds what is missing and prints the folders; a second run is instant. With ``--check`` it only says what the build
lacks.
"""

import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

MODULES = Path(__file__).with_name("tools")
PACKAGES = Path(__file__).with_name("apt-packages.txt")
GO_NEEDED = (1, 26, 6)  # containerd 2.4 says so in its go.mod
PROGRESS_SECONDS = 20.0
KEPT = 2  # how many builds of a module the cache keeps
KUBERNETES = "k8s.io/kubernetes"


class BuildError(Exception):
    """The programs cannot be built here; the text says what is missing, and the remedy."""


@dataclass(frozen=True, slots=True)
class Module:
    """A folder of ``tools/``: its programs, and how they are compiled.

    Attributes:
        name: The folder.
        programs: Each program's name and its package.
        source: The module that gives the binaries the version which they print.
        version_variables: Where the linker puts that version, ``%s`` for it; programs compare it.
        cgo: Whether C is compiled too.
        tags: Go's build tags.
        copied: A folder of the source that is kept beside the binaries, or "".
    """

    name: str
    programs: tuple[tuple[str, str], ...]
    source: str
    version_variables: tuple[str, ...] = ()
    cgo: bool = False
    tags: str = ""
    copied: str = ""

    @property
    def folder(self) -> Path:
        return MODULES / self.name

    @property
    def version(self) -> str:
        """Return the version that ``go.mod`` pins, as ``v1.37.2``."""
        return self.pinned(self.source)

    def pinned(self, path: str) -> str:
        """Return the version of a module that ``go.mod`` requires."""
        found = re.search(rf"^\s*(?:require )?{re.escape(path)} (v\S+)", self._text("go.mod"), re.MULTILINE)
        assert found, f"{self.name} does not require {path}"
        return found[1]

    def linker_flags(self) -> str:
        return " ".join(["-s", "-w", *(f"-X {variable % self.version}" for variable in self.version_variables)])

    def digest(self, go: str) -> str:
        """Return a digest of what the binaries depend on."""
        said = repr((go, self.programs, self.linker_flags(), self.cgo, self.tags, self.copied))
        own = "".join(path.read_text(encoding="utf-8") for path in sorted(self.folder.rglob("*.go")))
        return hashlib.sha256((self._text("go.mod") + self._text("go.sum") + said + own).encode()).hexdigest()[:12]

    def _text(self, name: str) -> str:
        return (self.folder / name).read_text(encoding="utf-8")


def kubernetes(minor: int) -> Module:
    """Return the module of the servers of Kubernetes 1.``minor``."""
    programs = ("kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet", "kubectl")
    packages = ("k8s.io/component-base/version", "k8s.io/client-go/pkg/version")
    # Without these values the programs call themselves v0.0.0, which clients take for an old release.
    values = (
        *("gitVersion=%s", "gitMajor=1%.0s", f"gitMinor={minor}%.0s", "gitTreeState=archive%.0s"),
        "buildDate=1970-01-01T00:00:00Z%.0s",
    )
    return Module(
        f"kubernetes-1.{minor}",
        tuple((name, f"{KUBERNETES}/cmd/{name}") for name in programs),
        KUBERNETES,
        tuple(f"{package}.{value}" for package in packages for value in values),
    )


CONTAINERD = "github.com/containerd/containerd/v2"
PLUGINS = "github.com/containernetworking/plugins/plugins"
NEWEST, OLDEST = kubernetes(37), kubernetes(34)
RUNTIME = Module(
    "runtime",
    (
        ("etcd", "go.etcd.io/etcd/server/v3"),
        *((name, f"{CONTAINERD}/cmd/{name}") for name in ("containerd", "containerd-shim-runc-v2", "ctr")),
        *(
            (name.rpartition("/")[2], f"{PLUGINS}/{name}")
            for name in ("main/bridge", "main/loopback", "ipam/host-local")
        ),
        ("crictl", "sigs.k8s.io/cri-tools/cmd/crictl"),
        ("runc", "github.com/opencontainers/runc"),
    ),
    CONTAINERD,
    (f"{CONTAINERD}/version.Version=%s",),
    cgo=True,  # only runc needs it: without seccomp, which is C, runc refuses every pod
    tags="seccomp",
)
KUEUE = Module(
    "kueue",
    (("manager", "sigs.k8s.io/kueue/cmd/kueue"),),
    "sigs.k8s.io/kueue",
    ("sigs.k8s.io/kueue/pkg/version.GitVersion=%s",),
    copied="config",
)
NVIDIA = Module(
    "nvidia",
    (
        ("nvidia-ctk", "github.com/NVIDIA/nvidia-container-toolkit/cmd/nvidia-ctk"),
        ("nvml-list", "sharepod.io/tests/e2e/tools/nvidia/nvml-list"),
    ),
    "github.com/NVIDIA/nvidia-container-toolkit",
    ("github.com/NVIDIA/nvidia-container-toolkit/internal/info.version=%s",),
    cgo=True,  # NVIDIA's bindings load the library from C
)
ALL = (NEWEST, RUNTIME, OLDEST, KUEUE, NVIDIA)


def say(text: str) -> None:
    print(f"[e2e] {text}", file=sys.stderr, flush=True)


def output(*command: str | Path, cwd: Path | None = None, env: dict[str, str] | None = None) -> str:
    """Return what a command prints; on failure raise an error with its last lines."""
    done = subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, check=False)
    if done.returncode:
        words = (done.stderr.strip() or done.stdout.strip()).splitlines()[-5:]
        raise BuildError(f"{' '.join(map(str, command[:3]))} failed: " + " / ".join(words))
    return done.stdout


def check_packages() -> None:
    """Raise BuildError with the remedy when a package that the cluster needs is not installed."""
    if not shutil.which("dpkg-query"):
        raise BuildError("the cluster needs Debian's packages, and this is no Debian: give another, KUBECONFIG=…")
    named = [line for line in PACKAGES.read_text().splitlines() if line and not line.startswith("#")]
    query = ["dpkg-query", "--show", "--showformat=${Package} ${db:Status-Status}\\n", *named]
    shown = subprocess.run(query, capture_output=True, text=True, check=False).stdout.splitlines()
    if missing := [package for package in named if f"{package} installed" not in shown]:
        raise BuildError(f"the cluster lacks packages: apt-get install --no-install-recommends {' '.join(missing)}")


def go_version() -> str:
    """Return the version of the Go on the path. Raises BuildError when there is none or it is too old."""
    needed = ".".join(map(str, GO_NEEDED))
    if not shutil.which("go"):
        raise BuildError(f"Go {needed} or later builds the cluster, and PATH has none: install it, or KUBECONFIG=…")
    # Ask the installed toolchain, never one that Go would fetch.
    said = output("go", "env", "GOVERSION", env={**os.environ, "GOTOOLCHAIN": "local"}).strip()
    numbers = tuple(int(number) for number in re.findall(r"\d+", said)[:3])
    if numbers < GO_NEEDED:
        raise BuildError(f"Go {needed} or later builds the cluster, and PATH has {said}: install a newer one")
    return said


def cache_root() -> Path:
    """Return the folder of everything that the e2e tests keep between runs."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "sharepod"


def cache_folder(module: Module) -> Path:
    """Return the folder for a module's programs; it need not exist."""
    return cache_root() / "tools" / f"{module.name}_{module.version}_{module.digest(go_version())}"


def go_environment(place: Path, module: Module) -> dict[str, str]:
    return {
        **os.environ,
        "GOPATH": str(place / "gopath"),
        "GOMODCACHE": str(place / "modules"),
        "GOCACHE": str(place / "objects"),
        "GOTOOLCHAIN": "local",
        "GOWORK": "off",
        "GOFLAGS": "-buildvcs=false -mod=readonly -modcacherw -trimpath",
        "CGO_ENABLED": str(int(module.cgo)),
    }


def build_module(module: Module, place: Path) -> Path:
    """Compile all programs of a module in one call, so that common packages are compiled once; return their folder."""
    made = place / module.name
    made.mkdir()
    env = go_environment(place, module)
    say(f"{module.name} {module.version}: fetching modules")
    output("go", "mod", "download", cwd=module.folder, env=env)
    tags, programs = f"-tags={module.tags}", [package for _, package in module.programs]
    packages = len(output("go", "list", tags, "-deps", *programs, cwd=module.folder, env=env).splitlines())
    command = ["go", "build", "-v", tags, "-ldflags", module.linker_flags(), "-o", f"{made}/", *programs]
    compile_packages(command, module, env, packages)
    for name, package in module.programs:
        # Go names a program after its package's last word, or after the word before it if the last is a version.
        words = [word for word in package.split("/") if not re.fullmatch(r"v\d+", word)]
        (made / words[-1]).rename(made / name)
    if module.copied:
        source = output("go", "list", "-m", "-f", "{{.Dir}}", module.source, cwd=module.folder, env=env).strip()
        shutil.copytree(Path(source) / module.copied, made / module.copied)
    return made


def compile_packages(command: Sequence[str], module: Module, env: dict[str, str], packages: int) -> None:
    """Run the compiler and print its progress, which shows from the packages that it names."""
    compiled, said = 0, time.monotonic()
    words: list[str] = []
    with subprocess.Popen(command, cwd=module.folder, env=env, stderr=subprocess.PIPE, text=True) as compiler:
        assert compiler.stderr is not None
        for line in compiler.stderr:
            compiled += 1
            words = [*words[-9:], line.strip()]
            if time.monotonic() - said > PROGRESS_SECONDS:
                said = time.monotonic()
                say(f"{module.name}: {compiled} of {packages} packages compiled")
    if compiler.returncode:
        raise BuildError(f"{module.name} does not compile: " + " / ".join(words))


@contextmanager
def locked(root: Path) -> Iterator[None]:
    """Lock the cache for one builder at a time; a second builder waits and finds the work done."""
    root.mkdir(parents=True, exist_ok=True)
    with (root / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def build(*modules: Module) -> list[Path]:
    """Return the folders with the modules' programs; build those that the cache lacks. Raises BuildError."""
    check_packages()
    folders = [cache_folder(module) for module in modules]
    root = cache_root() / "tools"
    if all(folder.is_dir() for folder in folders):
        for folder in folders:
            os.utime(folder)  # a folder in use must not count as old
        return folders  # without the lock, as another process may build other modules for minutes
    with locked(root):
        for interrupted in root.glob("build-*"):
            shutil.rmtree(interrupted)
        with tempfile.TemporaryDirectory(prefix="build-", dir=root) as place:
            for module, folder in zip(modules, folders, strict=True):
                if not folder.is_dir():
                    began = time.monotonic()
                    build_module(module, Path(place)).rename(folder)
                    say(f"{module.name} {module.version}: built in {time.monotonic() - began:.0f} s")
                    remove_older(root, module)
    return folders


def remove_older(root: Path, module: Module) -> None:
    """Remove all but a module's newest builds; it keeps two as checkouts of two versions may share the cache."""
    kept = sorted(root.glob(f"{module.name}_*"), key=lambda folder: folder.stat().st_mtime)
    for folder in kept[:-KEPT]:
        shutil.rmtree(folder)


def main() -> int:
    try:
        if sys.argv[1:] == ["--check"]:
            check_packages()
            go_version()
            return 0
        for folder in build(*ALL):
            print(folder)
    except BuildError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
