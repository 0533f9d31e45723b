"""Checks what SharePod needs on this host. Each check looks at one thing and says OK, WARN or FAIL with the remedy.

The checks change nothing. They probe the driver and the hook in short-lived processes, because a broken library may
crash its process.
"""

from __future__ import annotations

import ctypes
import json
import os
import platform
import resource
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from sharepod import __version__, hook
from sharepod.cli.render.messages import is_simulated
from sharepod.process import mounts

if TYPE_CHECKING:
    from sharepod.cli.errors import CliError
    from sharepod.proto import v1_pb2 as pb

OK: Final = "OK"
WARN: Final = "WARN"
FAIL: Final = "FAIL"

_OLDEST_KERNEL: Final = (5, 3)
"""The first kernel with pidfd_open(2)."""
_MEMBARRIER: Final = {"x86_64": 324, "aarch64": 283}
"""The number of the system call membarrier(2), by machine."""
_MEMBARRIER_PRIVATE_EXPEDITED: Final = 1 << 3
_LEAST_OPEN_FILES: Final = 1024
_PROBE_TIMEOUT_S: Final = 20
_MPS_DIRECTORY: Final = "/tmp/nvidia-mps"  # noqa: S108 - where the daemon puts it
_STOP_MPS: Final = "stop it: echo quit | nvidia-cuda-mps-control; give each program a share instead"
_INIT_REMEDIES: Final = {
    46: "a device lets no other program in: look at its compute mode, nvidia-smi -q -d COMPUTE",
    803: "libcuda and the kernel's driver are of different versions, as after an upgrade: reboot",
    804: "its forward-compatible libcuda does not serve this GPU: use the driver's own",
}
"""The remedy for some errors of cuInit. For any other one it is to check nvidia-smi."""
_NVML_REMEDY: Final = (
    "nvidia-smi -L: if it fails too, look at dmesg, and reload the driver or reboot; if it works, restart the agent ("
    "in a container, make that anew: it has lost its devices)"
)
"""What to do if NVML fails on every device."""
_LOST: Final = "NVML: GPU is lost"
_FORBIDDEN: Final = "NVML: Insufficient Permissions"
_DRIVER_PROBE: Final = """
import ctypes, json
try:
    cuda = ctypes.CDLL("libcuda.so.1")
except OSError as error:
    print(json.dumps({"missing": str(error)}))
else:
    version, count = ctypes.c_int(), ctypes.c_int()
    result = cuda.cuInit(0)
    cuda.cuDriverGetVersion(ctypes.byref(version))
    if result == 0:
        cuda.cuDeviceGetCount(ctypes.byref(count))
    print(json.dumps({"result": result, "version": version.value, "devices": count.value}))
"""


@dataclass(frozen=True, slots=True)
class Check:
    """The finding of one check; `remedy` is empty when all is well."""

    name: str
    status: str
    text: str
    remedy: str = ""


def run_checks(node: pb.GetNodeResponse | None, refusal: CliError | None, hook_path: Path) -> Iterator[Check]:
    """Yield every check. `node` is the agent's answer; None: it did not answer, and `refusal` says why.

    With both, the agent answers, but cannot learn which process this is. `hook_path` is the hook of this installation.
    It is checked if no agent says which hook programs get.
    """
    yield check_kernel(platform.release())
    yield check_pidfd()
    yield check_membarrier()
    yield check_agent(node, refusal)
    if node is not None and refusal is not None:
        yield Check("agent", FAIL, refusal.cause, refusal.remedy)
    yield check_hook(Path(node.hook_path) if node and node.hook_path else hook_path)
    if node is not None:
        yield from check_served_hook(node)
    yield check_mps(Path(os.environ.get("CUDA_MPS_PIPE_DIRECTORY") or _MPS_DIRECTORY))
    yield check_driver(node.environment if node else {}, simulated=node is not None and is_simulated(node))
    directory = Path(node.runtime_directory) if node else Path("/dev/shm")  # noqa: S108
    yield check_tmpfs(directory, Path(mounts.TABLE).read_text(errors="surrogateescape"))
    yield check_open_files(resource.getrlimit(resource.RLIMIT_NOFILE)[1])
    if node is not None:
        yield from check_devices(node)
        yield from check_troubles(node)


def check_kernel(release: str) -> Check:
    """Check that the kernel has the calls by which the agent finds out that a process is dead."""
    numbers = release.split("-")[0].split(".")
    try:
        version = (int(numbers[0]), int(numbers[1]))
    except (IndexError, ValueError):
        return Check("kernel", WARN, f"Linux {release}: unknown version", "check by hand that it is 5.3 or later")
    if version < _OLDEST_KERNEL:
        return Check("kernel", FAIL, f"Linux {release} has no pidfd_open", "upgrade to Linux 5.3 or later")
    return Check("kernel", OK, f"Linux {release}")


def check_pidfd() -> Check:
    """Check that this process may open a pidfd: some seccomp profiles forbid it."""
    try:
        os.close(os.pidfd_open(os.getpid()))
    except OSError as error:
        remedy = "allow pidfd_open in the seccomp profile: the agent needs it to see that a program has ended"
        return Check("pidfd", FAIL, f"pidfd_open: {error.strerror}", remedy)
    return Check("pidfd", OK, "pidfd_open works")


def check_membarrier() -> Check:
    """Check membarrier(2): with it a launch costs nothing extra, although the hook can revoke a turn at any time."""
    number = _MEMBARRIER.get(platform.machine())
    if number is None:
        return Check("membarrier", FAIL, f"{platform.machine()} is not supported", "use x86-64 or aarch64")
    commands = ctypes.CDLL(None, use_errno=True).syscall(number, 0, 0, 0)  # MEMBARRIER_CMD_QUERY
    if commands < 0 or not commands & _MEMBARRIER_PRIVATE_EXPEDITED:
        remedy = "allow membarrier in the seccomp profile (Linux 4.14 or later has it)"
        return Check("membarrier", WARN, "no private expedited membarrier: launches cost some ns more", remedy)
    return Check("membarrier", OK, "private expedited")


def check_agent(node: pb.GetNodeResponse | None, refusal: CliError | None) -> Check:
    """Check that the agent answers and has this version."""
    if node is None:
        if refusal is None:
            return Check("agent", FAIL, "not asked", "look at the agent's log")
        return Check("agent", FAIL, refusal.cause, refusal.remedy or "look at the agent's log")
    kind = "simulated devices" if is_simulated(node) else f"driver {node.driver_version}"
    text = f"{node.version}, pid {node.agent_pid}, {kind}, region ABI {node.region_abi_version}"
    if node.version != __version__:
        remedy = "upgrade the older of the two; running programs go on"
        return Check("agent", WARN, f"{text}; this command is {__version__}", remedy)
    return Check("agent", OK, text)


def check_hook(path: Path) -> Check:
    """Check that the hook exists, and that a program with the hook preloaded runs and prints nothing."""
    if not path.is_file():
        return Check("hook", FAIL, f"{path} is missing", "build it: make build, or reinstall sharepod")
    environment = {**os.environ, "LD_PRELOAD": str(path)}
    probe = _probe(["/bin/true"], environment)
    if probe is None or probe.returncode != 0 or probe.stderr:
        reason = "it hangs" if probe is None else probe.stderr.strip() or f"exit code {probe.returncode}"
        return Check("hook", FAIL, f"{path} does not load: {reason}", "rebuild it on this machine: make clean build")
    return Check("hook", OK, f"{path} loads")


def check_served_hook(node: pb.GetNodeResponse) -> Iterator[Check]:
    """Yield a warning if programs get the hook in the package itself, which an upgrade replaces; else nothing."""
    if Path(node.hook_path).name == hook.LIBRARY.name:  # a copy in the hook directory has its version in its name
        text = "served from the package: the agent's hook directory is mounted noexec"
        remedy = "stop the programs before an upgrade replaces it, or choose another --hook-directory"
        yield Check("hook", WARN, text, remedy)


def check_mps(directory: Path) -> Check:
    """Check that no MPS control daemon waits in `directory` for the programs of this host."""
    try:
        pid = int((directory / "nvidia-cuda-mps-control.pid").read_text(encoding="ascii"))
        os.kill(pid, 0)
    except (FileNotFoundError, NotADirectoryError, ProcessLookupError):
        return Check("MPS", OK, "no control daemon")
    except (OSError, ValueError, OverflowError):  # it runs as another user, or its file has no pid yet
        return Check("MPS", FAIL, f"a control daemon serves {directory}: its clients cannot be metered", _STOP_MPS)
    return Check("MPS", FAIL, f"control daemon {pid} serves {directory}: its clients cannot be metered", _STOP_MPS)


def check_driver(environment: Mapping[str, str], *, simulated: bool) -> Check:
    """Check that the CUDA driver, real or simulated, loads and initialises."""
    probe = _probe([sys.executable, "-I", "-c", _DRIVER_PROBE], {**os.environ, **environment})
    name = "simulated driver" if simulated else "driver"
    if probe is None:
        text = f"libcuda.so.1 has not started for {_PROBE_TIMEOUT_S} s"
        return Check(name, FAIL, text, "look at dmesg for XID, and at whether nvidia-smi answers; reboot if not")
    if probe.returncode != 0:
        return Check(name, FAIL, "loading libcuda.so.1 crashed", "reinstall the driver; see dmesg")
    answer = json.loads(probe.stdout)
    no_gpu = "on a machine without a GPU use a simulated one: sharepod agent --simulate 1xH200"
    if "missing" in answer:
        return Check(name, FAIL, f"no CUDA driver: {answer['missing']}", f"install the NVIDIA driver; {no_gpu}")
    version = f"CUDA {answer['version'] // 1000}.{answer['version'] % 1000 // 10}"
    if answer["result"] != 0:
        remedy = _INIT_REMEDIES.get(answer["result"], f"check nvidia-smi; {no_gpu}")
        return Check(name, FAIL, f"{version}, but cuInit returns {answer['result']}", remedy)
    return Check(name, OK, f"{version}, {answer['devices']} device(s)")


def check_tmpfs(directory: Path, table: str) -> Check:
    """Check that regions lie in memory: on a disk each change of a shared word may be written out.

    `table` is the text of the kernel's table of mounts.
    """
    kind = mounts.filesystem_of(directory, table) or "an unknown filesystem"
    if kind not in mounts.IN_MEMORY:
        remedy = "move the agent's runtime directory to a tmpfs such as /run or /dev/shm"
        return Check("tmpfs", FAIL, f"{directory} is on {kind}", remedy)
    return Check("tmpfs", OK, f"{directory} is on {kind}")


def check_open_files(hard: int) -> Check:
    """Check the limit of open files: an agent of this user needs about three a process and two a share.

    The agent raises its own limit to its hard limit.
    """
    if hard != resource.RLIM_INFINITY and hard < _LEAST_OPEN_FILES:
        remedy = "raise it: ulimit -n 4096, or LimitNOFILE= in the agent's unit"
        return Check("open files", WARN, f"the limit is {hard}: too few for an agent with many programs", remedy)
    return Check("open files", OK, "no limit" if hard == resource.RLIM_INFINITY else f"up to {hard}")


def check_devices(node: pb.GetNodeResponse) -> Iterator[Check]:
    """Check the health of each device, and that no program runs on it without a share."""
    reasons = [device.health_reason for device in node.devices]
    # Whether NVML works does not show on a device that has one of these reasons.
    telling = [reason for reason in reasons if not reason.startswith(("Xid ", "released ", "taken back "))]
    nvml_is_broken = all(reason.startswith("NVML: ") and reason not in (_LOST, _FORBIDDEN) for reason in telling)
    for device in node.devices:
        name = f"device {device.index}"
        if device.health_reason.startswith("released "):
            yield Check(name, WARN, f"{device.name}: released by an operator", device.health_reason.partition(": ")[2])
        elif not device.healthy:
            remedy = _NVML_REMEDY if nvml_is_broken else _device_remedy(device)
            yield Check(name, FAIL, f"{device.name}: {device.health_reason}", remedy)
        elif not device.foreign_processes:
            yield Check(name, OK, f"{device.name}, {device.requested_millipercent / 1000:g} % asked for")
        if shareless := [process for process in device.foreign_processes if not process.unmetered_cause]:
            listed = ", ".join(f"{process.name} ({process.pid})" for process in shareless)
            remedy = "start it with sharepod run, or name it in the agent's --monitoring: nobody accounts for its time"
            yield Check(name, WARN, f"{device.name}: {listed} runs without a share", remedy)
        for process in device.foreign_processes:
            if process.unmetered_cause:
                text = f"{device.name}: {process.name} ({process.pid}) runs unmetered in its share"
                cause, _, remedy = process.unmetered_cause.rpartition(": ")
                cause = cause or process.unmetered_cause  # an older agent tells no remedy
                yield Check(name, WARN, f"{text}: {cause}", remedy)
    if not node.devices:
        yield Check("devices", FAIL, "the agent has no device", "check nvidia-smi, then restart the agent")


def _device_remedy(device: pb.Device) -> str:
    """Return what an operator does about an unhealthy device, by its reason."""
    reason = device.health_reason
    if reason.startswith("MPS "):
        return _STOP_MPS
    if reason.startswith("taken back "):
        return "wait for some seconds"
    if reason.startswith("its compute mode ") and device.uuid.startswith("MIG-"):
        return "as root: nvidia-smi -i GPU -c DEFAULT, for the GPU that it is an instance of"
    if reason.startswith("its compute mode "):
        return f"as root: nvidia-smi -i {device.uuid} -c DEFAULT"
    if reason.startswith(("it could not be looked at", "NVML has not answered")):
        return "look at dmesg for XID; stop the agent, reset the device (or reboot), and start the agent"
    if reason.startswith("NVML does not list it"):
        return "look at nvidia-smi -L: it was taken out, or this agent's container may not see it"
    if "another agent" in reason:
        return reason.rpartition(": ")[2]
    if reason == _FORBIDDEN:
        return "let the agent see it: NVIDIA_MIG_MONITOR_DEVICES=all for its container"
    return f"look at dmesg for XID; `sharepod device release {device.index}`, reset it (or reboot), and resume it"


def check_troubles(node: pb.GetNodeResponse) -> Iterator[Check]:
    """Yield what the agent tells of its shares and of itself. The last part of each text is the remedy."""
    for trouble in node.troubles:
        text, _, remedy = trouble.rpartition(": ")
        yield Check("share" if trouble.startswith("share ") else "agent", WARN, text, remedy)


def _probe(command: list[str], environment: Mapping[str, str]) -> subprocess.CompletedProcess[str] | None:
    """Run a command to its end and return its output; None: it did not end in time."""
    try:
        return subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=_PROBE_TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired:
        return None
