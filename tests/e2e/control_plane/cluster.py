"""Runs a Kubernetes cluster of one or several nodes for a test: ``with Cluster(programs) as cluster``.

This module owns the order in which the components start, and what it means that the cluster is ready. The control
plane is on the first node. The nodes own what must not stay behind; the components' settings are in ``components``.
What a test asks of any cluster is in ``kubectl``, so that the same tests run against another cluster. This module has
what only our own cluster can do, and ``member`` what is done to one of its nodes.
"""

import shutil
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Self

import components
from build_tools import cache_root
from certificates import Authority
from image import Image, static_program, write_image
from kubectl import ClusterError, Kubectl, wait_until
from member import Member
from node import Node
from programs import Programs

MOUNTED_BY_PODS = {"serviceaccount": "default", "configmap": "kube-root-ca.crt"}


class Cluster:
    """One cluster, from its start to its end."""

    def __init__(self, programs: Programs, nodes: int = 1) -> None:
        self.programs = programs
        (images := cache_root() / "images").mkdir(parents=True, exist_ok=True)
        first = Member(1, programs, [images])
        self.shared = first.node.state / "shared"  # keys and images that every node sees
        others = [Member(number, programs, [images, self.shared]) for number in range(2, nodes + 1)]
        self.members = [first, *others]
        self.kubectl = Kubectl(self._kubectl_command)
        self._nodes = ExitStack()

    def __enter__(self) -> Self:
        with ExitStack() as nodes:
            for member in self.members:
                nodes.enter_context(member.node)
                if member.number == 1:
                    self.shared.mkdir()
                else:
                    member.node.join(self.node)
            try:
                self._start()
            except BaseException as error:
                for member in self.members:
                    for name in member.components:
                        error.add_note(f"--- {name} of {member.name}\n{member.component_log(name)}")
                raise
            self._nodes = nodes.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._nodes.close()

    @property
    def first(self) -> Member:
        """Return the first node, which has the control plane."""
        return self.members[0]

    @property
    def node(self) -> Node:
        """Return the first node's machine."""
        return self.first.node

    def member(self, name: str) -> Member:
        """Return a node by its name."""
        return next(member for member in self.members if member.name == name)

    def import_image(self, image: Image, root: Path) -> None:
        """Make an image from a root file system and import it on all nodes, for ``imagePullPolicy: Never``."""
        archive = write_image(image, root, self.shared / "image.tar")
        self.import_archive(archive)
        archive.unlink()

    def import_archive(self, archive: Path) -> None:
        """Import the image of an archive on all nodes, which see the file under the same path."""
        with ThreadPoolExecutor(len(self.members)) as at_once:
            list(at_once.map(lambda member: member.import_archive(archive), self.members))

    def kill_container(self, pod: str, container: str, namespace: str = "default") -> None:
        """Kill the first process of a container without kubelet's knowledge, on whichever node it is."""
        found = self.kubectl.get("pod", pod, namespace)
        statuses = found["status"]["containerStatuses"]
        identity = next(s["containerID"] for s in statuses if s["name"] == container).removeprefix("containerd://")
        self.member(found["spec"]["nodeName"]).kill_container(identity)

    def node_is_ready(self, name: str = components.NODE_NAME) -> bool:
        """Tell whether a node takes pods, by the API server."""
        try:
            conditions = self.kubectl.get("node", name)["status"]["conditions"]
        except ClusterError:
            return False
        return any(c["type"] == "Ready" and c["status"] == "True" for c in conditions)

    def _kubectl_command(self) -> list[str]:
        """Return the command of kubectl. It runs with the machine's files, as manifests lie in the checkout."""
        state = self.node.state
        where = ["nsenter", f"--target={self.node.pid}", "--net", "--", str(self.programs.kubernetes / "kubectl")]
        return [*where, f"--kubeconfig={state / 'admin.kubeconfig'}", f"--cache-dir={state / 'kubectl'}"]

    def _start(self) -> None:
        state, programs, first = self.node.state, self.programs, self.first
        authority = Authority(self.shared / "keys")
        access = {
            name: components.kubeconfig(state / f"{name}.kubeconfig", authority, name, subject)
            for name, subject in (
                ("admin", "/O=system:masters/CN=admin"),
                ("kube-controller-manager", "/CN=system:kube-controller-manager"),
                ("kube-scheduler", "/CN=system:kube-scheduler"),
            )
        }
        first.start_component(components.etcd(programs, "/run/etcd"))
        for member in self.members:
            own = member.node.state
            member.start_component(
                components.containerd(programs, own / "containerd.toml", own / "networks", member.number)
            )
        first.start_component(components.api_server(programs, authority))
        for member in self.members:
            member.wait_for_runtime()
        root = static_program(Path(__file__).with_name("pause.c"), state / "pause", "pause")
        self.import_image(Image(components.PAUSE_IMAGE, ["/pause"]), root)
        wait_until("the API server is ready", self._api_is_ready)
        name = "kube-controller-manager"
        first.start_component(components.controller_manager(programs, authority, access[name]))
        first.start_component(components.scheduler(programs, access["kube-scheduler"]))
        name_server = shutil.copy(Path(__file__).with_name("name_server.py"), state)
        first.start_component(components.name_server(name_server, authority))
        for member in self.members:
            self._start_kubelet(member, authority)
        for member in self.members:
            wait_until(f"{member.name} is ready", lambda member=member: self._is_ready(member))
        wait_until("pods may be made", self._pods_may_be_made)

    def _start_kubelet(self, member: Member, authority: Authority) -> None:
        own, name = member.node.state, f"kubelet-{member.name}"
        (member.node.root / components.STATIC_PODS.lstrip("/")).mkdir(parents=True)
        subject = f"/O=system:nodes/CN=system:node:{member.name}"
        access = components.kubeconfig(own / "kubelet.kubeconfig", authority, name, subject)
        member.start_component(
            components.kubelet(self.programs, authority, access, own / "kubelet.json", member.number)
        )

    def _is_ready(self, member: Member) -> bool:
        return member.runs("kubelet") and self.node_is_ready(member.name)

    def _api_is_ready(self) -> bool:
        self.first.runs("etcd")
        self.first.runs("kube-apiserver")
        try:
            return self.kubectl("get", "--raw=/readyz") == "ok"
        except ClusterError:
            return False

    def _pods_may_be_made(self) -> bool:
        """Tell whether the objects exist that every pod mounts."""
        try:
            return all(self.kubectl.get(kind, name) for kind, name in MOUNTED_BY_PODS.items())
        except ClusterError:
            return False
