"""Makes the command line and the configuration of each component of the cluster, as values.

The module is pure but for the files that it writes. Three settings are unusual. Without CAP_SYS_RESOURCE the node
cannot lower an ``oom_score_adj``, so no component may ask for that. There is no kube-proxy, so the API server itself
listens at the first address of the service range. The cluster must not react to a full disk of the machine.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from certificates import Authority
from node_init import (
    BRIDGE,
    NAME_SERVER_ADDRESS,
    NETWORK,
    NODE_ADDRESS,
    SERVICE_ADDRESS,
    SERVICE_RANGE,
    node_address,
)
from programs import Programs

API_SERVER = f"https://{SERVICE_ADDRESS}:443"
ETCD = "http://127.0.0.1:2379"
CONTAINERD_SOCKET = "/run/containerd/containerd.sock"
NODE_NAME = "node1"  # the first node
PAUSE_IMAGE = "docker.io/library/pause:e2e"
STATIC_PODS = "/var/lib/kubelet/static-pods"
UNUSED_SNAPSHOTTERS = ("btrfs", "zfs", "devmapper", "erofs", "blockfile")
ETCD_FLAGS = ("--log-level=warn", "--unsafe-no-fsync")  # no data of etcd outlives the node


@dataclass(frozen=True, slots=True)
class Component:
    """A program of the cluster."""

    name: str
    command: tuple[str | Path, ...]


def of_kubernetes(programs: Programs, name: str, flags: Mapping[str, object]) -> Component:
    return Component(name, (programs.kubernetes / name, *(f"--{flag}={value}" for flag, value in flags.items())))


def node_name(number: int) -> str:
    return f"node{number}"


def kubeconfig(path: Path, authority: Authority, name: str, subject: str) -> Path:
    """Write the kubeconfig of one client of the API server."""
    certificate, key = authority.issue(name, subject)
    server = {"server": API_SERVER, "certificate-authority": str(authority.certificate)}
    user = {"client-certificate": str(certificate), "client-key": str(key)}
    path.write_text(
        json.dumps(
            {
                "apiVersion": "v1",
                "kind": "Config",
                "clusters": [{"name": "e2e", "cluster": server}],
                "users": [{"name": name, "user": user}],
                "contexts": [{"name": "e2e", "context": {"cluster": "e2e", "user": name}}],
                "current-context": "e2e",
            }
        )
    )
    return path


def etcd(programs: Programs, data: str) -> Component:
    urls = {
        "--listen-client-urls": ETCD,
        "--advertise-client-urls": ETCD,
        "--listen-peer-urls": "http://127.0.0.1:2380",
    }
    flags = [f"{flag}={value}" for flag, value in urls.items()]
    return Component("etcd", (programs.runtime / "etcd", f"--data-dir={data}", *ETCD_FLAGS, *flags))


def api_server(programs: Programs, authority: Authority) -> Component:
    served = (SERVICE_ADDRESS, NODE_ADDRESS, "127.0.0.1", "localhost", "kubernetes", "kubernetes.default.svc")
    certificate, key = authority.issue("kube-apiserver", "/CN=kube-apiserver", served)
    client, client_key = authority.issue("kubelet-client", "/O=system:masters/CN=kube-apiserver-kubelet-client")
    signer, signer_key = authority.issue("service-accounts", "/CN=service-accounts")
    proxy, proxy_key = authority.issue("proxy-client", "/CN=proxy-client")
    flags = {
        "advertise-address": NODE_ADDRESS,
        "secure-port": 443,
        "etcd-servers": ETCD,
        "service-cluster-ip-range": SERVICE_RANGE,
        "tls-cert-file": certificate,
        "tls-private-key-file": key,
        "client-ca-file": authority.certificate,
        "kubelet-client-certificate": client,
        "kubelet-client-key": client_key,
        "kubelet-certificate-authority": authority.certificate,
        "kubelet-preferred-address-types": "InternalIP",
        "service-account-issuer": "https://kubernetes.default.svc",
        "service-account-key-file": signer,
        "service-account-signing-key-file": signer_key,
        "proxy-client-cert-file": proxy,
        "proxy-client-key-file": proxy_key,
        "requestheader-client-ca-file": authority.certificate,
        "requestheader-allowed-names": "proxy-client",
        "requestheader-username-headers": "X-Remote-User",
        "requestheader-group-headers": "X-Remote-Group",
        "authorization-mode": "Node,RBAC",
        "enable-admission-plugins": "NodeRestriction",
        # The API server reaches webhooks at their pods, as nothing here forwards a service's address.
        "enable-aggregator-routing": "true",
        "allow-privileged": "true",
        "event-ttl": "1h",
    }
    return of_kubernetes(programs, "kube-apiserver", flags)


def controller_manager(programs: Programs, authority: Authority, access: Path) -> Component:
    flags = {
        "kubeconfig": access,
        "leader-elect": "false",
        "bind-address": "127.0.0.1",
        "root-ca-file": authority.certificate,
        "service-account-private-key-file": authority.folder / "service-accounts.key",
        "use-service-account-credentials": "true",
        "service-cluster-ip-range": SERVICE_RANGE,
    }
    return of_kubernetes(programs, "kube-controller-manager", flags)


def scheduler(programs: Programs, access: Path) -> Component:
    flags = {"kubeconfig": access, "leader-elect": "false", "bind-address": "127.0.0.1"}
    return of_kubernetes(programs, "kube-scheduler", flags)


def name_server(program: Path, authority: Authority) -> Component:
    """Return the name server, which needs the keys of `admin`."""
    return Component("name-server", ("python3", "-I", program, NAME_SERVER_ADDRESS, API_SERVER, authority.folder))


def kubelet(programs: Programs, authority: Authority, access: Path, configuration: Path, number: int) -> Component:
    name, address = node_name(number), node_address(number)
    certificate, key = authority.issue(f"kubelet-server-{name}", f"/CN={name}", (address, name))
    configuration.write_text(
        json.dumps(
            {
                "apiVersion": "kubelet.config.k8s.io/v1beta1",
                "kind": "KubeletConfiguration",
                "authentication": {
                    "x509": {"clientCAFile": str(authority.certificate)},
                    "anonymous": {"enabled": False},
                },
                "authorization": {"mode": "Webhook"},
                "tlsCertFile": str(certificate),
                "tlsPrivateKeyFile": str(key),
                "address": address,
                "healthzBindAddress": "127.0.0.1",
                "readOnlyPort": 0,
                "containerRuntimeEndpoint": f"unix://{CONTAINERD_SOCKET}",
                # Allow control groups of version 1, which kubelets of 1.35 and later refuse by default.
                "failCgroupV1": False,
                "cgroupDriver": "cgroupfs",
                "oomScoreAdj": 0,
                "failSwapOn": False,
                "resolvConf": "",
                "clusterDNS": [NAME_SERVER_ADDRESS],
                "clusterDomain": "cluster.local",
                "makeIPTablesUtilChains": False,
                "evictionHard": {"memory.available": "0%", "nodefs.available": "0%", "imagefs.available": "0%"},
                "imageGCHighThresholdPercent": 100,
                "containerLogMaxSize": "50Mi",
                "nodeStatusUpdateFrequency": "2s",
                # The default is a minute: after this time kubelet retries a pod that failed to start.
                "syncFrequency": "5s",
                "shutdownGracePeriod": "0s",
                "staticPodPath": STATIC_PODS,
                "fileCheckFrequency": "1s",
            }
        )
    )
    flags = {
        "config": configuration,
        "kubeconfig": access,
        "hostname-override": name,
        "node-ip": address,
        "root-dir": "/var/lib/kubelet",
    }
    return of_kubernetes(programs, "kubelet", flags)


def containerd(programs: Programs, configuration: Path, networks: Path, number: int) -> Component:
    networks.mkdir()
    own = node_address(number).rpartition(".")[0]
    # Addresses outside the pod network are services' addresses, and all of these belong to the first node.
    place = {"subnet": NETWORK, "rangeStart": f"{own}.10", "rangeEnd": f"{own}.250", "gateway": NODE_ADDRESS}
    ranges = [[place]]
    addresses = {"type": "host-local", "ranges": ranges, "routes": [{"dst": "0.0.0.0/0"}], "dataDir": "/run/cni"}
    # The bridge already has its address. A plugin that is set to be the gateway would turn on forwarding.
    bridge = {"type": "bridge", "bridge": BRIDGE, "ipam": addresses}
    network = {"cniVersion": "0.4.0", "name": "e2e", "plugins": [bridge]}
    (networks / "e2e.conflist").write_text(json.dumps(network))
    configuration.write_text(
        f"""version = 3
root = "/var/lib/containerd"
state = "/run/containerd"
disabled_plugins = [{", ".join(f'"io.containerd.snapshotter.v1.{name}"' for name in UNUSED_SNAPSHOTTERS)}]
[grpc]
  address = "{CONTAINERD_SOCKET}"
[plugins."io.containerd.cri.v1.images"]
  snapshotter = "overlayfs"
  [plugins."io.containerd.cri.v1.images".pinned_images]
    sandbox = "{PAUSE_IMAGE}"
[plugins."io.containerd.cri.v1.runtime"]
  restrict_oom_score_adj = true
  disable_apparmor = true
  enable_selinux = false
  [plugins."io.containerd.cri.v1.runtime".cni]
    bin_dirs = ["{programs.runtime}"]
    conf_dir = "{networks}"
  [plugins."io.containerd.cri.v1.runtime".containerd]
    default_runtime_name = "runc"
  [plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
    runtime_path = "{programs.runtime / "containerd-shim-runc-v2"}"
  [plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc.options]
    BinaryName = "{programs.runtime / "runc"}"
    SystemdCgroup = false
"""
    )
    return Component("containerd", (programs.runtime / "containerd", "--config", configuration))
