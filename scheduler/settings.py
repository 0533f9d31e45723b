"""Defines the scheduler's settings, one frozen value: flag --listen = environment SHAREPOD_SCHEDULER_LISTEN."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from sharepod.deviceplugin.core.unit import RESOURCE
from sharepod.process.kinds import FILE, LOG_FORMAT, LOG_LEVEL, address, choice, text, whole
from sharepod.process.options import Options
from sharepod.process.protection import protected
from sharepod.process.setting import setting
from sharepod.scheduler.placement.policy import DEFAULT, ROWS

_OBJECT: Final = r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?/[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?"
_LABEL: Final = r"([a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?"
_TOPOLOGY: Final = text(
    rf"({_LABEL}(,{_LABEL}){{0,7}})?", "give at most eight labels of nodes, with commas", metavar="LIST"
)


@dataclass(frozen=True, slots=True)
class Settings:
    """How the scheduler runs."""

    listen: str = setting(
        "127.0.0.1:9467", address("give HOST:PORT, such as 127.0.0.1:9467"),
        "Where `sharepod explain` and `sharepod queue` ask. In the clear on loopback alone.",
    )  # fmt: skip
    tls_certificate: str = setting(
        "", FILE, "PEM file with the certificate of that address; needed where it is not loopback."
    )
    tls_key: str = setting("", FILE, "PEM file with the key of that certificate.")
    client_ca: str = setting(
        "", FILE, "PEM file: a client's certificate must be signed by one of these. Needed with tls_certificate."
    )
    usage_listen: str = setting(
        "[::]:9466", address("give HOST:PORT, such as [::]:9466", off="off"),
        "Where agents report what is used; off: no agent can report, and no pod is placed.",
    )  # fmt: skip
    usage_certificate: str = setting(
        "", FILE, "PEM file with the certificate of that address; needed where it is not loopback."
    )
    usage_key: str = setting("", FILE, "PEM file with the key of that certificate.")
    usage_audience: str = setting(
        "sharepod-scheduler", text(r"[!-~]{1,253}", "give the audience of a token"),
        "What agents' tokens must be made for.",
    )  # fmt: skip
    usage_account: str = setting(
        "system:serviceaccount:sharepod:sharepod-node",
        text(r"system:serviceaccount:[a-z0-9-]{1,63}:[a-z0-9.-]{1,253}", "give system:serviceaccount:NAMESPACE:NAME"),
        "The service account of the tokens that agents present.",
    )
    metrics_listen: str = setting(
        "127.0.0.1:9468", address("give HOST:PORT, such as 127.0.0.1:9468", off="off"), "Where Prometheus scrapes; off."
    )
    metrics_tls_certificate: str = setting(
        "", FILE, "PEM file with the certificate of that address; needed where it is not loopback."
    )
    metrics_tls_key: str = setting("", FILE, "PEM file with the key of that certificate.")
    metrics_token_file: str = setting(
        "", FILE, "File with the token that Prometheus has to show; needed where it is not loopback."
    )
    policy: str = setting(DEFAULT, choice(*ROWS), "Which of the nodes with room is best.")
    lease: str = setting(
        "sharepod/sharepod-gates-leader", text(_OBJECT, "give NAMESPACE/NAME"),
        "NAMESPACE/NAME of the Lease by which replicas agree on which of them decides.",
    )  # fmt: skip
    queues: str = setting(
        "sharepod/sharepod-gates-queues", text(_OBJECT, "give NAMESPACE/NAME"),
        "NAMESPACE/NAME of the ConfigMap with the rules of queues, key queues.yaml. It need not be there.",
    )  # fmt: skip
    topology: str = setting(
        "topology.kubernetes.io/zone", _TOPOLOGY, "Labels of nodes that name their rack, switch, zone and so on, the "
        "narrowest first, with commas: members of a gang go to as narrow a one as takes them.",
    )  # fmt: skip
    resource: str = setting(
        RESOURCE,
        text(
            r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?/[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?",
            f"give the name of a resource, such as {RESOURCE}",
        ),
        "Name of the resource, of which a pod asks for percents of a device.",
    )
    kubeconfig: str = setting("", FILE, "File with access to the API server. Default: the pod's service account.")
    drain_seconds: int = setting(5, whole(0, 60), "How long it goes on answering when it is told to end.")
    log_format: str = setting("json", LOG_FORMAT, "Format of the log on stderr.")
    log_level: str = setting("info", LOG_LEVEL, "Least severity that is logged.")

    @property
    def domains(self) -> tuple[str, ...]:
        """Return the labels of `topology`."""
        return tuple(filter(None, self.topology.split(",")))


_PROTECTION: Final = {
    "listen": ("tls_certificate", "tls_key", "client_ca"),
    "usage_listen": ("usage_certificate", "usage_key"),
    "metrics_listen": ("metrics_tls_certificate", "metrics_tls_key", "metrics_token_file"),
}


OPTIONS: Final = Options(
    Settings,
    program="sharepod-scheduler",
    purpose="Give pods with scheduling gates their devices, by what those really do.",
    prefix="SHAREPOD_SCHEDULER_",
    others=("SHAREPOD_SCHEDULER_ADDRESS", "SHAREPOD_SCHEDULER_CA", "SHAREPOD_SCHEDULER_TOKEN_FILE"),  # the agent's
    complete=protected(_PROTECTION),
)
