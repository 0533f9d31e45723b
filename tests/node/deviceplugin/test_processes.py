"""Test which pods have live processes, by the cgroup names of kubelets, while processes come and go."""

import asyncio
import os
import socket
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from sharepod.deviceplugin.errors import PluginError
from sharepod.deviceplugin.reconcile.processes import HostProcesses, live_pods, pod_of

UID = "0f6e9f6a-1c2b-4d3e-8f90-a1b2c3d4e5f6"
OTHER = "11111111-2222-3333-4444-555555555555"
HASH = "0123456789abcdef0123456789abcdef"
CONTAINER = "d2f1" * 16
UNDERSCORED = UID.replace("-", "_")


def v1(path: str) -> str:
    controllers = ("name=systemd", "memory", "cpu,cpuacct", "devices", "freezer", "net_cls,net_prio", "rdma", "")
    return "".join(f"{number}:{name}:{path}\n" for number, name in enumerate(controllers))


def v2(path: str) -> str:
    return f"0::{path}\n"


@pytest.mark.parametrize("version", [v1, v2])
@pytest.mark.parametrize(
    ("path", "uid"),
    [
        (f"/kubepods/pod{UID}/{CONTAINER}", UID),
        (f"/kubepods/besteffort/pod{UID}/{CONTAINER}/init", UID),
        (f"/kubepods.slice/kubepods-pod{UNDERSCORED}.slice/cri-containerd-{CONTAINER}.scope", UID),
        (f"/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{UNDERSCORED}.slice/crio-x.scope", UID),
        (f"/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-besteffort-pod{UNDERSCORED}.slice/x.scope", UID),
        (f"/docker/{CONTAINER}/kubelet/kubepods/burstable/pod{UID}/{CONTAINER}", UID),
        (f"/kubepods/burstable/pod{HASH}/{CONTAINER}", HASH),
        (f"/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{HASH}.slice/x.scope", HASH),
        (f"/../../pod{UID}/{CONTAINER}", UID),
        (f"/../../../kubepods-pod{UNDERSCORED}.slice/cri-containerd-{CONTAINER}.scope", UID),
        (f"/kubepods/burstable/pod{UID}", UID),
        (f"/kubepods/burstable/pod{UID} (deleted)", None),
        (f"/kubepods/burstable/pod{UID}/{CONTAINER}/pod{OTHER}/x", UID),
        ("/", None),
        ("/system.slice/podman.service", None),
        (f"/system.slice/tripod{UID}.service", None),
        (f"/kubepods/burstable/pod{UID}0/{CONTAINER}", None),
        (f"/kubepods/burstable/pod{UID[:-1]}/{CONTAINER}", None),
    ],
)
def test_the_pod_of_a_cgroup(version: Callable[[str], str], path: str, uid: str | None) -> None:
    assert pod_of(version(path).encode()) == uid


def process(proc: Path, pid: int, text: str) -> None:
    (proc / str(pid)).mkdir()
    (proc / str(pid) / "cgroup").write_text(text, encoding="ascii")


def test_the_pods_of_all_processes(tmp_path: Path) -> None:
    process(tmp_path, 1, v2("/init.scope"))
    process(tmp_path, 20, v2(f"/kubepods/burstable/pod{UID}/{CONTAINER}"))
    process(tmp_path, 21, v2(f"/kubepods/burstable/pod{UID}/other"))
    process(tmp_path, 300, v1(f"/kubepods.slice/kubepods-pod{OTHER.replace('-', '_')}.slice/x.scope"))
    process(tmp_path, 301, v1(f"/kubepods/pod{HASH}/x"))
    (tmp_path / "21000").mkdir()  # a process that ended before its file was read
    (tmp_path / "sys").mkdir()
    (tmp_path / "meminfo").write_text("", encoding="ascii")
    assert live_pods(tmp_path) == {UID, OTHER, HASH}


def test_what_cannot_be_looked_at_is_an_error_and_not_a_dead_node(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="No such file"):
        live_pods(tmp_path / "nowhere")
    (tmp_path / "21").mkdir()
    (tmp_path / "21" / "cgroup").mkdir()
    with pytest.raises(OSError, match="directory"):
        live_pods(tmp_path)


def test_this_machine_is_looked_through_while_processes_come_and_go() -> None:
    stop = threading.Event()
    before = len(list(Path("/proc/self/fd").iterdir()))

    def churn() -> None:
        while not stop.is_set():
            subprocess.run(["/bin/true"], check=True)

    thread = threading.Thread(target=churn)
    thread.start()
    try:
        for _ in range(20):
            live_pods()
    finally:
        stop.set()
        thread.join()
    assert len(list(Path("/proc/self/fd").iterdir())) == before, "descriptors are given back"


def test_whether_kubelets_process_is_seen_tells_whether_all_are(directory: Path, tmp_path: Path) -> None:
    path = directory / "kubelet.sock"
    processes = HostProcesses(path)
    assert not processes.check()  # no kubelet is there, so nothing can be known
    with pytest.raises(PluginError, match="kubelet is not at"):
        asyncio.run(processes.live_pods())
    with socket.socket(socket.AF_UNIX) as kubelet:
        kubelet.bind(str(path))
        kubelet.listen()
        assert processes.check()
        assert asyncio.run(processes.live_pods()) == live_pods()
        hiding = HostProcesses(path, tmp_path)  # like a /proc that is mounted with hidepid
        with pytest.raises(PluginError, match=r"set hostPID: true .* without hidepid"):
            asyncio.run(hiding.live_pods())
        process(tmp_path, os.getpid(), v2(f"/kubepods/pod{UID}/x"))
        assert asyncio.run(hiding.live_pods()) == {UID}
