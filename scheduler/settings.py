"""The scheduler's settings, one frozen value: flag --listen = environment SHAREPOD_SCHEDULER_LISTEN."""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from sharepod.agent.errors import SettingsError
from sharepod.agent.flags import read_flags
from sharepod.scheduler.policy import DEFAULT, ROWS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

PREFIX: Final = "SHAREPOD_SCHEDULER_"


@dataclass(frozen=True, slots=True)
class Settings:
    """How the scheduler runs."""

    listen: str = "127.0.0.1:9467"
    tls_certificate: str = ""
    tls_key: str = ""
    client_ca: str = ""
    usage_listen: str = "0.0.0.0:9466"
    usage_certificate: str = ""
    usage_key: str = ""
    usage_audience: str = "sharepod-scheduler"
    usage_account: str = "system:serviceaccount:sharepod:sharepod-node"
    metrics_listen: str = "127.0.0.1:9468"
    metrics_tls_certificate: str = ""
    metrics_tls_key: str = ""
    metrics_token_file: str = ""
    policy: str = DEFAULT
    lease: str = "sharepod/sharepod-gates-leader"
    queues: str = "sharepod/sharepod-gates-queues"
    topology: str = "topology.kubernetes.io/zone"
    resource: str = "sharepod.io/gpu"
    kubeconfig: str = ""
    drain_seconds: int = 5
    log_format: str = "json"
    log_level: str = "info"

    @property
    def domains(self) -> tuple[str, ...]:
        """Return the labels of `topology`."""
        return tuple(filter(None, self.topology.split(",")))


_DOCS: Final = {
    "listen": "Where `sharepod explain` and `sharepod queue` ask: HOST:PORT. In the clear on loopback alone.",
    "tls_certificate": "PEM file with the certificate of that address; needed where it is not loopback.",
    "tls_key": "PEM file with the key of that certificate.",
    "client_ca": "PEM file: a client's certificate must be signed by one of these. Needed with tls_certificate.",
    "usage_listen": "Where agents report what is used: HOST:PORT; off: nobody reports, and no pod is placed.",
    "usage_certificate": "PEM file with the certificate of that address; needed where it is not loopback.",
    "usage_key": "PEM file with the key of that certificate.",
    "usage_audience": "What agents' tokens must be made for.",
    "usage_account": "Whose tokens agents show.",
    "metrics_listen": "Where Prometheus scrapes: HOST:PORT; off.",
    "metrics_tls_certificate": "PEM file with the certificate of that address; needed where it is not loopback.",
    "metrics_tls_key": "PEM file with the key of that certificate.",
    "metrics_token_file": "File with the token that Prometheus has to show; needed where it is not loopback.",
    "policy": f"Which of the nodes with room is best: {', '.join(ROWS)}.",
    "lease": "NAMESPACE/NAME of the Lease by which replicas agree on who decides about gates and who yields.",
    "queues": "NAMESPACE/NAME of the ConfigMap with the rules of queues, key queues.yaml. It need not be there.",
    "topology": (
        "Labels of nodes that name their rack, switch, zone and so on, the narrowest first, with commas: members of a "
        "gang go to as narrow a one as takes them."
    ),
    "resource": "Name of the resource, of which a pod asks for percents of a device.",
    "kubeconfig": "File with access to the API server. Default: the pod's service account.",
    "drain_seconds": "How long it goes on answering when it is told to end.",
    "log_format": "Format of the log on stderr: text or json.",
    "log_level": "Least severity that is logged: debug, info, warning or error.",
}
_CHOICES: Final[dict[str, tuple[str, ...]]] = {
    "log_format": ("text", "json"),
    "log_level": ("debug", "info", "warning", "error"),
    "policy": tuple(ROWS),
}
_ADDRESSES: Final = ("listen", "usage_listen", "metrics_listen")
_FILES: Final = (
    "tls_certificate", "tls_key", "client_ca", "usage_certificate", "usage_key", "kubeconfig",
    "metrics_tls_certificate", "metrics_tls_key", "metrics_token_file",
)  # fmt: skip
_SECONDS_MAX: Final = 60
_OBJECT: Final = r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?/[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?"
_LABEL: Final = r"([a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?"
_NAMES: Final = {
    "resource": re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?/[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?"),
    "lease": re.compile(_OBJECT),
    "queues": re.compile(_OBJECT),
    "topology": re.compile(rf"({_LABEL}(,{_LABEL}){{0,7}})?"),
    "usage_audience": re.compile(r"[!-~]{1,253}"),
    "usage_account": re.compile(r"system:serviceaccount:[a-z0-9-]{1,63}:[a-z0-9.-]{1,253}"),
}


def parse_settings(arguments: Sequence[str], environment: Mapping[str, str]) -> Settings:
    """Return the settings from flags and environment. Raises SettingsError."""
    parser = (
        "sharepod-scheduler",
        "gives pods with scheduling gates their devices, by what those really do.",
    )
    values: dict[str, Any] = read_flags(parser, PREFIX, _DOCS, _read, arguments, environment)
    settings = Settings(**values)
    _check(settings)
    return settings


def is_loopback(address: str) -> bool:
    """Tell whether HOST:PORT is reached from this machine alone."""
    host = address.rpartition(":")[0].strip("[]")
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _check(settings: Settings) -> None:
    for what, address, needed in (
        ("listen", settings.listen, ("tls_certificate", "tls_key", "client_ca")),
        ("usage_listen", settings.usage_listen, ("usage_certificate", "usage_key")),
        (
            "metrics_listen",
            settings.metrics_listen,
            ("metrics_tls_certificate", "metrics_tls_key", "metrics_token_file"),
        ),
    ):
        missing = [name for name in needed if not getattr(settings, name)]
        given = len(missing) < len(needed)
        if missing and (given or (address != "off" and not is_loopback(address))):
            flags = ", ".join("--" + name.replace("_", "-") for name in missing)
            raise SettingsError(
                f"--{what.replace('_', '-')} {address} is reached by others and would not be protected: "
                f"give {flags}, or an address of 127.0.0.1"
            )


def _read(name: str, text: str, where: str) -> object:
    if name in _CHOICES and text not in _CHOICES[name]:
        raise SettingsError(f"{where} is {text!r}: give {', '.join(_CHOICES[name])}")
    if name in _NAMES and not _NAMES[name].fullmatch(text):
        raise SettingsError(f"{where} is {text!r}, no such name: see --help for what it is")
    if name in _ADDRESSES:
        return _address(name, text, where)
    if name in _FILES and text and not Path(text).is_absolute():
        raise SettingsError(f"{where} is {text!r}: give an absolute path")
    if name == "drain_seconds":
        if not text.isdecimal() or len(text) > 2 or int(text) > _SECONDS_MAX:
            raise SettingsError(f"{where} is {text!r}: give a whole number from 0 to {_SECONDS_MAX}")
        return int(text)
    return text


def _address(name: str, text: str, where: str) -> str:
    if text == "off" and name != "listen":
        return text
    host, _, port = text.rpartition(":")
    if not host or not port.isdecimal() or len(port) > 5 or int(port) > 65535:
        raise SettingsError(f"{where} is {text!r}: give HOST:PORT, such as {getattr(Settings(), name)}")
    return text
