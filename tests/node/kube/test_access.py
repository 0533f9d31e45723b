"""Test the access to the API server, in a pod and by kubeconfig, with a token or a certificate."""

import asyncio
import base64
import contextlib
import os
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from watching import AGENT

from rig.cluster.apiserver import AUTHORITY, DEVELOPER, ApiServer, pod
from rig.until import eventually
from sharepod.kube import access as module
from sharepod.kube.access import Access, AccessError, from_kubeconfig, in_cluster
from sharepod.kube.client import ApiUnavailable, Client

CERTIFICATE = DEVELOPER.cert_chain_pems[0].bytes()
KEY = DEVELOPER.private_key_pem.bytes()
POD = "/api/v1/namespaces/default/pods/a"
PLUGIN = """#!{python}
import json, os, pathlib, sys, time

here = pathlib.Path(__file__).parent
with (here / "calls").open("a") as calls:
    calls.write(json.loads(os.environ["KUBERNETES_EXEC_INFO"])["kind"] + os.environ["REGION"] + "\\n")
token = (here / "issued").read_text()
if not token:
    sys.exit("no session: log in")
ends = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() + float(sys.argv[1])))
status = {{"token": token, "expirationTimestamp": ends}}
print(json.dumps({{"apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential", "status": status}}))
"""


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


def trusting(server: ApiServer) -> dict[str, Any]:
    authority = encoded(AUTHORITY.cert_pem.bytes())
    return {"server": f"https://127.0.0.1:{server.port}", "certificate-authority-data": authority}


def with_plugin(directory: Path, server: ApiServer, lasts_s: float) -> Path:
    """Return a kubeconfig as clouds write it, with a program that gives the token."""
    plugin = directory / "plugin"
    plugin.write_text(PLUGIN.format(python=sys.executable), encoding="ascii")
    plugin.chmod(0o755)
    issue(directory, server.token)
    user = {
        "exec": {
            "apiVersion": "client.authentication.k8s.io/v1",
            "command": str(plugin),
            "args": [str(lasts_s)],
            "env": [{"name": "REGION", "value": "-west"}],
            "interactiveMode": "Never",
        }
    }
    return write(directory / "config", trusting(server), user)


def issue(directory: Path, token: str) -> None:
    (directory / "issued").write_text(token, encoding="ascii")


def calls(directory: Path) -> list[str]:
    return (directory / "calls").read_text(encoding="ascii").split()


async def reads_a_pod(access: Access) -> bool:
    async with Client(access, AGENT) as client:
        return (await client.call("GET", POD, timeout_s=5.0)).status == 200


@pytest.mark.parametrize("certificate", ["data", "files"])
async def test_a_kubeconfig_with_a_certificate_reaches_the_server_and_leaves_no_key_open(
    tmp_path: Path, certificate: str
) -> None:
    before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208
    async with ApiServer() as server:
        server.put(pod("a"))
        cluster = trusting(server)
        user = {"client-certificate-data": encoded(CERTIFICATE), "client-key-data": encoded(KEY)}
        if certificate == "files":
            (tmp_path / "user.crt").write_bytes(CERTIFICATE)
            (tmp_path / "user.key").write_bytes(KEY)
            (tmp_path / "ca.crt").write_bytes(AUTHORITY.cert_pem.bytes())
            cluster = {"server": cluster["server"] + "/", "certificate-authority": "ca.crt"}
            user = {"client-certificate": "user.crt", "client-key": str(tmp_path / "user.key")}
        assert await reads_a_pod(from_kubeconfig(write(tmp_path / "config", cluster, user)))
    assert len(os.listdir("/proc/self/fd")) <= before  # noqa: PTH208


async def test_a_plugin_is_asked_for_the_token_and_asked_again_when_it_is_known_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "REFUSED_S", 0.0)
    async with ApiServer() as server:
        server.put(pod("a"))
        access = from_kubeconfig(with_plugin(tmp_path, server, lasts_s=3600))
        async with Client(access, AGENT) as client:
            for _ in range(3):
                assert (await client.call("GET", POD, timeout_s=5.0)).status == 200
            assert calls(tmp_path) == ["ExecCredential-west"], "it is asked once for as long as its token lasts"
            server.token = "second"  # noqa: S105
            issue(tmp_path, "second")
            assert (await client.call("GET", POD, timeout_s=5.0)).status == 200
            assert len(calls(tmp_path)) == 2
            server.token = "third"  # noqa: S105
            issue(tmp_path, "third")
            with pytest.raises(ApiUnavailable, match="401"):  # a watch is begun anew by its reader
                await anext(client.stream(POD, {}, 5.0))
            assert [item async for item in client.stream(POD, {}, 5.0)] == []
            assert len(calls(tmp_path)) == 3
            server.faults.refuse(503)
            with pytest.raises(ApiUnavailable, match="503"):
                await anext(client.stream(POD, {}, 5.0))
            assert [item async for item in client.stream(POD, {}, 5.0)] == []
            assert len(calls(tmp_path)) == 3, "no other refusal is about the token"


HANGS = '#!/bin/sh\necho asked >>"${0%/*}/calls"\nexec sleep 1\n'


@pytest.mark.parametrize("had_token", [False, True])
async def test_a_plugin_that_hangs_is_not_waited_for_and_no_second_one_hangs_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, had_token: bool
) -> None:
    async with ApiServer() as server:
        server.put(pod("a"))
        access = from_kubeconfig(with_plugin(tmp_path, server, lasts_s=60))
        if had_token:
            assert await reads_a_pod(access)
        (tmp_path / "calls").write_text("", encoding="ascii")
        (tmp_path / "plugin").write_text(HANGS, encoding="ascii")
        monkeypatch.setattr(module, "AGE_S", 0.0)
        monkeypatch.setattr(module, "READ_S", 0.3)
        for _ in range(3):
            if had_token:
                assert await reads_a_pod(access), "the token that there is is used on"
            else:
                with pytest.raises(AccessError, match="no credential within"):
                    await access.current()
        assert calls(tmp_path) == ["asked"]

        async def asked_again() -> bool:
            with contextlib.suppress(AccessError):
                await access.current()
            return calls(tmp_path) == ["asked", "asked"]

        await eventually(asked_again)
    await asyncio.sleep(2.0)  # the library does not end a plugin that it no longer waits for
    assert ("credentials stay as they were" in [record.message for record in caplog.records]) is had_token


async def test_a_token_file_and_a_kubeconfig_that_change_are_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "AGE_S", 0.0)
    async with ApiServer() as server:
        server.put(pod("a"))
        (tmp_path / "token").write_text(server.token, encoding="ascii")
        path = write(tmp_path / "config", trusting(server), {"tokenFile": "token"})
        async with Client(from_kubeconfig(path), AGENT) as client:
            assert (await client.call("GET", POD, timeout_s=5.0)).status == 200
            server.token = "second"  # noqa: S105
            (tmp_path / "token").write_text("second\n", encoding="ascii")
            assert (await client.call("GET", POD, timeout_s=5.0)).status == 200
            server.token = "the third"  # noqa: S105
            write(path, trusting(server), {"token": "the third"})
            assert (await client.call("GET", POD, timeout_s=5.0)).status == 200


def test_a_server_of_another_authority_or_name_is_not_believed(tmp_path: Path) -> None:
    async def run(**more: str) -> str:
        async with ApiServer() as server:
            cluster: dict[str, Any] = {"server": f"https://127.0.0.1:{server.port}", **more}
            with pytest.raises(ApiUnavailable) as caught:
                await reads_a_pod(from_kubeconfig(write(tmp_path / "config", cluster, {"token": server.token})))
            assert not server.requests, "no token is sent to it"
            return str(caught.value)

    ours = encoded(AUTHORITY.cert_pem.bytes())
    assert "certificate" in asyncio.run(run())
    assert "certificate" in asyncio.run(run(**{"certificate-authority-data": ours, "tls-server-name": "example.org"}))


def test_outside_of_a_cluster_a_kubeconfig_is_asked_for(tmp_path: Path) -> None:
    for incomplete in ({}, {"KUBERNETES_SERVICE_HOST": "h"}, {"KUBERNETES_SERVICE_PORT": "1"}):
        with pytest.raises(AccessError, match="so this is no pod: give a kubeconfig"):
            in_cluster(incomplete, tmp_path)
    with pytest.raises(AccessError, match="give the pod a service account"):
        in_cluster({"KUBERNETES_SERVICE_HOST": "h", "KUBERNETES_SERVICE_PORT": "1"}, tmp_path)


@pytest.mark.parametrize(
    ("server", "user", "more", "text"),
    [
        ("https://h", {"exec": {"command": "aws"}}, {}, "it gives no credential: add a token"),
        ("ftp://h", {}, {}, "no address: give https://host:port"),
        ("http://h", {"token": "t"}, {}, "in the clear: use https"),
        ("https://h", {"token": "t"}, {"current-context": "nowhere"}, "object with name nowhere.*: put it right"),
        ("https://h", {"token": "t"}, {"users": None}, "write it as kubectl does"),
    ],
)
def test_a_kubeconfig_that_cannot_be_used_says_why(
    tmp_path: Path, server: str, user: dict[str, Any], more: dict[str, Any], text: str
) -> None:
    access = from_kubeconfig(write(tmp_path / "config", {"server": server}, user, **more))
    with pytest.raises(AccessError, match=text) as caught:
        asyncio.run(access.current())
    assert "\n" not in str(caught.value)
    assert str(tmp_path / "config") in str(caught.value)


@pytest.mark.parametrize("text", ["- a", "a: [", "", '{"contexts": 7, "current-context": {}}'])
def test_what_is_no_kubeconfig_says_so(tmp_path: Path, text: str) -> None:
    with pytest.raises(AccessError, match="name a readable kubeconfig"):
        from_kubeconfig(tmp_path / "nowhere")
    (tmp_path / "config").write_text(text, encoding="ascii")
    with pytest.raises(AccessError, match=r"put it right|write it as kubectl does"):
        asyncio.run(from_kubeconfig(tmp_path / "config").current())
