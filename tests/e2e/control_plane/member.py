"""Handles a node as a part of a cluster: its machine, its name in the cluster, and its started components.

This module owns what is done to one node: kill and restart of its components, its images, its reboot. The cluster
decides which components a node has, and in which order they start.
"""

import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path

import components
from components import Component
from kubectl import ClusterError, wait_until
from node import Node
from programs import Programs

LAST_LINES = 30
REBOOT = """
for process in /proc/[0-9]*; do
  if grep -q -s -e kubepods "$process/cgroup" || grep -q -s -a -e '^[^ ]*containerd-shim' "$process/cmdline"; then
    kill -KILL "${process#/proc/}" 2>/dev/null || true
  fi
done
sleep 1
cut -d' ' -f2 /proc/mounts | grep -e '^/run/containerd' -e '^/var/lib/kubelet' -e '^/run/netns' | sort -r |
  while read -r place; do umount -l "$place"; done
rm -rf /run/containerd /run/netns /run/cni /run/sharepod /run/sharepod-gpus /run/cdi
"""
"""The script of a reboot. As on a machine that goes down, containers and their shims end, and mounts and files in
memory are gone."""


class Member:
    """One node of a cluster."""

    def __init__(self, number: int, programs: Programs, visible: Sequence[Path]) -> None:
        self.number = number
        self.name = components.node_name(number)
        self.node = Node(visible, number, [programs.kubernetes, programs.runtime])
        self._ctr_program = programs.runtime / "ctr"
        self.components: dict[str, Component] = {}

    def start_component(self, component: Component) -> None:
        """Start a component for the first time."""
        self.components[component.name] = component
        self.start(component.name)

    def component_log(self, name: str) -> str:
        """Return the last lines of a component's log."""
        log = self.node.log(name)
        return "\n".join(log.read_text(errors="replace").splitlines()[-LAST_LINES:]) if log.exists() else ""

    def kill(self, name: str) -> None:
        """Kill a component like a crash; return once it is gone."""
        self.node.send(name, signal.SIGKILL)
        wait_until(f"{name} gone", lambda: self.node.look(name).pid is None)

    def start(self, name: str) -> None:
        """Start an ended component. Before kubelet it waits for the runtime, as kubelet would end at once without."""
        if name == "kubelet":
            self.wait_for_runtime()
        self.node.start(name, self.components[name].command)

    def reboot(self) -> None:
        """End what runs on the node, drop what was in its memory, and start it anew; the control plane goes on."""
        for name in ("kubelet", "containerd"):
            self.kill(name)
        done = self.node.run(["sh", "-euc", REBOOT])
        if done.returncode:
            raise ClusterError(f"{self.name} did not go down: {done.stderr.decode(errors='replace').strip()}")
        for name in ("containerd", "kubelet"):
            self.start(name)

    def runs(self, name: str) -> bool:
        """Return True, or raise ClusterError if the component has ended."""
        process = self.node.look(name)
        if process.pid is None:
            raise ClusterError(f"{name} ended with {process.exit_status} on {self.name}")
        return True

    def wait_for_runtime(self) -> None:
        """Return once containerd answers."""
        asks = (self._ctr_program, "version")
        wait_until("containerd answers", lambda: self.runs("containerd") and self.node.run(asks).returncode == 0)

    def import_archive(self, archive: Path) -> None:
        """Import the image of an archive, which the node sees under the same path."""
        self._ctr("images", "import", "--digests=false", str(archive))

    def kill_container(self, identity: str) -> None:
        """Kill the first process of a container without kubelet's knowledge."""
        self._ctr("tasks", "kill", "--signal", "SIGKILL", identity)

    def _ctr(self, *arguments: str) -> subprocess.CompletedProcess[bytes]:
        done = self.node.run([self._ctr_program, "--namespace=k8s.io", *arguments], timeout_seconds=300)
        if done.returncode:
            raise ClusterError(f"ctr {' '.join(arguments)}: {done.stderr.decode(errors='replace').strip()}")
        return done
