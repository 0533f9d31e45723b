"""Gives tests kubectl on any cluster, our own or another, and waits that fail with the cluster's own words.

The module knows no cluster: the caller gives it the command that runs kubectl.
"""

import json
import os
import shlex
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

READY_SECONDS = 150.0
POLL_SECONDS = 0.2


class ClusterError(Exception):
    """The cluster did not do what was asked; the text has the cluster's own words."""


def wait_until(what: str, holds: Callable[[], bool], timeout_seconds: float = READY_SECONDS) -> None:
    """Return once the condition holds; raise ClusterError if it does not hold in time."""
    deadline = time.monotonic() + timeout_seconds
    while not holds():
        if time.monotonic() > deadline:
            raise ClusterError(f"{what}: not within {timeout_seconds:.0f} s")
        time.sleep(POLL_SECONDS)


class Kubectl:
    """A cluster as its user sees it."""

    def __init__(self, command: Callable[[], Sequence[str]]) -> None:
        self._command = command  # called each time, as the command is known only once the cluster has started

    @classmethod
    def of(cls, kubeconfig: Path) -> "Kubectl":
        """Return the cluster that a kubeconfig leads to, through the machine's own kubectl."""
        return cls(lambda: ["kubectl", f"--kubeconfig={kubeconfig}"])

    def __call__(self, *arguments: str, stdin: bytes | None = None, timeout_seconds: float = 60.0) -> str:
        """Run kubectl and return what it prints; if it fails, raise ClusterError with its message."""
        command = [*self._command(), *arguments]
        done = subprocess.run(command, input=stdin, capture_output=True, timeout=timeout_seconds, check=False)
        if done.returncode:
            raise ClusterError(f"kubectl {' '.join(arguments)}: {done.stderr.decode(errors='replace').strip()}")
        return done.stdout.decode()

    def follow(self, script: str, folder: Path, timeout_seconds: float = 300.0) -> str:
        """Run shell commands in a folder, as a reader of a page runs them, and return what they print.

        In these commands `kubectl` leads to this cluster.
        """
        programs = folder / "bin"
        programs.mkdir(exist_ok=True)
        program, *options = self._command()
        found = shutil.which(program) or program  # a full path: the plain name would find the file written below
        (programs / "kubectl").write_text(f'#!/bin/sh\nexec {shlex.join([found, *options])} "$@"\n')
        (programs / "kubectl").chmod(0o755)
        environment = {**os.environ, "PATH": f"{programs}:{os.environ['PATH']}"}
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", script],
            cwd=folder,
            env=environment,
            capture_output=True,
            text=True,
            timeout=timeout_seconds,
            check=False,
        )
        if done.returncode:
            raise ClusterError(f"{script.strip()}\n{done.stdout}{done.stderr}")
        return done.stdout

    def get(self, kind: str, name: str, namespace: str = "default") -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self("get", kind, name, f"--namespace={namespace}", "--output=json"))
        return found

    def items(self, kind: str, *chosen: str, namespace: str = "default") -> list[dict[str, Any]]:
        """Return the objects of a kind, all of them or those that a selector chooses."""
        listed: dict[str, Any] = json.loads(self("get", kind, f"--namespace={namespace}", *chosen, "--output=json"))
        found: list[dict[str, Any]] = listed["items"]
        return found

    def get_pods(self, *names: str) -> list[dict[str, Any]]:
        """Return pods by their names, in one request."""
        found: dict[str, Any] = json.loads(self("get", "pod", *names, "--output=json"))
        return found["items"] if len(names) > 1 else [found]

    def apply(self, place: Path) -> None:
        """Apply a folder with a kustomization unchanged."""
        self("apply", "-k", str(place))

    def apply_objects(self, *objects: Mapping[str, Any]) -> None:
        """Apply objects given as values."""
        listed = {"apiVersion": "v1", "kind": "List", "items": objects}
        self("apply", "-f", "-", stdin=json.dumps(listed).encode())

    def rolled_out(self, workload: str, namespace: str = "default") -> None:
        """Wait until a workload, such as ``deployment/a``, has only ready pods of its present template."""
        wait = ["rollout", "status", workload, f"--namespace={namespace}", f"--timeout={READY_SECONDS:.0f}s"]
        with self._explained(namespace):
            self(*wait, timeout_seconds=READY_SECONDS + 30)

    def wait_for(
        self, condition: str, *names: str, namespace: str = "default", timeout_seconds: float = READY_SECONDS
    ) -> None:
        """Wait until a condition of ``kubectl wait --for`` holds for the named objects, such as ``pod/a``."""
        wait = ["wait", f"--for={condition}", f"--namespace={namespace}", f"--timeout={timeout_seconds:.0f}s", *names]
        with self._explained(namespace):
            self(*wait, timeout_seconds=timeout_seconds + 30)

    def logs(self, pod: str, *arguments: str, namespace: str = "default") -> str:
        return self("logs", f"--namespace={namespace}", pod, *arguments)

    def execute(self, pod: str, *command: str, container: str | None = None, namespace: str = "default") -> str:
        """Run a command in a container of a running pod and return what it prints."""
        where = [f"--namespace={namespace}", pod, *([f"--container={container}"] if container else [])]
        return self("exec", *where, "--", *command)

    @contextmanager
    def _explained(self, namespace: str) -> Iterator[None]:
        """Add to an error what the cluster says of pods and events."""
        try:
            yield
        except ClusterError as error:
            error.add_note(self("describe", "pods", f"--namespace={namespace}"))
            raise
