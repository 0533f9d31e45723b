"""Builds the image without a registry or a container engine: runs the Containerfile's steps in plain root file systems.

The Containerfile stays the only description of the image. This module knows the forms that the Containerfile uses; any
other form is an error and is never skipped.
"""

import fnmatch
import hashlib
import json
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
"""The script that mounts the machine's resolver and authorities, no more; it runs in a mount namespace of its own, so
that nothing stays mounted."""
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


class ContainerfileError(Exception):
    """A step cannot be run; the text says which step and why."""


@dataclass(frozen=True, slots=True)
class Step:
    """One instruction, its lines joined."""

    word: str
    text: str


@dataclass(slots=True)
class Stage:
    """A stage as far as it was built: its files, and the settings of an image such as environment and user."""

    root: Path
    said: str | None
    """A digest of what the files depend on so far; None: they depend on too much for a result to be kept."""
    environment: dict[str, str] = field(default_factory=lambda: {"PATH": PATH})
    directory: str = "/"
    user: str = ""
    entrypoint: list[str] = field(default_factory=list)

    def inside(self, path: str) -> Path:
        """Return the machine's path of a path inside the stage."""
        return self.root / str(PurePosixPath("/") / self.directory / path).lstrip("/")

    def depend(self, step: Step, *files: Path) -> None:
        """Note that the stage depends on a step and on the files that it copies."""
        if self.said is not None:
            said = hashlib.sha256(f"{self.said}\n{self.directory}\n{self.environment}\n{step.text}\n".encode())
            for file in files:
                said.update(file.read_bytes())
            self.said = said.hexdigest()[:16]


def read_steps(text: str) -> list[Step]:
    """Return the instructions of a Containerfile."""
    lines = [line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    joined = "\n".join(lines).replace("\\\n", "")
    return [Step(word, rest.strip()) for word, _, rest in (line.strip().partition(" ") for line in joined.splitlines())]


def context_files(context: Path) -> Iterator[Path]:
    """Yield what `.dockerignore` lets into the build, as paths relative to the context; links are kept as links.

    The file excludes everything (`*`) but what it names (`!PATH`), and of that excludes each `**/PATTERN`.
    """
    lines = (context / ".dockerignore").read_text(encoding="utf-8").splitlines()
    nothing, *rules = [line for line in lines if line and not line.startswith("#")]
    never = [rule.removeprefix("**/") for rule in rules if rule.startswith("**/")]
    named = [rule.removeprefix("!") for rule in rules if rule.startswith("!")]
    if nothing != "*" or rules != [*(f"!{name}" for name in named), *(f"**/{pattern}" for pattern in never)]:
        raise ContainerfileError(".dockerignore has a rule that is not known here")
    for name in named:
        for path in (context / name, *(context / name).rglob("*")):
            inside = path.relative_to(context)
            ignored = any(fnmatch.fnmatchcase(part, pattern) for part in inside.parts for pattern in never)
            if not ignored and (path.is_symlink() or path.is_file()):
                yield inside


class Build:
    """One run of a Containerfile. `base` returns the root file system of an image, by its name, as a tar archive."""

    def __init__(
        self, context: Path, scratch: Path, base: Callable[[str], Path], passed: Mapping[str, str], kept: Path
    ) -> None:
        self._context = context
        self._scratch = scratch
        self._base = base
        self._passed = dict(passed)
        """Variables that RUN steps get and the image does not keep, such as a package registry's."""
        self._kept = kept
        """The folder for kept results of RUN steps: of those that do not depend on the whole context."""
        self._arguments: dict[str, str] = {}
        self._stages: dict[str, Stage] = {}

    def run(self, text: str) -> Stage:
        """Run all steps and return the last stage. Raises ContainerfileError."""
        stage = Stage(self._scratch, None)
        for step in read_steps(text):
            filled = self._filled(step.text, stage)
            match step.word:
                case "ARG":
                    name, _, value = step.text.partition("=")
                    self._arguments[name] = value
                case "FROM":
                    stage = self._from(*filled.split())
                case "ENV":
                    for word in shlex.split(filled):
                        name, _, value = word.partition("=")
                        stage.environment[name] = value
                case "WORKDIR":
                    stage.directory = str(PurePosixPath(stage.directory) / filled)
                    stage.inside("").mkdir(parents=True, exist_ok=True)
                case "COPY":
                    self._copy(step, stage, *shlex.split(filled))
                case "RUN":
                    self._run(step, stage)
                case "USER":
                    stage.user = step.text
                case "ENTRYPOINT":
                    stage.entrypoint = json.loads(step.text)
                case _:
                    raise ContainerfileError(f"{step.word} is not among what is run here")
        return stage

    def _filled(self, text: str, stage: Stage) -> str:
        known = {**self._arguments, **stage.environment}
        return re.sub(r"\$\{(\w+)\}|\$(\w+)", lambda match: known.get(match[1] or match[2], ""), text)

    def _from(self, image: str, *name: str) -> Stage:
        base, root = self._base(image), self._scratch / f"stage-{len(self._stages)}"
        root.mkdir(parents=True)
        _unpack(base, root)
        stage = Stage(root, base.name)
        self._stages[name[-1] if name else ""] = stage
        return stage

    def _copy(self, step: Step, stage: Stage, *words: str) -> None:
        """Copy a file, all of the context, or a folder of an earlier stage."""
        *options, source, target = words
        place, whole = stage.inside(target), self._context / source
        match [option.split("=", 1) for option in options]:
            case [["--from", name]] if name in self._stages:
                stage.said = None
                place.mkdir(parents=True, exist_ok=True)
                _call("cp", "-a", f"{self._stages[name].root / source.lstrip('/')}/.", place)
            case [] if source == target == ".":
                stage.said = None
                for path in context_files(self._context):
                    (place / path).parent.mkdir(parents=True, exist_ok=True)
                    shutil.copy2(self._context / path, place / path, follow_symlinks=False)
            case [] | [["--chmod", _]] if Path(source) in context_files(self._context):
                stage.depend(step, whole)
                place.parent.mkdir(parents=True, exist_ok=True)
                into = Path(shutil.copy2(whole, place))
                if options:
                    into.chmod(int(options[0].partition("=")[2], 8))
            case _:
                raise ContainerfileError(f"COPY {step.text}: this is not among what is run here")

    def _run(self, step: Step, stage: Stage) -> None:
        stage.depend(step)
        layer = self._kept / f"{stage.said}.tar" if stage.said else None
        if layer and layer.exists():
            layer.touch()
            shutil.rmtree(stage.root)
            stage.root.mkdir()
            _unpack(layer, stage.root)
            return
        resolver = stage.root / "etc/resolv.conf"
        if not resolver.exists():
            resolver.unlink(missing_ok=True)  # a link that leads nowhere
            resolver.touch()
        environment = {**self._arguments, **self._passed, **stage.environment, "HOME": "/root"}
        variables = [f"{name}={value}" for name, value in environment.items()]
        who = [f"--userspec={stage.user}"] if stage.user else []
        script = f"cd {shlex.quote(stage.directory)}\n{step.text}"
        _call(
            *("unshare", "--mount", "--pid", "--fork", "--kill-child", "sh", "-euc", ENTER, "sh", stage.root),
            *(*who, stage.root, "/usr/bin/env", "-i", *variables, "/bin/sh", "-euc", script),
        )
        if layer:
            partial = layer.with_suffix(".partial")
            _call("tar", "--create", "--numeric-owner", "--file", partial, "--directory", stage.root, ".")
            partial.rename(layer)


def _unpack(archive: Path, root: Path) -> None:
    _call("tar", "--extract", "--numeric-owner", "--file", archive, "--directory", root)


def _call(*command: object) -> None:
    done = subprocess.run(
        [str(word) for word in command], capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL
    )
    if done.returncode:
        said = "\n".join((done.stdout + done.stderr).splitlines()[-20:])
        raise ContainerfileError(f"{command[0]} ended with {done.returncode}:\n{said}\n{command[-1]}")
