"""Runs the steps of a Containerfile in plain root file systems: an image without a registry or a container engine.

The Containerfile stays the only description of the image. What it may use is what `Build` has a method for; anything
else is an error, never skipped.
"""

import fnmatch
import hashlib
import json
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

ENTER = """
root=$1; shift
mount -t proc proc "$root/proc"
mount --rbind /dev "$root/dev"
for file in /etc/resolv.conf /etc/ssl/certs/ca-certificates.crt; do
  if [ -e "$file" ] && [ -e "$root$file" ]; then mount --bind "$file" "$root$file"; fi
done
exec chroot "$@"
"""
"""In a mount namespace of its own, so that nothing stays mounted: the machine's resolver and authorities, no more."""
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


class ContainerfileError(Exception):
    """A line cannot be run; the text says which and why."""


@dataclass(frozen=True, slots=True)
class Step:
    """One instruction, its lines joined."""

    word: str
    text: str
    line: int


@dataclass(slots=True)
class Stage:
    """A stage as far as it was built: its files, and what an image says of itself."""

    root: Path
    environment: dict[str, str] = field(default_factory=lambda: {"PATH": PATH})
    directory: str = "/"
    user: str = ""
    entrypoint: list[str] = field(default_factory=list)
    said: str | None = None
    """What the files depend on so far; None: on too much for them to be kept."""


def read_steps(text: str) -> list[Step]:
    """Return the instructions of a Containerfile. Raises ContainerfileError."""
    found: list[Step] = []
    pending, begin = "", 0
    for number, line in enumerate(text.splitlines(), 1):
        if line.lstrip().startswith("#") or not (line.strip() or pending):
            continue
        begin = begin if pending else number
        pending += line.rstrip("\\") if line.endswith("\\") else line
        if line.endswith("\\"):
            continue
        word, _, rest = pending.strip().partition(" ")
        if word != word.upper() or not rest.strip():
            raise ContainerfileError(f"line {begin}: {pending.strip()!r} is no instruction")
        found.append(Step(word, rest.strip(), begin))
        pending = ""
    if pending:
        raise ContainerfileError(f"line {begin}: the last instruction does not end")
    return found


def context_files(context: Path) -> Iterator[Path]:
    """Yield what `.dockerignore` lets into the build, as paths relative to the context; links are kept as links."""
    path = context / ".dockerignore"
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    rules = [line.strip() for line in lines if line.strip() and not line.startswith("#")]
    for directory, names, files in os.walk(context):
        here = Path(directory).relative_to(context)
        links = [name for name in names if (context / here / name).is_symlink()]
        names[:] = [
            name
            for name in names
            if name not in links and (not _is_ignored(rules, here / name) or _may_hold(rules, here / name))
        ]
        for name in (*files, *links):
            if not _is_ignored(rules, here / name):
                yield here / name


def _is_ignored(rules: list[str], path: Path) -> bool:
    ignored = False
    for rule in rules:
        pattern = rule.removeprefix("!").strip("/")
        if any(_matches(pattern, part) for part in (path, *path.parents[:-1])):
            ignored = not rule.startswith("!")
    return ignored


def _matches(pattern: str, path: Path) -> bool:
    if pattern.startswith("**/"):
        return fnmatch.fnmatchcase(path.name, pattern.removeprefix("**/"))
    return len(PurePosixPath(pattern).parts) == len(path.parts) and fnmatch.fnmatchcase(str(path), pattern)


def _may_hold(rules: list[str], path: Path) -> bool:
    return any(rule.startswith(f"!{path}/") for rule in rules)


class Build:
    """One run of a Containerfile. `base` returns the root file system of an image's name, a tar archive."""

    def __init__(
        self,
        context: Path,
        scratch: Path,
        base: Callable[[str], Path],
        passed: Mapping[str, str] | None = None,
        kept: Path | None = None,
    ) -> None:
        self._context = context
        self._scratch = scratch
        self._base = base
        self._passed = dict(passed or {})
        """Variables of RUN steps that are not in the image, such as a package registry's."""
        self._kept = kept
        """Where the results of RUN steps are kept that do not depend on the whole context."""
        self._arguments: dict[str, str] = {}
        self._stages: dict[str, Stage] = {}
        self._stage: Stage | None = None

    def run(self, text: str, arguments: Mapping[str, str] | None = None) -> Stage:
        """Run all steps and return the last stage. Raises ContainerfileError."""
        for step in read_steps(text):
            method = {
                "ARG": self._arg, "FROM": self._from, "ENV": self._env, "WORKDIR": self._workdir, "COPY": self._copy,
                "RUN": self._run, "USER": self._user, "ENTRYPOINT": self._entrypoint,
            }.get(step.word)  # fmt: skip
            if method is None:
                raise ContainerfileError(f"line {step.line}: {step.word} is not among what is run here")
            if step.word == "ARG":
                self._arg(step, arguments or {})
            else:
                method(step)
        return self._current()

    def _current(self) -> Stage:
        if self._stage is None:
            raise ContainerfileError("there is no FROM")
        return self._stage

    def _filled(self, text: str) -> str:
        known = {**self._arguments, **(self._stage.environment if self._stage else {})}
        return re.sub(r"\$\{(\w+)\}|\$(\w+)", lambda match: known.get(match[1] or match[2], ""), text)

    def _arg(self, step: Step, given: Mapping[str, str] | None = None) -> None:
        name, _, default = step.text.partition("=")
        self._arguments[name] = (given or {}).get(name, default)

    def _from(self, step: Step) -> None:
        image, *rest = self._filled(step.text).split()
        name = rest[1] if len(rest) == 2 and rest[0].upper() == "AS" else str(len(self._stages))
        root = self._scratch / f"stage-{len(self._stages)}"
        root.mkdir(parents=True)
        if image in self._stages:
            before = self._stages[image]
            _call("cp", "-a", f"{before.root}/.", root)
            self._stage = Stage(root, dict(before.environment), before.directory, before.user, before.entrypoint)
        else:
            base = self._base(image)
            _unpack(base, root)
            self._stage = Stage(root, said=base.name)
        self._stages[name] = self._stage

    def _env(self, step: Step) -> None:
        for word in shlex.split(self._filled(step.text)):
            name, equals, value = word.partition("=")
            if not equals:
                raise ContainerfileError(f"line {step.line}: write ENV NAME=value")
            self._current().environment[name] = value

    def _workdir(self, step: Step) -> None:
        stage = self._current()
        stage.directory = str(PurePosixPath(stage.directory) / self._filled(step.text))
        self._inside(stage.directory).mkdir(parents=True, exist_ok=True)

    def _user(self, step: Step) -> None:
        self._current().user = step.text

    def _entrypoint(self, step: Step) -> None:
        self._current().entrypoint = json.loads(step.text)

    def _inside(self, path: str) -> Path:
        stage = self._current()
        return stage.root / str(PurePosixPath("/") / stage.directory / path).lstrip("/")

    def _copy(self, step: Step) -> None:
        words = shlex.split(self._filled(step.text))
        options = dict(word.removeprefix("--").split("=", 1) for word in words if word.startswith("--"))
        *sources, target = [word for word in words if not word.startswith("--")]
        files = [self._context / source for source in sources]
        self._depend(step, None if "from" in options or not all(file.is_file() for file in files) else files)
        place = self._inside(target)
        if set(options) - {"from", "chmod"}:
            raise ContainerfileError(f"line {step.line}: of COPY's options only --from and --chmod are run here")
        for source in sources:
            if "from" in options:
                place.mkdir(parents=True, exist_ok=True)
                _call("cp", "-a", f"{self._stages[options['from']].root / source.lstrip('/')}/.", place)
                continue
            wanted = [path for path in context_files(self._context) if Path(source) in (path, *path.parents)]
            if not wanted:
                raise ContainerfileError(f"line {step.line}: {source} is not in the build's context")
            for path in wanted:
                whole = self._context / source
                into = place / path.relative_to(source) if whole.is_dir() else place
                if whole.is_file() and (target.endswith("/") or place.is_dir()):
                    into = place / path.name
                into.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(self._context / path, into, follow_symlinks=False)
                if "chmod" in options:
                    into.chmod(int(options["chmod"], 8))

    def _depend(self, step: Step, files: list[Path] | None) -> None:
        """Note that the stage depends on a step and on the files that it copies; None: on more than is looked at."""
        stage = self._current()
        if stage.said is None or files is None:
            stage.said = None
            return
        said = hashlib.sha256(f"{stage.said}\n{stage.directory}\n{stage.environment}\n{step.text}\n".encode())
        for file in files:
            said.update(file.read_bytes())
        stage.said = said.hexdigest()[:16]

    def _run(self, step: Step) -> None:
        stage = self._current()
        self._depend(step, [])
        layer = self._kept / f"{stage.said}.tar" if self._kept and stage.said else None
        if layer and layer.exists():
            layer.touch()
            shutil.rmtree(stage.root)
            stage.root.mkdir()
            _unpack(layer, stage.root)
            return
        self._run_anew(step, stage)
        if layer:
            partial = layer.with_suffix(".partial")
            _call("tar", "--create", "--numeric-owner", "--file", partial, "--directory", stage.root, ".")
            partial.rename(layer)

    def _run_anew(self, step: Step, stage: Stage) -> None:
        for name in ("etc/resolv.conf", "etc/ssl/certs/ca-certificates.crt"):
            place = stage.root / name
            if name == "etc/resolv.conf" and not place.exists():
                place.unlink(missing_ok=True)  # a link that leads nowhere
                place.touch()
        environment = {**self._arguments, **self._passed, **stage.environment, "HOME": "/root"}
        variables = [f"{name}={value}" for name, value in environment.items()]
        who = [f"--userspec={stage.user}"] if stage.user else []
        script = f"cd {shlex.quote(stage.directory)}\n{step.text}"
        try:
            _call(
                *("unshare", "--mount", "--pid", "--fork", "--kill-child", "sh", "-euc", ENTER, "sh", stage.root),
                *(*who, stage.root, "/usr/bin/env", "-i", *variables, "/bin/sh", "-euc", script),
            )
        except ContainerfileError as error:
            raise ContainerfileError(f"line {step.line}: {error}") from None


def _unpack(archive: Path, root: Path) -> None:
    _call("tar", "--extract", "--numeric-owner", "--file", archive, "--directory", root)


def _call(*command: object) -> None:
    done = subprocess.run(
        [str(word) for word in command], capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL
    )
    if done.returncode:
        said = "\n".join((done.stdout + done.stderr).splitlines()[-20:])
        raise ContainerfileError(f"{command[0]} ended with {done.returncode}:\n{said}")
