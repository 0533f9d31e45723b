"""The webhook's settings, one frozen value: flag --device-memory = environment SHAREPOD_WEBHOOK_DEVICE_MEMORY."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from sharepod.deviceplugin.core.terms import MEMORY_LEAST_BYTES, MEMORY_MOST_BYTES, TermsError, quantity_bytes
from sharepod.process.kinds import FILE, LOG_FORMAT, LOG_LEVEL, PATH, address, percent, plain, text, whole
from sharepod.process.options import Options
from sharepod.process.protection import protected
from sharepod.process.setting import Kind, setting
from sharepod.webhook.ask import Defaults

_METRICS: Final = address("give HOST:PORT, such as 127.0.0.1:9469", off="off")
_PORT_MAX: Final = 65535
_SCHEDULER: Final = text(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?", "give the name of a scheduler")


def _read_memory(value: object) -> int | None:
    """Return a size in bytes; None: the text is empty, as where a manifest leaves it open. Raises ValueError."""
    if not plain(value):
        return None
    try:
        found = quantity_bytes(plain(value))
    except TermsError:
        found = 0
    if not MEMORY_LEAST_BYTES <= found <= MEMORY_MOST_BYTES:
        raise ValueError("give the size of a device's memory, such as 80Gi")
    return found


_MEMORY: Final[Kind[int | None]] = Kind("SIZE", _read_memory, lambda value: str(value or ""))


@dataclass(frozen=True, slots=True)
class Settings:
    """How the webhook runs."""

    certificate: Path = setting(
        Path("/etc/sharepod-webhook/tls.crt"), PATH, "PEM file with the certificate (and its chain); read again when "
        "it changes.",
    )  # fmt: skip
    key: Path = setting(Path("/etc/sharepod-webhook/tls.key"), PATH, "PEM file with the key of that certificate.")
    address: str = setting("", text(metavar="HOST"), "Address to listen on. Default: all.")
    port: int = setting(8443, whole(0, _PORT_MAX), "Port to listen on; 0 takes a free one and logs it.")
    memory_only_percent: int = setting(
        10, percent(1, 100), "Compute, in percent of a device, of containers that ask for memory alone."
    )
    device_memory: int | None = setting(
        None, _MEMORY, "Memory of a device of the nodes that such pods run on, such as 80Gi. Compute of containers "
        "that ask for memory alone is then in proportion to it, and percentages of memory can be translated.",
    )  # fmt: skip
    scheduler_name: str = setting(
        "default-scheduler", _SCHEDULER, "Scheduler of pods that named another sharing system's."
    )
    drain_seconds: int = setting(
        5, whole(0, 60), "How long it goes on serving when it is told to end: the API server learns of it meanwhile."
    )
    metrics_listen: str = setting("off", _METRICS, "Where Prometheus scrapes; off.")
    metrics_tls_certificate: str = setting(
        "", FILE, "PEM file with the certificate of that address; needed where it is not loopback."
    )
    metrics_tls_key: str = setting("", FILE, "PEM file with the key of that certificate.")
    metrics_token_file: str = setting(
        "", FILE, "File with the token that Prometheus has to show; needed where it is not loopback."
    )
    log_format: str = setting("json", LOG_FORMAT, "Format of the log on stderr.")
    log_level: str = setting("info", LOG_LEVEL, "Least severity that is logged.")

    @property
    def defaults(self) -> Defaults:
        """The operator's values for what another system's words leave open."""
        return Defaults(self.memory_only_percent, self.device_memory, self.scheduler_name)


OPTIONS: Final = Options(
    Settings,
    program="sharepod-webhook",
    purpose="Turn pods that were written for other sharing systems into pods with shares, and give pods their gates.",
    prefix="SHAREPOD_WEBHOOK_",
    complete=protected({"metrics_listen": ("metrics_tls_certificate", "metrics_tls_key", "metrics_token_file")}),
)
