"""The webhook's settings, one frozen value: flag --device-memory = environment SHAREPOD_WEBHOOK_DEVICE_MEMORY."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from sharepod.agent.errors import SettingsError
from sharepod.agent.flags import read_flags
from sharepod.deviceplugin.terms import MEMORY_LEAST_BYTES, MEMORY_MOST_BYTES, TermsError, quantity_bytes
from sharepod.webhook.ask import Defaults

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

PREFIX: Final = "SHAREPOD_WEBHOOK_"


@dataclass(frozen=True, slots=True)
class Settings:
    """How the webhook runs."""

    certificate: Path = Path("/etc/sharepod-webhook/tls.crt")
    key: Path = Path("/etc/sharepod-webhook/tls.key")
    address: str = ""
    port: int = 8443
    memory_only_percent: int = 10
    device_memory: int | None = None
    """Bytes."""
    scheduler_name: str = "default-scheduler"
    drain_seconds: int = 5
    log_format: str = "json"
    log_level: str = "info"

    @property
    def defaults(self) -> Defaults:
        """What is written where another system's words say nothing."""
        return Defaults(self.memory_only_percent, self.device_memory, self.scheduler_name)


_DOCS: Final = {
    "certificate": "PEM file with the certificate (and its chain); read again when it changes.",
    "key": "PEM file with the key of that certificate.",
    "address": "Address to listen on. Default: all.",
    "port": "Port to listen on; 0 takes a free one and logs it.",
    "memory_only_percent": "Compute, in percent of a device, of containers that ask for memory alone.",
    "device_memory": "Memory of a device of the nodes that such pods run on, such as 80Gi. Compute of containers that "
    "ask for memory alone is then in proportion to it, and percentages of memory can be translated.",
    "scheduler_name": "Scheduler of pods that named another sharing system's.",
    "drain_seconds": "How long it goes on serving when it is told to end: the API server learns of it meanwhile.",
    "log_format": "Format of the log on stderr: text or json.",
    "log_level": "Least severity that is logged: debug, info, warning or error.",
}
_CHOICES: Final[dict[str, tuple[str, ...]]] = {
    "log_format": ("text", "json"),
    "log_level": ("debug", "info", "warning", "error"),
}
_RANGES: Final = {"port": (0, 65535), "memory_only_percent": (1, 100), "drain_seconds": (0, 60)}
_NAME: Final = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")


def parse_settings(arguments: Sequence[str], environment: Mapping[str, str]) -> Settings:
    """Return the settings from flags and environment. Raises SettingsError."""
    parser = ("sharepod-webhook", "Pods written for other sharing systems become pods with shares.")
    values: dict[str, Any] = read_flags(parser, PREFIX, _DOCS, _read, arguments, environment)
    return Settings(**values)


def _read(name: str, text: str, where: str) -> object:
    if name in _CHOICES and text not in _CHOICES[name]:
        raise SettingsError(f"{where} is {text!r}: give {', '.join(_CHOICES[name])}")
    if name in _RANGES:
        least, most = _RANGES[name]
        if not re.fullmatch(r"[0-9]{1,5}", text) or not least <= int(text) <= most:
            raise SettingsError(f"{where} is {text!r}: give a whole number from {least} to {most}")
        return int(text)
    if name in ("certificate", "key"):
        if not Path(text).is_absolute():
            raise SettingsError(f"{where} is {text!r}: give an absolute path")
        return Path(text)
    if name == "device_memory":
        return _memory(text, where)
    if name == "scheduler_name" and not _NAME.fullmatch(text):
        raise SettingsError(f"{where} is {text!r}: give the name of a scheduler")
    return text


def _memory(text: str, where: str) -> int | None:
    """Return a size; none for an empty text, so that a manifest can leave it open."""
    if not text:
        return None
    try:
        found = quantity_bytes(text)
    except TermsError:
        found = 0
    if not MEMORY_LEAST_BYTES <= found <= MEMORY_MOST_BYTES:
        raise SettingsError(f"{where} is {text!r}: give the size of a device's memory, such as 80Gi")
    return found
