"""The Kubernetes servers of the e2e cluster, built from Debian's source package with Debian's Go, kept between runs.

Owns the cache: one folder a source version, Go version and recipe under ``$XDG_CACHE_HOME/sharepod/kubernetes``. The
machine's package lists are read and never changed: the source's own list lives in the build folder. Run as a program it
builds what is missing and prints the folder; a second run is instant.
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
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

RECIPE = 2  # one more whenever what is built, or how, changes: the cache is kept by it
TAGS = "-tags=providerless"  # no cloud's own client libraries, the largest of what there is to compile
SERVERS = ("kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet", "kubectl")
PACKAGES = Path(__file__).with_name("apt-packages.txt")
GO = Path("/usr/lib/go-1.19/bin/go")
EXTENDERS = ("WithPodNominator(nominator),\n\t\tframeworkruntime.", "WithExtenders(extenders),\n\t\tframeworkruntime.")
REFLECT2 = Path("/usr/share/gocode/src/github.com/modern-go/reflect2")
KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
PROGRESS_SECONDS = 20.0


class BuildError(Exception):
    """The servers cannot be built here: what is missing, and the remedy."""


def say(text: str) -> None:
    print(f"[kubernetes] {text}", file=sys.stderr, flush=True)


def output(*command: str | Path, cwd: Path | None = None, env: dict[str, str] | None = None) -> str:
    """Return what a command prints; on failure raise its last words."""
    done = subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, check=False)
    if done.returncode:
        words = (done.stderr.strip() or done.stdout.strip()).splitlines()[-5:]
        raise BuildError(f"{' '.join(map(str, command[:3]))} failed: " + " / ".join(words))
    return done.stdout


def check_packages() -> None:
    """Raise BuildError with the remedy when a package that the cluster needs is not installed."""
    if not shutil.which("apt-cache"):
        raise BuildError("the cluster is made of Debian's packages, and this is no Debian: give another, KUBECONFIG=…")
    named = [line for line in PACKAGES.read_text().splitlines() if line and not line.startswith("#")]
    query = ["dpkg-query", "--show", "--showformat=${Package} ${db:Status-Status}\\n", *named]
    shown = subprocess.run(query, capture_output=True, text=True, check=False).stdout.splitlines()
    if missing := [package for package in named if f"{package} installed" not in shown]:
        raise BuildError(f"the cluster lacks packages: apt-get install --no-install-recommends {' '.join(missing)}")


def source_version() -> str:
    """Return the version of the source package that the machine's package lists offer."""
    shown = output("apt-cache", "show", "--no-all-versions", "kubernetes-client")
    if not (found := re.search(r"^Version: (\S+)$", shown, re.MULTILINE)):
        raise BuildError("the package lists do not know Debian's kubernetes: apt-get update")
    return found[1]


def cache_root() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "sharepod" / "kubernetes"


def cache_folder() -> Path:
    """Return where the servers of this source, this Go and this recipe are kept; the folder need not exist."""
    check_packages()
    go_version = output(GO, "version").split()[2]
    reflect2 = hashlib.sha256(b"".join(path.read_bytes() for path in sorted(REFLECT2.glob("*.go")))).hexdigest()[:8]
    return cache_root() / f"{source_version()}_{go_version}_{reflect2}_{RECIPE}"


def write_private_lists(folder: Path) -> list[str]:
    """Make package lists with sources, from the machine's own places, and return apt's options to use them."""
    targets = output(
        "apt-get", "indextargets", "--format", "$(REPO_URI) $(RELEASE) $(COMPONENT)", "Created-By: Packages"
    )
    places = [line for line in sorted(set(targets.splitlines())) if line.split()[2:] == ["main"]]
    signed = f" [signed-by={KEYRING}]" if KEYRING.exists() else ""
    for part in ("lists/partial", "cache/archives/partial"):
        (folder / part).mkdir(parents=True)
    sources = folder / "sources.list"
    sources.write_text("".join(f"deb-src{signed} {place}\n" for place in places))
    settings = {
        "Dir::Etc::SourceList": sources,
        "Dir::Etc::SourceParts": "/dev/null",
        "Dir::State::Lists": folder / "lists",
        "Dir::Cache": folder / "cache",
        "Acquire::Languages": "none",
        "APT::Sandbox::User": "root",
    }
    return [word for key, value in settings.items() for word in ("-o", f"{key}={value}")]


def fetch_source(folder: Path, version: str) -> Path:
    """Fetch and unpack the source where Go's GOPATH mode looks for it; return its root."""
    folder.mkdir()
    options = write_private_lists(folder)
    output("apt-get", *options, "-qq", "update")
    output("apt-get", *options, "-qq", "source", "--download-only", f"kubernetes={version}", cwd=folder)
    root = folder.parent / "gopath" / "src" / "k8s.io" / "kubernetes"
    root.parent.mkdir(parents=True)
    description = next(folder.glob("*.dsc"))
    output("dpkg-source", "--no-check", "-x", description, root, cwd=folder)
    # The vendored 1.0.1 reads the map iterator of Go before 1.18; Debian's package is the release that reads today's.
    vendored = root / "vendor" / "github.com" / "modern-go" / "reflect2"
    shutil.rmtree(vendored)
    shutil.copytree(REFLECT2, vendored)
    let_extenders_preempt(root / "pkg" / "scheduler" / "factory.go")
    return root


def let_extenders_preempt(factory: Path) -> None:
    """Hand the extenders to kube-scheduler's preemption: 1.20.2 forgets it, and never asks them about victims.

    Kubernetes' issue 102971, mended later, in 1.20 too. A release that has it is left as it is.
    """
    text, (before, missing) = factory.read_text(encoding="utf-8"), EXTENDERS
    if missing.split("(")[0] in text:
        return
    if text.count(before) != 1:
        raise BuildError(f"{factory.name} is not what extenders are to be added to: look at Kubernetes' issue 102971")
    factory.write_text(text.replace(before, before + missing), encoding="utf-8")


def go_environment(build: Path) -> dict[str, str]:
    return {
        **{key: value for key, value in os.environ.items() if not key.startswith("GO")},
        "HOME": str(build),
        "GOPATH": str(build / "gopath"),
        "GOCACHE": str(build / "gocache"),
        "GO111MODULE": "off",
        "CGO_ENABLED": "0",
        "GOFLAGS": "",
    }


def generate_openapi(root: Path, env: dict[str, str]) -> None:
    """Make the one generated package that the source does not carry: it holds the schemas that kubectl checks with."""
    prefix, tag = "k8s.io/kubernetes", "+k8s:openapi-gen="
    packages = set()
    for top in (root / "pkg", root / "staging" / "src" / "k8s.io"):
        for path in top.rglob("*.go"):
            if not path.name.endswith("_test.go") and tag in path.read_text(encoding="utf-8"):
                packages.add(path.parent.relative_to(root).as_posix().replace("staging/src/", "vendor/"))
    inputs = [p for p in sorted(packages) if not re.match(r"vendor/k8s\.io/(code-generator|sample-apiserver)/", p)]
    generator = root.parent / "openapi-gen"
    output(GO, "build", "-o", generator, "./vendor/k8s.io/kube-openapi/cmd/openapi-gen", cwd=root, env=env)
    output(
        generator,
        *("-i", ",".join(f"{prefix}/{package}" for package in inputs)),
        *("-p", f"{prefix}/pkg/generated/openapi", "-O", "zz_generated.openapi"),
        *("-h", root / "vendor/k8s.io/code-generator/hack/boilerplate.go.txt"),
        *("-r", root.parent / "violations"),
        cwd=root,
        env=env,
    )


def version_flags(version: str) -> str:
    """Return linker flags that say which release this is: a kubelet and a kubectl compare it."""
    # Debian's version holds the release that the source really is: 1.20.5+really1.20.2-1.1.
    release = re.sub(r"^.*really", "", version).split("-")[0].split("+")[0]
    major, minor = release.split(".")[:2]
    values = {"gitVersion": f"v{release}", "gitMajor": major, "gitMinor": minor, "gitTreeState": "archive"}
    packages = ("client-go/pkg/version", "component-base/version")
    return " ".join(
        ["-s", "-w", *(f"-X k8s.io/kubernetes/vendor/k8s.io/{p}.{k}={v}" for p in packages for k, v in values.items())]
    )


def compile_servers(root: Path, binaries: Path, version: str, env: dict[str, str]) -> None:
    """Compile all servers at once, so that what they share is compiled once; say how far it is."""
    binaries.mkdir()
    programs = [f"./cmd/{server}" for server in SERVERS]
    command = [str(GO), "build", "-v", TAGS, "-ldflags", version_flags(version), "-o", str(binaries), *programs]
    packages = len(output(GO, "list", "-deps", TAGS, *programs, cwd=root, env=env).splitlines())
    compiled, said = 0, time.monotonic()
    words: list[str] = []
    with subprocess.Popen(command, cwd=root, env=env, stderr=subprocess.PIPE, text=True) as compiler:
        assert compiler.stderr is not None
        for line in compiler.stderr:
            compiled += 1
            words = [*words[-9:], line.strip()]
            if time.monotonic() - said > PROGRESS_SECONDS:
                said = time.monotonic()
                say(f"{compiled} of {packages} packages compiled")
    if compiler.returncode:
        raise BuildError("Kubernetes does not compile: " + " / ".join(words))


@contextmanager
def locked(root: Path) -> Iterator[None]:
    """Let one builder at a time at the cache: a second one waits and finds it done."""
    root.mkdir(parents=True, exist_ok=True)
    with (root / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def build() -> Path:
    """Return the folder with the servers, built first where the cache has none. Raises BuildError."""
    folder = cache_folder()
    with locked(folder.parent):
        if folder.is_dir():
            return folder
        for interrupted in folder.parent.glob("build-*"):
            shutil.rmtree(interrupted)
        version, began = source_version(), time.monotonic()
        with tempfile.TemporaryDirectory(prefix="build-", dir=folder.parent) as name:
            place = Path(name)
            say(f"fetching Debian's source {version}")
            root = fetch_source(place / "source", version)
            env = go_environment(place)
            say("generating the schemas")
            generate_openapi(root, env)
            say("compiling (once, some minutes)")
            compile_servers(root, place / "binaries", version, env)
            (place / "binaries").rename(folder)
        say(f"built in {time.monotonic() - began:.0f} s")
    return folder


def main() -> int:
    try:
        print(build())
    except BuildError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
