"""The agent's settings, one frozen value: flag --socket-mode = environment SHAREPOD_SOCKET_MODE = YAML socket_mode.

A flag beats the environment, the environment beats the file. An unknown key or a wrong value is an error. Nothing else
in the agent reads the environment.
"""

from __future__ import annotations

import contextlib
import difflib
import grp
import ipaddress
import os
import re
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import yaml

from sharepod.agent.errors import SettingsError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

PREFIX: Final = "SHAREPOD_"
OTHER_VARIABLES: Final = frozenset(
    {
        "SHAREPOD_CONFIG",
        "SHAREPOD_REGION",
        "SHAREPOD_SOCKET",
        "SHAREPOD_KEEP_DEEPBIND",
        "SHAREPOD_CC",
        "SHAREPOD_CFLAGS",
    }
)
"""Variables of the hook, the command line and the build; not settings of the agent."""
OTHER_PREFIXES: Final = (
    "SHAREPOD_PLUGIN_", "SHAREPOD_WEBHOOK_", "SHAREPOD_HOOK_", "SHAREPOD_CLI_", "SHAREPOD_TEST_", "SHAREPOD_BENCH_",
)  # fmt: skip
SOCKET_NAME: Final = "agent.sock"
SHARES_NAME: Final = "shares"
METRICS_DEFAULT: Final = "127.0.0.1:9464"
MONITORING: Final = (
    "nv-hostengine", "dcgm*", "nvidia-smi", "nvidia-persiste*", "nvidia-cuda-mps*", "nvtop", "Xorg", "gnome-shell",
)  # fmt: skip

_SIMULATED: Final = r"[1-9][0-9]?x[A-Za-z0-9-]+(:[a-z0-9.]+(\+[a-z0-9.]+)*)?"
_SIMULATE: Final = re.compile(f"{_SIMULATED}(,{_SIMULATED})*")
_NODE_NAME: Final = re.compile(r"[A-Za-z0-9._-]{1,253}")
SOCKET_PATH_MAX: Final = 107
"""sockaddr_un.sun_path, less the byte that ends it."""
_NAMED_ADDRESS: Final = re.compile(r"([A-Za-z0-9]([A-Za-z0-9.-]{0,251}[A-Za-z0-9])?|\[[0-9a-fA-F:]+\]):(\d{1,5})")
_ADDRESS: Final = re.compile(r"(\d+\.\d+\.\d+\.\d+|localhost|\[[0-9a-fA-F:.]+\]):(\d{1,5})")


def _text(value: object) -> str:
    if isinstance(value, (str, int, float)) and not isinstance(value, bool):
        return str(value)
    raise ValueError("give text")


def _flag(value: object) -> bool:
    if isinstance(value, bool):
        return value
    word = str(value).lower()
    if word in ("1", "true", "yes", "on"):
        return True
    if word in ("0", "false", "no", "off", ""):
        return False
    raise ValueError("give true or false")


def _file(value: object) -> str:
    return _path(value) if _text(value) else ""


def _path(value: object) -> str:
    text = _text(value)
    if not Path(text).is_absolute():
        raise ValueError("give an absolute path")
    return os.path.normpath(text)


def _node_name(value: object) -> str:
    text = _text(value)
    if text and not _NODE_NAME.fullmatch(text):
        raise ValueError("give a name of at most 253 letters, digits, '-', '_', '.'")
    return text


def _simulate(value: object) -> str:
    if text := _text(value):
        if not _SIMULATE.fullmatch(text):
            raise ValueError("give devices like 2xH200 or 1xH200,1xA10")
        return text
    return ""


def _metrics(value: object) -> str:
    if value is False or _text(value).lower() in ("off", ""):
        return ""
    text = _text(value)
    match = _ADDRESS.fullmatch(text)
    with contextlib.suppress(ValueError):
        if match and 0 < int(match.group(2)) < 65536:
            _on_loopback(text)
            return text
    raise ValueError(f"give a loopback address like {METRICS_DEFAULT}, or off")


def _scheduler(value: object) -> str:
    text = _text(value)
    match = _NAMED_ADDRESS.fullmatch(text)
    if text and not (match and 0 < int(match.group(3)) < 65536):
        raise ValueError("give a name or an address with a port, like sharepod-scheduler-feed.sharepod.svc:9466")
    return text


def _on_loopback(address: str) -> bool:
    """Tell whether an address with a port is of the loopback. Raises ValueError when it is none."""
    host = address.rpartition(":")[0].strip("[]")
    return host == "localhost" or ipaddress.ip_address(host).is_loopback


def _mode(value: object) -> int:
    """Octal text ("0660"); YAML 1.1 reads 0660 as the integer 432, which is the same mode."""
    if isinstance(value, int) and not isinstance(value, bool):
        mode = value
    else:
        mode = int(_text(value), 8) if re.fullmatch(r"0?[0-7]{3}", _text(value)) else 0
    if not 0 < mode <= 0o777 or not mode & 0o600 == 0o600:
        raise ValueError("give an octal mode like 0600, 0660 or 0666")
    return mode


def _group(value: object) -> str:
    text = _text(value)
    if text:
        try:
            grp.getgrnam(text)
        except KeyError:
            raise ValueError("there is no such group") from None
    return text


def _choice(*words: str) -> Callable[[object], str]:
    def read(value: object) -> str:
        if value not in words:
            raise ValueError(f"give {' or '.join(words)}")
        return str(value)

    return read


def _words(value: object) -> tuple[str, ...]:
    parts = value if isinstance(value, (list, tuple)) else _text(value).split(",")
    words = tuple(_text(part).strip() for part in parts)
    return tuple(word for word in words if word)


def _setting(default: Any, read: Callable[[object], object], doc: str) -> Any:
    return field(default=default, metadata={"doc": doc, "read": read})


def _on_tmpfs(path: Path) -> bool:
    """Tell whether the nearest existing parent of `path` lies on tmpfs."""
    place = path
    while not place.exists():
        place = place.parent
    real = str(place.resolve())
    best = ("", "")
    for line in Path("/proc/self/mounts").read_text(encoding="utf-8").splitlines():
        _, point, kind, *_ = line.split(" ")
        point = point.replace("\\040", " ")
        inside = point == "/" or real == point or real.startswith(point + "/")
        if inside and len(point) >= len(best[0]):
            best = (point, kind)
    return best[1] in ("tmpfs", "ramfs")


def _check_socket_path(path: str) -> None:
    """Raise SettingsError when `path` is longer than the name of a unix socket may be."""
    length = len(os.fsencode(path))
    if length > SOCKET_PATH_MAX:
        raise SettingsError(
            f"socket {path} is {length} bytes long, the kernel's limit is {SOCKET_PATH_MAX}: "
            "choose a shorter runtime directory"
        )


def _check_preloadable(directory: str, what: str) -> None:
    """Raise SettingsError when the loader would take the path of the hook apart: programs would run unmetered."""
    if set(directory) & set(" :\t\n"):
        raise SettingsError(
            f"{what} directory {directory!r} has a space or a colon, which LD_PRELOAD takes for the end of a path: "
            f"choose another with --{what}-directory"
        )


def _check_metrics(settings: Settings, where: str) -> None:
    """Raise SettingsError when the metrics would go to the network in the clear or to everybody."""
    certificate, key = settings.metrics_tls_certificate, settings.metrics_tls_key
    if bool(certificate) != bool(key):
        given, missing = ("certificate", "key") if certificate else ("key", "certificate")
        raise SettingsError(f"metrics_tls_{given} is given without metrics_tls_{missing}: give both, or none")
    address = settings.metrics_listen
    if address and not _on_loopback(address) and not (certificate and settings.metrics_token_file):
        raise SettingsError(
            f"{where} is {address!r}: give a loopback address like {METRICS_DEFAULT}, or, for the network, "
            "metrics_tls_certificate, metrics_tls_key and metrics_token_file too"
        )


def _check_scheduler(settings: Settings, where: str) -> None:
    """Raise SettingsError when the node's usage, or a token, would go to the network in the clear."""
    address, authority, token = settings.scheduler_address, settings.scheduler_ca, settings.scheduler_token_file
    if token and not authority:
        raise SettingsError(
            "scheduler_token_file is given without scheduler_ca: a token goes over TLS alone, give both"
        )
    if not address or token:
        return
    with contextlib.suppress(ValueError):  # any other name may stand for any address
        if _on_loopback(address):
            return
    raise SettingsError(f"{where} is {address!r}: beyond the loopback give scheduler_ca and scheduler_token_file too")


def default_runtime_directory(environment: Mapping[str, str]) -> str:
    """Return where an agent of this user keeps its regions: always on tmpfs.

    /run/sharepod for root, else $XDG_RUNTIME_DIR/sharepod; /dev/shm/sharepod-<uid> where that is no tmpfs.
    """
    uid = os.getuid()
    wanted = "/run" if uid == 0 else environment.get("XDG_RUNTIME_DIR", "")
    if wanted and os.access(wanted, os.W_OK) and _on_tmpfs(Path(wanted)):
        return str(Path(wanted) / "sharepod")
    return f"/dev/shm/sharepod-{uid}"  # noqa: S108 - its owner is checked before use


@dataclass(frozen=True, slots=True)
class Settings:
    """How the agent of this node runs. Empty text: the default that depends on the user and machine."""

    runtime_directory: str = _setting(
        "", _path, "Directory of the socket and the shares; must be on tmpfs. Default: /run/sharepod for root, else "
        "$XDG_RUNTIME_DIR/sharepod; /dev/shm/sharepod-UID where that is no tmpfs.",
    )  # fmt: skip
    state_directory: str = _setting("", _path, "Directory of the checkpoint. Default: the runtime directory.")
    hook_directory: str = _setting(
        "", _path, "Directory below which programs find the hook; must not be mounted noexec. Default: the runtime "
        "directory.",
    )  # fmt: skip
    node_name: str = _setting(
        "",
        _node_name,
        "Name of the node, in answers and metrics. Default: the host name, which in a container is its own.",
    )
    simulate: str = _setting(
        "", _simulate, "Run on simulated GPUs, for example 2xH200 or 1xH100:3g.40gb+4g.40gb,1xA10. Empty: real ones."
    )
    metrics_listen: str = _setting(
        METRICS_DEFAULT, _metrics, "Address where Prometheus scrapes, or off. One beyond the loopback needs the three "
        "settings that follow.",
    )  # fmt: skip
    metrics_tls_certificate: str = _setting(
        "", _file, "PEM file with the certificate (and its chain) of the metrics; read again when it changes."
    )
    metrics_tls_key: str = _setting("", _file, "PEM file with the key of that certificate.")
    metrics_token_file: str = _setting(
        "", _file, "File with the bearer token that who scrapes must show; read again when it changes."
    )
    scheduler_address: str = _setting(
        "", _scheduler, "Name and port of the cluster's schedulers, like sharepod-scheduler-feed.sharepod.svc:9466. "
        "They are told what the node uses. Empty: none. Beyond the loopback it needs the two settings that follow.",
    )  # fmt: skip
    scheduler_ca: str = _setting(
        "",
        _file,
        "PEM file with the authority of the schedulers' certificate; read again for each connection.",
    )
    scheduler_token_file: str = _setting(
        "",
        _file,
        "File with a token of audience sharepod-scheduler; read again for each connection.",
    )
    overcommit: bool = _setting(
        False, _flag, "Admit shares whose requests exceed 100 % of a device, or whose memory caps exceed its memory."
    )
    policy: str = _setting(
        "open", _choice("open", "closed"),
        "What a program does when its region cannot be used: open runs unmetered, closed fails CUDA initialisation.",
    )  # fmt: skip
    monitoring: tuple[str, ...] = _setting(
        MONITORING, _words, "Names (shell patterns) of processes that may use a device without a share."
    )
    socket_mode: int = _setting(
        0o600, _mode, "Mode of the socket: 0600 for this user, 0660 with a group, 0666 for all."
    )
    socket_group: str = _setting("", _group, "Group that may use the socket (with mode 0660).")
    log_format: str = _setting(
        "text", _choice("text", "json"), "Format of the log on stderr: text (key=value) or json."
    )
    log_level: str = _setting("info", _choice("debug", "info", "warning", "error"), "Least severity that is logged.")

    @property
    def socket_path(self) -> str:
        """Path of the gRPC socket."""
        return f"{self.runtime_directory}/{SOCKET_NAME}"

    @property
    def shares_directory(self) -> str:
        """Directory that holds one directory per share."""
        return f"{self.runtime_directory}/{SHARES_NAME}"

    @property
    def public(self) -> bool:
        """True when users other than the agent's own may reach the socket."""
        return bool(self.socket_mode & 0o066)


def setting_names() -> tuple[str, ...]:
    """Return the YAML keys of all settings."""
    return tuple(item.name for item in fields(Settings))


def setting_doc(name: str) -> str:
    """Return the description of a setting."""
    return next(str(item.metadata["doc"]) for item in fields(Settings) if item.name == name)


def shown(settings: Settings) -> dict[str, str]:
    """Return every setting as text, for display and the manual."""
    values: dict[str, str] = {}
    for name in setting_names():
        value = getattr(settings, name)
        if isinstance(value, bool):
            values[name] = "true" if value else "false"
        elif isinstance(value, tuple):
            values[name] = ",".join(value)
        else:
            values[name] = f"{value:04o}" if name == "socket_mode" else str(value)
    if not values["metrics_listen"]:
        values["metrics_listen"] = "off"
    return values


def _unknown(what: str, key: str, known: list[str]) -> SettingsError:
    near = difflib.get_close_matches(key, known, 1, 0.6)
    remedy = f"did you mean {near[0]}?" if near else f"known are {', '.join(known)}"
    return SettingsError(f"unknown {what} {key}: {remedy}")


def _from_file(path: str) -> dict[str, object]:
    try:
        loaded = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise SettingsError(f"configuration {path}: {error.strerror}: name a readable file") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise SettingsError(f"configuration {path} is no YAML: {' '.join(str(error).split())}") from None
    if loaded is None:
        return {}
    if not isinstance(loaded, dict):
        raise SettingsError(f"configuration {path} is no mapping: write lines of key: value")
    for key in loaded:
        if key not in setting_names():
            raise _unknown(f"key in {path}:", str(key), list(setting_names()))
    return {str(key): value for key, value in loaded.items()}


def _from_environment(environment: Mapping[str, str]) -> dict[str, object]:
    known = {PREFIX + name.upper(): name for name in setting_names()}
    for key in environment:
        ours = key in known or key in OTHER_VARIABLES or key.startswith(OTHER_PREFIXES)
        if key.startswith(PREFIX) and not ours:
            raise _unknown("environment variable", key, sorted(known))
    return {name: environment[key] for key, name in known.items() if key in environment}


def load_settings(flags: Mapping[str, object], environment: Mapping[str, str], config: str | None = None) -> Settings:
    """Return the settings from flags (by YAML key; None is not given), environment and the YAML file `config`.

    `config` defaults to $SHAREPOD_CONFIG. Raises SettingsError: what, where, the remedy.
    """
    path = config or environment.get("SHAREPOD_CONFIG")
    for key in flags:
        if key not in setting_names():
            raise _unknown("setting", key, list(setting_names()))
    given = {name: value for name, value in flags.items() if value is not None}
    sources: tuple[tuple[str, Mapping[str, object]], ...] = (
        ("--{}", given),
        ("environment {}", _from_environment(environment)),
        (f"{path}: {{}}", _from_file(path) if path else {}),
    )
    values: dict[str, object] = {}
    labels: dict[str, str] = {}
    for item in fields(Settings):
        for template, source in sources:
            if item.name in source:
                label = {"--{}": item.name.replace("_", "-"), "environment {}": PREFIX + item.name.upper()}
                where = labels[item.name] = template.format(label.get(template, item.name))
                try:
                    values[item.name] = item.metadata["read"](source[item.name])
                except ValueError as error:
                    cause = str(error) if str(error).startswith(("give", "there")) else "give a value of its kind"
                    raise SettingsError(f"{where} is {source[item.name]!r}: {cause}") from None
                break
    runtime = str(values.get("runtime_directory") or default_runtime_directory(environment))
    state = str(values.get("state_directory") or runtime)
    _check_socket_path(f"{runtime}/{SOCKET_NAME}")
    hooks = str(values.get("hook_directory") or runtime)
    _check_preloadable(runtime, "runtime")
    _check_preloadable(hooks, "hook")
    places = {"runtime_directory": runtime, "state_directory": state, "hook_directory": hooks}
    settings = Settings(**{**values, **places})  # type: ignore[arg-type]
    _check_metrics(settings, labels.get("metrics_listen", ""))
    _check_scheduler(settings, labels.get("scheduler_address", ""))
    return settings


def check_on_tmpfs(settings: Settings) -> None:
    """Raise SettingsError unless the runtime directory lies on tmpfs (regions on a disk would be written back)."""
    if not _on_tmpfs(Path(settings.runtime_directory)):
        raise SettingsError(
            f"runtime directory {settings.runtime_directory} is not on tmpfs: choose one under /run or /dev/shm"
        )
