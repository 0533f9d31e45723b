"""The agent's settings, one frozen value: flag --socket-mode = environment SHAREPOD_SOCKET_MODE = YAML socket_mode."""

from __future__ import annotations

import dataclasses
import grp
import ipaddress
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from sharepod.process import mounts
from sharepod.process.errors import SettingsError
from sharepod.process.kinds import (
    FILE,
    FLAG,
    LOG_FORMAT,
    LOG_LEVEL,
    WORDS,
    address,
    choice,
    is_loopback,
    plain,
    text,
    whole,
)  # fmt: skip
from sharepod.process.options import Options
from sharepod.process.setting import Kind, setting

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

SOCKET_NAME: Final = "agent.sock"
USERS_SOCKET_NAME: Final = "users.sock"
HELLO_SOCKET_NAME: Final = "hello.sock"
TICKET_KEY: Final = "sharepod-ticket"
"""The metadata of a call that carries a ticket of that socket."""
SHARES_NAME: Final = "shares"
METRICS_DEFAULT: Final = "127.0.0.1:9464"
MONITORING: Final = (
    "nv-hostengine", "dcgm*", "nvidia-smi", "nvidia-persiste*", "nvidia-cuda-mps*", "nvtop", "Xorg", "gnome-shell",
)  # fmt: skip
SOCKET_PATH_MAX: Final = 107
"""sockaddr_un.sun_path, less the byte that ends it."""

_SIMULATED: Final = r"[1-9][0-9]?x[A-Za-z0-9-]+(:[a-z0-9.]+(\+[a-z0-9.]+)*)?"
_SIMULATE: Final = text(
    f"({_SIMULATED}(,{_SIMULATED})*)?", "give devices like 2xH200 or 1xH200,1xA10", metavar="DEVICES"
)
_NODE_NAME: Final = text(r"[A-Za-z0-9._-]{0,253}", "give a name of at most 253 letters, digits, '-', '_', '.'")
_NETWORK: Final = f"give a loopback address like {METRICS_DEFAULT}, or"
_SCHEDULER: Final = address(
    "give a name or an address with a port, like sharepod-scheduler-feed.sharepod.svc:9466", off="", least_port=1
)


def _read_listen(value: object) -> str:
    """Return HOST:PORT to listen on, or no text for "off". Raises ValueError.

    Of host names only localhost is taken: another could stand for any address.
    """
    found = address(f"{_NETWORK} off", off="", least_port=1).read(value)
    host = found.rpartition(":")[0].strip("[]")
    try:
        if host not in ("", "localhost"):
            ipaddress.ip_address(host)
    except ValueError:
        raise ValueError(f"{_NETWORK} off") from None
    return found


def _mode(allowed: Sequence[int], remedy: str) -> Kind[int]:
    """Return the kind of a file mode that may be one of `allowed` (0: off); `remedy` is the error for any other."""

    def read(value: object) -> int:
        """Return the mode of octal text ("0660"); YAML 1.1 reads 0660 as the integer 432, which is the same mode."""
        if isinstance(value, int) and not isinstance(value, bool):
            mode = value
        elif plain(value) == "off":
            mode = 0
        else:
            mode = int(plain(value), 8) if re.fullmatch(r"0?[0-7]{3}", plain(value)) else -1
        if mode not in allowed:
            raise ValueError(remedy)
        return mode

    return Kind("MODE", read, lambda mode: f"{mode:04o}" if mode else "off")


def _read_group(value: object) -> str:
    """Return the name of a group of this host, or no name. Raises ValueError."""
    found = plain(value)
    try:
        if found:
            grp.getgrnam(found)
    except KeyError:
        raise ValueError("there is no such group") from None
    return found


@dataclass(frozen=True, slots=True)
class Settings:
    """How the agent of this node runs. Empty text: the default that depends on the user and machine."""

    runtime_directory: str = setting(
        "", FILE, "Directory of the socket and the shares; must be on tmpfs. Default: /run/sharepod for root, else "
        "$XDG_RUNTIME_DIR/sharepod (/run/user/UID if unset); /dev/shm/sharepod-UID where that is no tmpfs.",
    )  # fmt: skip
    state_directory: str = setting("", FILE, "Directory of the checkpoint. Default: the runtime directory.")
    hook_directory: str = setting(
        "", FILE, "Directory below which programs find the hook; must not be mounted noexec. Default: the runtime "
        "directory.",
    )  # fmt: skip
    node_name: str = setting(
        "",
        _NODE_NAME,
        "Name of the node, in answers and metrics. Default: the host name, which in a container is its own.",
    )
    simulate: str = setting(
        "", _SIMULATE, "Run on simulated GPUs, for example 2xH200 or 1xH100:3g.40gb+4g.40gb,1xA10. Empty: real ones."
    )
    wait_for: str = setting(
        "", FILE, "File that is there once the driver is loaded, such as /proc/driver/nvidia/version: the agent waits "
        "for it. Empty: it does not wait, and ends where there is no driver.",
    )  # fmt: skip
    metrics_listen: str = setting(
        METRICS_DEFAULT, Kind("HOST:PORT", _read_listen, lambda value: value or "off"), "Address where Prometheus "
        "scrapes, or off. One beyond the loopback needs the three settings that follow.",
    )  # fmt: skip
    metrics_tls_certificate: str = setting(
        "", FILE, "PEM file with the certificate (and its chain) of the metrics; read again when it changes."
    )
    metrics_tls_key: str = setting("", FILE, "PEM file with the key of that certificate.")
    metrics_token_file: str = setting(
        "", FILE, "File with the bearer token that a scrape must show; read again when it changes."
    )
    keep_series: int = setting(
        300, whole(0, 86400), "How many seconds the counters of a share are served after its end, so that jobs that "
        "are shorter than a scrape's interval are seen.",
    )  # fmt: skip
    scheduler_address: str = setting(
        "", _SCHEDULER, "Name and port of the cluster's schedulers. They are told what "
        "the node uses. Empty: none. Beyond the loopback it needs the two settings that follow.",
    )  # fmt: skip
    scheduler_ca: str = setting(
        "", FILE, "PEM file with the authority of the schedulers' certificate; read again for each connection."
    )
    scheduler_token_file: str = setting(
        "", FILE, "File with a token of audience sharepod-scheduler; read again for each connection."
    )
    overcommit: bool = setting(
        False, FLAG, "Admit shares even if their requests exceed 100 % of a device, or their memory caps its memory; "
        "--no-overcommit refuses them.",
    )  # fmt: skip
    policy: str = setting(
        "open", choice("open", "closed"),
        "What a program does when its region cannot be used: open runs unmetered, closed fails CUDA initialisation.",
    )  # fmt: skip
    monitoring: tuple[str, ...] = setting(
        MONITORING, WORDS, "Names (shell patterns) of processes that may use a device without a share."
    )
    socket_mode: int = setting(
        0o600, _mode((0o600, 0o660), "give 0600, or 0660 for a group of operators; users get a socket of their own "
        "(users_socket_mode)"), "Mode of the operators' socket, on which every share can be changed: 0600 for this "
        "user, 0660 with a group.",
    )  # fmt: skip
    socket_group: str = setting(
        "", Kind("GROUP", _read_group), "Group that may use the operators' socket (with mode 0660)."
    )
    users_socket_mode: int = setting(
        0, _mode((0, 0o660, 0o666), "give 0666 for all, 0660 for a group, or off"), "Mode of the users' socket, on "
        "which a caller changes only shares of its own: 0666 for all, 0660 with a group, off.",
    )  # fmt: skip
    users_socket_group: str = setting(
        "", Kind("GROUP", _read_group), "Group that may use the users' socket (with mode 0660)."
    )
    log_format: str = setting("text", LOG_FORMAT, "Format of the log on stderr; text is key=value.")
    log_level: str = setting("info", LOG_LEVEL, "Least severity that is logged.")

    @property
    def socket_path(self) -> str:
        """Path of the operators' socket."""
        return f"{self.runtime_directory}/{SOCKET_NAME}"

    @property
    def users_socket_path(self) -> str:
        """Path of the users' socket."""
        return f"{self.runtime_directory}/{USERS_SOCKET_NAME}"

    @property
    def shares_directory(self) -> str:
        """Directory that holds one directory per share."""
        return f"{self.runtime_directory}/{SHARES_NAME}"

    @property
    def public(self) -> bool:
        """True when users other than the agent's own may reach a socket."""
        return bool((self.socket_mode | self.users_socket_mode) & 0o066)


def _on_tmpfs(path: Path) -> bool:
    """Tell whether `path` lies on tmpfs; if it does not exist, whether its nearest existing parent does."""
    place = path
    while not place.exists():
        place = place.parent
    table = Path(mounts.TABLE).read_text(encoding="utf-8", errors="surrogateescape")
    return mounts.filesystem_of(place.resolve(), table) in mounts.IN_MEMORY


def _check_socket_path(path: str) -> None:
    """Raise SettingsError when `path` is longer than the name of a unix socket may be."""
    length = len(os.fsencode(path))
    if length > SOCKET_PATH_MAX:
        raise SettingsError(
            f"socket {path} is {length} bytes long, the kernel's limit is {SOCKET_PATH_MAX}: "
            "choose a shorter runtime directory"
        )


def _check_preloadable(directory: str, what: str) -> None:
    """Raise SettingsError if the loader would split the hook's path: then programs would run unmetered.

    `what` is the directory's name in the error.
    """
    if set(directory) & set(" :\t\n"):
        raise SettingsError(
            f"{what} directory {directory!r} has a space or a colon, which LD_PRELOAD takes for the end of a path: "
            f"choose another with --{what}-directory"
        )


def _check_metrics(settings: Settings, where: str) -> None:
    """Raise SettingsError if the metrics would be served to the network without TLS or without a token.

    Also if one of certificate and key is missing. `where` is the place of the address, for the error.
    """
    certificate, key = settings.metrics_tls_certificate, settings.metrics_tls_key
    if bool(certificate) != bool(key):
        given, missing = ("certificate", "key") if certificate else ("key", "certificate")
        raise SettingsError(f"metrics_tls_{given} is given without metrics_tls_{missing}: give both, or none")
    place = settings.metrics_listen
    if place and not is_loopback(place) and not (certificate and settings.metrics_token_file):
        raise SettingsError(
            f"{where} is {place!r}: {_NETWORK}, for the network, "
            "metrics_tls_certificate, metrics_tls_key and metrics_token_file too"
        )


def _check_scheduler(settings: Settings, where: str) -> None:
    """Raise SettingsError if the node's usage, or a token, would go over the network without TLS.

    `where` is the place of the address, for the error.
    """
    place, authority, token = settings.scheduler_address, settings.scheduler_ca, settings.scheduler_token_file
    if token and not authority:
        raise SettingsError(
            "scheduler_token_file is given without scheduler_ca: a token goes over TLS alone, give both"
        )
    if place and not token and not is_loopback(place):
        raise SettingsError(f"{where} is {place!r}: beyond the loopback give scheduler_ca and scheduler_token_file too")


def default_runtime_directory(environment: Mapping[str, str]) -> str:
    """Return where an agent of this user keeps its regions: always on tmpfs.

    /run/sharepod for root, else $XDG_RUNTIME_DIR/sharepod; /dev/shm/sharepod-<uid> where that is no tmpfs.
    """
    return runtime_directories(environment)[0]


def runtime_directories(environment: Mapping[str, str]) -> list[str]:
    """Return where agents of this user may keep their regions, the default first. `sharepod` looks in all of them.

    If $XDG_RUNTIME_DIR is not set (cron, su, system units, JupyterHub), its usual value is taken.
    """
    uid = os.getuid()
    wanted = "/run" if uid == 0 else environment.get("XDG_RUNTIME_DIR") or f"/run/user/{uid}"
    always = f"/dev/shm/sharepod-{uid}"  # noqa: S108 - its owner is checked before use
    if os.access(wanted, os.W_OK) and _on_tmpfs(Path(wanted)):
        return [f"{wanted}/sharepod", always]
    return [always]


def _complete(settings: Settings, where: Callable[[str], str], environment: Mapping[str, str]) -> Settings:
    """Return the settings with their directories filled in. Raises SettingsError when they do not fit together.

    `where` names, for errors, the place that a setting was given in; `environment` has the process's variables.
    """
    runtime = os.path.normpath(settings.runtime_directory or default_runtime_directory(environment))
    state, hooks = (
        os.path.normpath(given) if given else runtime for given in (settings.state_directory, settings.hook_directory)
    )
    _check_socket_path(f"{runtime}/{SOCKET_NAME}")
    _check_preloadable(runtime, "runtime")
    _check_preloadable(hooks, "hook")
    _check_metrics(settings, where("metrics_listen"))
    _check_scheduler(settings, where("scheduler_address"))
    return dataclasses.replace(settings, runtime_directory=runtime, state_directory=state, hook_directory=hooks)


def check_on_tmpfs(settings: Settings) -> None:
    """Raise SettingsError unless the runtime directory lies on tmpfs (regions on a disk would be written back)."""
    if not _on_tmpfs(Path(settings.runtime_directory)):
        raise SettingsError(
            f"runtime directory {settings.runtime_directory} is not on tmpfs: choose one under /run or /dev/shm"
        )


OPTIONS: Final = Options(
    Settings,
    program="sharepod agent",
    purpose="Run the node's backend: it grants turns, keeps the accounts and answers the `sharepod` command.",
    prefix="SHAREPOD_",
    others=(
        # of the hook, the command line and the build
        "SHAREPOD_REGION", "SHAREPOD_SOCKET", "SHAREPOD_KEEP_DEEPBIND", "SHAREPOD_CC", "SHAREPOD_CFLAGS",
        "SHAREPOD_HOOK_", "SHAREPOD_CLI_", "SHAREPOD_TEST_", "SHAREPOD_BENCH_", "SHAREPOD_E2E_",
        # of other processes
        "SHAREPOD_PLUGIN_", "SHAREPOD_WEBHOOK_",
    ),
    complete=_complete,
)  # fmt: skip
