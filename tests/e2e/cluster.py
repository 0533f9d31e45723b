"""A Kubernetes cluster of one node for a test: ``with Cluster(servers) as cluster``.

Owns the order in which the components start and what it means that the cluster is ready. The node that carries it owns
what must not stay behind; the components' settings are ``components``'. What a test asks of any cluster is in
``kubectl``, so that the same tests run against another; here is what only a cluster of ours can do.
"""

import signal
import subprocess
from pathlib import Path
from types import TracebackType
from typing import Self

import components
from build_kubernetes import cache_root
from certificates import Authority
from components import Component
from image import Image, static_program, write_image
from kubectl import ClusterError, Kubectl, wait_until
from node import Node

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
"""As a machine that goes down: containers and their shims end, mounts and files in memory are gone."""


class Cluster:
    """One cluster, from its start to its end."""

    def __init__(self, servers: Path) -> None:
        self.servers = servers.resolve()
        (images := cache_root().with_name("images")).mkdir(parents=True, exist_ok=True)
        self.node = Node(visible=[servers, images])
        self.components: dict[str, Component] = {}
        self.kubectl = Kubectl(self._run_kubectl)

    def __enter__(self) -> Self:
        self.node.__enter__()
        try:
            self._start()
        except BaseException as error:
            for name in self.components:
                error.add_note(f"--- {name}\n{self.component_log(name)}")
            self.node.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.node.stop()

    def import_image(self, image: Image, root: Path) -> None:
        """Make an image of a root file system known to the node; pods use it with ``imagePullPolicy: Never``."""
        archive = write_image(image, root, self.node.state / "image.tar")
        self.import_archive(archive)
        archive.unlink()

    def import_archive(self, archive: Path) -> None:
        """Make the image of an archive known to the node, which sees the file under the same path."""
        self._ctr("images", "import", "--digests=false", str(archive))

    def component_log(self, name: str) -> str:
        """Return the last lines that a component wrote."""
        log = self.node.log(name)
        return "\n".join(log.read_text(errors="replace").splitlines()[-LAST_LINES:]) if log.exists() else ""

    def kill(self, name: str) -> None:
        """Kill a component, as a crash would end it, and return once it is gone."""
        self.node.send(name, signal.SIGKILL)
        wait_until(f"{name} gone", lambda: self.node.look(name).pid is None)

    def start(self, name: str) -> None:
        """Start a component that was killed or has ended."""
        self.node.start(name, self.components[name].command)

    def restart(self, name: str) -> None:
        """End a component in order and start it anew."""
        self.node.send(name, signal.SIGTERM)
        wait_until(f"{name} ended", lambda: self.node.look(name).pid is None)
        self.start(name)

    def reboot(self) -> None:
        """End what runs on the node, forget what was in its memory, and start it anew; its control plane stays."""
        for name in ("kubelet", "containerd"):
            self.kill(name)
        done = self.node.run(["sh", "-euc", REBOOT])
        if done.returncode:
            raise ClusterError(f"the node did not go down: {done.stderr.decode(errors='replace').strip()}")
        for name in ("containerd", "kubelet"):
            self.start(name)

    def kill_container(self, pod: str, container: str, namespace: str = "default") -> None:
        """Kill the first process of a container behind the kubelet's back."""
        statuses = self.kubectl.get("pod", pod, namespace)["status"]["containerStatuses"]
        identity = next(s["containerID"] for s in statuses if s["name"] == container).removeprefix("containerd://")
        self._ctr("tasks", "kill", "--signal", "SIGKILL", identity)

    def node_is_ready(self) -> bool:
        try:
            conditions = self.kubectl.get("node", components.NODE_NAME)["status"]["conditions"]
        except ClusterError:
            return False
        return any(c["type"] == "Ready" and c["status"] == "True" for c in conditions)

    def _run_kubectl(
        self, arguments: tuple[str, ...], stdin: bytes | None, timeout_seconds: float
    ) -> subprocess.CompletedProcess[bytes]:
        state = self.node.state
        ours = [f"--kubeconfig={state / 'admin.kubeconfig'}", f"--cache-dir={state / 'kubectl'}"]
        # Its files are the machine's: manifests lie in the checkout.
        return self.node.run(
            [self.servers / "kubectl", *ours, *arguments],
            namespaces=["--net"],
            stdin=stdin,
            timeout_seconds=timeout_seconds,
        )

    def _start(self) -> None:
        state, servers = self.node.state, self.servers
        authority = Authority(state / "keys")
        access = {
            name: components.kubeconfig(state / f"{name}.kubeconfig", authority, name, subject)
            for name, subject in (
                ("admin", "/O=system:masters/CN=admin"),
                ("kube-controller-manager", "/CN=system:kube-controller-manager"),
                ("kube-scheduler", "/CN=system:kube-scheduler"),
                ("kubelet", f"/O=system:nodes/CN=system:node:{components.NODE_NAME}"),
            )
        }
        self._start_component(components.etcd("/run/etcd"))
        self._start_component(components.containerd(state / "containerd.toml", state / "networks"))
        self._start_component(components.api_server(servers, authority))
        wait_until("containerd answers", lambda: self._answers("containerd", "ctr", "version"))
        root = static_program(Path(__file__).with_name("pause.c"), state / "pause", "pause")
        self.import_image(Image(components.PAUSE_IMAGE, ["/pause"]), root)
        wait_until("the API server is ready", self._api_is_ready)
        (self.node.root / components.STATIC_PODS.lstrip("/")).mkdir(parents=True)
        name = "kube-controller-manager"
        self._start_component(components.controller_manager(servers, authority, access[name]))
        self._start_component(components.scheduler(servers, access["kube-scheduler"]))
        self._start_component(components.kubelet(servers, authority, access["kubelet"], state / "kubelet.json"))
        wait_until("the node is ready", lambda: self._runs("kubelet") and self.node_is_ready())
        wait_until("the default service account exists", self._pods_may_be_made)

    def _start_component(self, component: Component) -> None:
        self.components[component.name] = component
        self.start(component.name)

    def _runs(self, name: str) -> bool:
        process = self.node.look(name)
        if process.pid is None:
            raise ClusterError(f"{name} ended with {process.exit_status}")
        return True

    def _answers(self, component: str, *command: str) -> bool:
        return self._runs(component) and self.node.run(command).returncode == 0

    def _api_is_ready(self) -> bool:
        self._runs("etcd")
        self._runs("kube-apiserver")
        try:
            return self.kubectl("get", "--raw=/readyz") == "ok"
        except ClusterError:
            return False

    def _pods_may_be_made(self) -> bool:
        try:
            return bool(self.kubectl.get("serviceaccount", "default").get("secrets"))
        except ClusterError:
            return False

    def _ctr(self, *arguments: str) -> subprocess.CompletedProcess[bytes]:
        done = self.node.run(["ctr", "--namespace=k8s.io", *arguments], timeout_seconds=300)
        if done.returncode:
            raise ClusterError(f"ctr {' '.join(arguments)}: {done.stderr.decode(errors='replace').strip()}")
        return done
