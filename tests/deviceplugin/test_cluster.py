"""Where the API server is: in a pod, and from a kubeconfig, against a server that asks for a token or a certificate."""

from __future__ import annotations

import asyncio
import base64
import os
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from apiserver import AUTHORITY, DEVELOPER, ApiServer, pod

from sharepod.deviceplugin import pods as module
from sharepod.deviceplugin.api import ApiUnavailable
from sharepod.deviceplugin.cluster import Cluster, ClusterError, from_kubeconfig, in_cluster
from sharepod.deviceplugin.pods import Pods

if TYPE_CHECKING:
    from pathlib import Path

CERTIFICATE = DEVELOPER.cert_chain_pems[0].bytes()
KEY = DEVELOPER.private_key_pem.bytes()


@pytest.fixture(autouse=True)
def short_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "GET_S", 2.0)


def write(path: Path, cluster: dict[str, Any], user: dict[str, Any], **more: Any) -> Path:
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "here",
        "contexts": [
            {"name": "there", "context": {"cluster": "x", "user": "x"}},
            {"name": "here", "context": {"cluster": "c", "user": "u"}},
        ],
        "clusters": [{"name": "c", "cluster": cluster}],
        "users": [{"name": "u", "user": user}],
    }
    path.write_text(yaml.safe_dump(config | more), encoding="utf-8")
    return path


def encoded(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")


async def reads_a_pod(cluster: Cluster) -> bool:
    async with Pods(cluster, "n1") as pods:
        return await pods.get("default", "a") is not None


@pytest.mark.parametrize("way", ["token", "token file", "certificate", "certificate files", "no verification", "name"])
def test_a_kubeconfig_reaches_the_server_with_what_it_holds(tmp_path: Path, way: str) -> None:
    async def run() -> bool:
        async with ApiServer() as server:
            server.put(pod("a"))
            cluster: dict[str, Any] = {"server": f"https://127.0.0.1:{server.port}"}
            user: dict[str, Any] = {"token": server.token}
            cluster["certificate-authority-data"] = encoded(AUTHORITY.cert_pem.bytes())
            if way == "token file":
                (tmp_path / "token").write_text(server.token + "\n", encoding="ascii")
                user = {"tokenFile": "token"}
            elif way == "certificate":
                user = {"client-certificate-data": encoded(CERTIFICATE), "client-key-data": encoded(KEY)}
            elif way == "certificate files":
                (tmp_path / "user.crt").write_bytes(CERTIFICATE)
                (tmp_path / "user.key").write_bytes(KEY)
                (tmp_path / "ca.crt").write_bytes(AUTHORITY.cert_pem.bytes())
                cluster = {"server": cluster["server"] + "/", "certificate-authority": "ca.crt"}
                user = {"client-certificate": "user.crt", "client-key": str(tmp_path / "user.key")}
            elif way == "no verification":
                cluster = {"server": cluster["server"], "insecure-skip-tls-verify": True}
            elif way == "name":
                cluster["tls-server-name"] = "localhost"
            return await reads_a_pod(from_kubeconfig(write(tmp_path / "config", cluster, user)))

    before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208
    assert asyncio.run(run())
    assert len(os.listdir("/proc/self/fd")) <= before  # noqa: PTH208 - no key is left open


def test_a_server_of_another_authority_or_name_is_not_believed(tmp_path: Path) -> None:
    async def run(authority: bytes | None, name: str | None) -> str:
        async with ApiServer() as server:
            server.put(pod("a"))
            cluster = Cluster(f"https://127.0.0.1:{server.port}", authority, server.token, server_name=name)
            with pytest.raises(ApiUnavailable) as caught:
                await reads_a_pod(cluster)
            assert not server.requests, "no token is sent to it"
            return str(caught.value)

    assert "certificate" in asyncio.run(run(None, None))
    assert "certificate" in asyncio.run(run(AUTHORITY.cert_pem.bytes(), "example.org"))


def test_a_service_account_is_used_as_kubelet_mounts_it(tmp_path: Path) -> None:
    async def run() -> None:
        async with ApiServer() as server:
            server.put(pod("a"))
            cluster = server.cluster(tmp_path / "account")
            assert cluster.server == f"https://127.0.0.1:{server.port}"
            assert await reads_a_pod(cluster)

    asyncio.run(run())


def test_certificates_and_tokens_that_are_replaced_are_read_again(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("one\n", encoding="ascii")
    (tmp_path / "ca.crt").write_bytes(AUTHORITY.cert_pem.bytes())
    environment = {"KUBERNETES_SERVICE_HOST": "fd00::1", "KUBERNETES_SERVICE_PORT": "443"}
    cluster = in_cluster(environment, tmp_path)
    assert cluster.server == "https://[fd00::1]:443"
    first = cluster.context()
    assert cluster.context() is first
    assert cluster.headers() == {"Authorization": "Bearer one"}
    (tmp_path / "new").write_bytes(AUTHORITY.cert_pem.bytes())
    (tmp_path / "new").replace(tmp_path / "ca.crt")
    (tmp_path / "token").write_text("two\n", encoding="ascii")
    assert cluster.context() is not first
    assert cluster.headers() == {"Authorization": "Bearer two"}
    (tmp_path / "token").unlink()
    (tmp_path / "ca.crt").unlink()
    with pytest.raises(ClusterError, match="No such file or directory: mount the service account's token"):
        cluster.headers()
    with pytest.raises(ClusterError, match="No such file"):
        cluster.context()


def test_outside_of_a_cluster_a_kubeconfig_is_asked_for(tmp_path: Path) -> None:
    with pytest.raises(ClusterError, match="so this is no pod: give a kubeconfig"):
        in_cluster({}, tmp_path)
    with pytest.raises(ClusterError, match="give the pod a service account"):
        in_cluster({"KUBERNETES_SERVICE_HOST": "h", "KUBERNETES_SERVICE_PORT": "1"}, tmp_path)


@pytest.mark.parametrize(
    ("cluster", "user", "more", "text"),
    [
        ({"server": "https://h"}, {"exec": {"command": "aws"}}, {}, "exec is not supported: use a token"),
        ({"server": "https://h"}, {"username": "u"}, {}, "username is not supported"),
        ({"server": "ftp://h"}, {}, {}, "no address of an API server"),
        ({"server": "http://h"}, {"token": "t"}, {}, "in the clear: use https"),
        ({}, {}, {}, "server is missing"),
        ({"server": "https://h"}, {}, {"current-context": "nowhere"}, "there is no context nowhere"),
        ({"server": "https://h"}, {}, {"current-context": "there"}, "there is no cluster x"),
        ({"server": "https://h"}, {}, {"users": None}, "there is no user u"),
        ({"server": "https://h", "certificate-authority-data": "%"}, {}, {}, "no base64"),
    ],
)
def test_a_kubeconfig_that_cannot_be_used_says_why(
    tmp_path: Path, cluster: dict[str, Any], user: dict[str, Any], more: dict[str, Any], text: str
) -> None:
    with pytest.raises(ClusterError, match=text):
        from_kubeconfig(write(tmp_path / "config", cluster, user, **more))


def test_what_is_no_kubeconfig_says_why(tmp_path: Path) -> None:
    with pytest.raises(ClusterError, match="name a readable kubeconfig"):
        from_kubeconfig(tmp_path / "nowhere")
    for text, reason in (("- a", "is no mapping"), ("a: [", "name a readable kubeconfig")):
        (tmp_path / "config").write_text(text, encoding="ascii")
        with pytest.raises(ClusterError, match=reason):
            from_kubeconfig(tmp_path / "config")


def test_a_certificate_that_is_none_says_why() -> None:
    cluster = Cluster("https://127.0.0.1:1", authority=b"nonsense")
    with pytest.raises(ClusterError, match=r"certificates for https://127\.0\.0\.1:1: .*: put them right"):
        cluster.context()
