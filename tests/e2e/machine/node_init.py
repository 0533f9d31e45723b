"""Is the first process of a node: makes its root file system and network, and is the parent of all its processes.

It starts in fresh namespaces. The node's root is the machine's root, read through an overlay in memory, so that all
that is written in the node stays in the node. The node sees its own control groups as the roots. The process takes
requests from its socket, one JSON line each. When the socket closes it ends, and the kernel ends the node's other
processes with it. It knows nothing of Kubernetes but its addresses. Nodes are numbered from 1; the first has the
addresses that all nodes of a cluster use.
"""

import json
import os
import select
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

NODE_ADDRESS = "10.99.0.1"
NETWORK = "10.99.0.0/16"  # one network for all nodes and pods, so that nothing needs forwarding
SERVICE_ADDRESS = "10.96.0.1"
NAME_SERVER_ADDRESS = "10.96.0.10"
SERVICE_RANGE = "10.96.0.0/24"
BRIDGE = "node0"
DEVICES = ("full", "kmsg", "null", "random", "tty", "urandom", "zero")
# The memory and panic settings that a kubelet wants. It finds these values and changes nothing. Each is a file of the
# node, which is mounted over the kernel's.
WANTED_SETTINGS = {
    "vm/overcommit_memory": 1,
    "vm/panic_on_oom": 0,
    "kernel/panic": 10,
    "kernel/panic_on_oops": 1,
    "kernel/keys/root_maxkeys": 1000000,
    "kernel/keys/root_maxbytes": 25000000,
}


def node_address(number: int) -> str:
    """Return the address of a node; its pods have the rest of the 256 addresses around it."""
    return f"10.99.{number - 1}.1"


def run(*command: str | Path) -> None:
    subprocess.run(command, check=True)


def mount(source: str | Path, target: Path, *options: str) -> None:
    target.mkdir(parents=True, exist_ok=True)
    run("mount", *options, source, target)


def make_root(state: Path, visible: list[Path], read_only: list[Path]) -> Path:
    """Lay the node's file system over the machine's, with these folders passed through; return its root."""
    memory = state / "memory"
    mount("node", memory, "-t", "tmpfs")
    for name in ("upper", "work", "root"):
        (memory / name).mkdir()
    root = memory / "root"
    layers = f"lowerdir=/,upperdir={memory / 'upper'},workdir={memory / 'work'}"
    mount("node", root, "-t", "overlay", "-o", layers)
    # Folders that grow are on the disk. Also, the upper layer of a container's overlay cannot be on another overlay.
    for name in ("var/lib", "var/log"):
        disk = state / "disk" / name
        disk.mkdir(parents=True)
        mount(disk, root / name, "--bind")
    mount("node", root / "run", "-t", "tmpfs", "-o", "mode=0755")
    mount("node", root / "tmp", "-t", "tmpfs", "-o", "mode=1777")
    for folder in (*visible, *read_only):
        mount(folder, root / folder.relative_to("/"), "--bind")
    for folder in read_only:
        run("mount", "-o", "remount,bind,ro", root / folder.relative_to("/"))
    return root


def make_devices(root: Path) -> None:
    dev = root / "dev"
    mount("node", dev, "-t", "tmpfs", "-o", "mode=0755")
    for name in DEVICES:
        (dev / name).touch()
        run("mount", "--bind", Path("/dev") / name, dev / name)
    mount("node", dev / "pts", "-t", "devpts", "-o", "newinstance,ptmxmode=0666,mode=0620,gid=5")
    mount("node", dev / "shm", "-t", "tmpfs", "-o", "mode=1777")
    (dev / "ptmx").symlink_to("pts/ptmx")
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        (dev / name).symlink_to(f"/proc/self/fd/{number}")
    (dev / "fd").symlink_to("/proc/self/fd")


def make_kernel_files(state: Path, root: Path, hierarchies: list[str]) -> None:
    """Mount proc with read-only settings, and sysfs with each hierarchy that has a group of the node, rooted there."""
    proc, settings = root / "proc", root / "proc" / "sys"
    mount("proc", proc, "-t", "proc")
    run("mount", "--bind", settings, settings)
    run("mount", "-o", "remount,bind,ro", settings)
    for name, value in WANTED_SETTINGS.items():
        own = state / "settings" / name
        own.parent.mkdir(parents=True, exist_ok=True)
        own.write_text(f"{value}\n")
        run("mount", "--bind", own, settings / name)
        run("mount", "-o", "remount,bind,ro", settings / name)
    mount("sysfs", root / "sys", "-t", "sysfs", "-o", "ro")
    groups = root / "sys" / "fs" / "cgroup"
    mount("node", groups, "-t", "tmpfs", "-o", "mode=0755")
    for controllers in hierarchies:
        options = f"none,{controllers}" if controllers.startswith("name=") else controllers
        mount("cgroup", groups / controllers.removeprefix("name="), "-t", "cgroup", "-o", options)


def enter_root(root: Path) -> None:
    old = root / "tmp" / "machine"
    old.mkdir()
    run("pivot_root", root, old)
    os.chdir("/")
    run("umount", "--lazy", "/tmp/machine")
    Path("/tmp/machine").rmdir()
    run("mount", "--make-rshared", "/")


def make_network(number: int) -> None:
    """Make one bridge for the node and its pods; API and name server answer at service addresses without a proxy."""
    run("ip", "link", "set", "lo", "up")
    # The bridge gets a MAC address of its own. Otherwise it has the lowest of its ports' addresses. That changes when a
    # pod goes, while peers of the node use the old address for seconds.
    run("ip", "link", "add", BRIDGE, "address", f"02:00:0a:63:{number - 1:02x}:01", "type", "bridge")
    run("ip", "address", "add", f"{node_address(number)}/{NETWORK.partition('/')[2]}", "dev", BRIDGE)
    if number == 1:
        for address in (SERVICE_ADDRESS, NAME_SERVER_ADDRESS):
            run("ip", "address", "add", f"{address}/32", "dev", BRIDGE)
    run("ip", "link", "set", BRIDGE, "up")
    if number > 1:
        run("ip", "route", "add", SERVICE_RANGE, "via", NODE_ADDRESS)


class Processes:
    """The processes that were started by name: the pid while one runs, its exit status afterwards."""

    def __init__(self) -> None:
        self.running: dict[str, int] = {}
        self.ended: dict[str, int] = {}

    def start(self, name: str, command: list[str], environment: dict[str, str], log: str) -> int:
        if name in self.running:
            raise ValueError(f"{name} runs already")
        to_log = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        pid = os.posix_spawnp(
            command[0],
            command,
            environment,
            file_actions=[
                (os.POSIX_SPAWN_OPEN, 0, "/dev/null", os.O_RDONLY, 0),
                (os.POSIX_SPAWN_OPEN, 1, log, to_log, 0o644),
                (os.POSIX_SPAWN_DUP2, 1, 2),
            ],
            setsid=True,
            setsigmask=(),
            setsigdef=(signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGPIPE),
        )
        self.ended.pop(name, None)
        self.running[name] = pid
        return pid

    def reap(self) -> None:
        """Collect ended processes, also orphans of a container's shim, which have no name here."""
        names = {pid: name for name, pid in self.running.items()}
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if not pid:
                return
            if name := names.pop(pid, None):
                del self.running[name]
                self.ended[name] = os.waitstatus_to_exitcode(status)

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        name = request["name"]
        match request["verb"]:
            case "start":
                return {"pid": self.start(name, request["command"], request["environment"], request["log"])}
            case "signal":
                if pid := self.running.get(name):
                    os.kill(pid, request["signal"])
                return {"pid": pid}
            case "look":
                return {"pid": self.running.get(name), "exit": self.ended.get(name)}
        raise ValueError(f"unknown verb {request['verb']}")


def serve(client: socket.socket) -> None:
    """Answer requests until the client is gone."""
    processes = Processes()
    child_ended, wake = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    pending = b""
    while True:
        ready, _, _ = select.select([client.fileno(), child_ended], [], [])
        if child_ended in ready:
            os.read(child_ended, 4096)
        processes.reap()
        if client.fileno() not in ready:
            continue
        if not (data := client.recv(65536)):
            return
        *lines, pending = (pending + data).split(b"\n")
        for line in lines:
            try:
                answer = processes.answer(json.loads(line))
            except (OSError, ValueError) as error:
                answer = {"error": str(error)}
            client.sendall(json.dumps(answer).encode() + b"\n")


def main() -> int:
    asked = json.loads(sys.argv[1])
    state = Path(asked["state"])
    with socket.socket(fileno=int(asked["socket"])) as client:
        client.set_inheritable(False)
        root = make_root(state, [state, *map(Path, asked["visible"])], list(map(Path, asked["read_only"])))
        make_devices(root)
        make_kernel_files(state, root, asked["hierarchies"])
        enter_root(root)
        make_network(asked["number"])
        client.sendall(json.dumps({"pid": os.getpid()}).encode() + b"\n")
        serve(client)
    return 0


if __name__ == "__main__":
    sys.exit(main())
