"""The command line of each process of the control plane.

The API server and KWOK listen on the cluster's address (loopback unless a test needs a bridge), the others always on
loopback. etcd requires client certificates, for its health too; of the others, health and metrics are served without
one. DRA is enabled in every API version, with the feature gates below that the Kubernetes version has.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import msgspec

from simgpu import vocabulary
from simgpu.cluster.binaries import Version
from simgpu.cluster.record import Folder, Record

SERVICE_RANGE = "10.96.0.0/16"
SERVICE_ADDRESS = "10.96.0.1"
POD_RANGE = "10.64.0.1/10"

# Feature gate -> the Kubernetes minor version that introduced it.
_GATES = {
    "DRAPartitionableDevices": 33,
    "DRAConsumableCapacity": 34,
    "DRADeviceTaints": 33,
    "DRADeviceTaintRules": 35,
    "DRADeviceBindingConditions": 34,
    "DRAExtendedResource": 34,
    "DRAAdminAccess": 32,
    "DRAPrioritizedList": 33,
    "DRAResourceClaimDeviceStatus": 32,
    "ResourceHealthStatus": 31,
}
_DRA_VERSIONS = ("v1", "v1beta2", "v1beta1", "v1alpha3")

_LEASES_PER_SECOND = 100


class Component(msgspec.Struct, frozen=True):
    """A process of the cluster: its command line, and its health URL."""

    name: str
    command: list[str]
    health: str | None = None
    certificate: tuple[Path, Path] | None = None  # and key, if the health URL requires one


class Role(msgspec.Struct, frozen=True):
    """A SimGPU process that runs beside the control plane.

    It gets a free port for each name in `ports`. `{kubeconfig}` and `{port:NAME}` are replaced in its command, health
    URL and endpoints.
    """

    name: str
    command: tuple[str, ...]
    ports: tuple[str, ...] = ()
    health: str | None = None
    endpoints: dict[str, str] = {}

    def component(self, record: Record, folder: Folder) -> Component:
        """Return the process of this role in one cluster."""
        command = [fill(part, record, folder) for part in self.command]
        return Component(self.name, command, fill(self.health, record, folder) if self.health else None)


def fill(text: str, record: Record, folder: Folder) -> str:
    """Replace `{kubeconfig}` and `{port:NAME}` in a template."""
    text = text.replace("{kubeconfig}", str(folder.kubeconfig))
    for name, port in record.ports.items():
        text = text.replace(f"{{port:{name}}}", str(port))
    return text


def feature_gates(version: Version) -> str:
    """Return the feature gates that a Kubernetes version has, all enabled."""
    return ",".join(f"{gate}=true" for gate, since in _GATES.items() if version[1] >= since)


def lease_seconds(nodes: int) -> int:
    """Return the duration of a node's lease: longer for large fleets, to limit renewals to 100 a second."""
    return max(40, 4 * nodes // _LEASES_PER_SECOND)


def control_plane(
    record: Record, folder: Folder, programs: Mapping[str, Path], version: Version
) -> dict[str, Component]:
    """Return the processes of the control plane, in the order of their start."""
    parts = (
        _etcd(record, folder),
        _apiserver(record, folder, version),
        _controller_manager(record, folder, version),
        _scheduler(record, folder, version),
        _kwok(record, folder),
    )
    return {
        part.name: msgspec.structs.replace(part, command=[str(programs[part.name]), *part.command]) for part in parts
    }


def _etcd(record: Record, folder: Folder) -> Component:
    clients = f"https://127.0.0.1:{record.ports['etcd']}"
    peers = f"https://127.0.0.1:{record.ports['etcd-peer']}"
    flags = {
        "name": "simgpu",
        "data-dir": folder.etcd,
        "listen-client-urls": clients,
        "advertise-client-urls": clients,
        "listen-peer-urls": peers,
        "initial-advertise-peer-urls": peers,
        "initial-cluster": f"simgpu={peers}",
        "cert-file": folder.pki / "etcd-server.crt",
        "key-file": folder.pki / "etcd-server.key",
        "trusted-ca-file": folder.pki / "etcd-ca.crt",
        "client-cert-auth": "true",
        "peer-cert-file": folder.pki / "etcd-server.crt",
        "peer-key-file": folder.pki / "etcd-server.key",
        "peer-trusted-ca-file": folder.pki / "etcd-ca.crt",
        "peer-client-cert-auth": "true",
        "quota-backend-bytes": 8 * 1024**3,
        "unsafe-no-fsync": "true",  # a simulated cluster need not be durable, and is twice as fast
        "log-level": "warn",
    }
    # It listens long before it serves; then its clients' timeouts would run already.
    client = (folder.pki / "etcd-client.crt", folder.pki / "etcd-client.key")
    return Component("etcd", _flags(flags), f"{clients}/readyz", client)


def _apiserver(record: Record, folder: Folder, version: Version) -> Component:
    pki = folder.pki
    flags = {
        "bind-address": record.address,
        "advertise-address": record.address,
        "secure-port": record.ports["apiserver"],
        # A pod cannot reach loopback, so it is not published as a service endpoint.
        "endpoint-reconciler-type": "none" if record.address.startswith("127.") else "lease",
        "etcd-servers": f"https://127.0.0.1:{record.ports['etcd']}",
        "etcd-cafile": pki / "etcd-ca.crt",
        "etcd-certfile": pki / "etcd-client.crt",
        "etcd-keyfile": pki / "etcd-client.key",
        "tls-cert-file": pki / "apiserver.crt",
        "tls-private-key-file": pki / "apiserver.key",
        "client-ca-file": pki / "ca.crt",
        "kubelet-client-certificate": pki / "kubelet-client.crt",
        "kubelet-client-key": pki / "kubelet-client.key",
        "kubelet-preferred-address-types": "InternalIP,Hostname",
        "proxy-client-cert-file": pki / "front-proxy-client.crt",
        "proxy-client-key-file": pki / "front-proxy-client.key",
        "requestheader-client-ca-file": pki / "front-proxy-ca.crt",
        "requestheader-allowed-names": "front-proxy-client",
        "requestheader-extra-headers-prefix": "X-Remote-Extra-",
        "requestheader-group-headers": "X-Remote-Group",
        "requestheader-username-headers": "X-Remote-User",
        "service-account-issuer": "https://kubernetes.default.svc.cluster.local",
        "service-account-key-file": pki / "service-account.pub",
        "service-account-signing-key-file": pki / "service-account.key",
        "service-cluster-ip-range": SERVICE_RANGE,
        "authorization-mode": "Node,RBAC",
        "enable-admission-plugins": "NodeRestriction",
        "allow-privileged": "true",
        "runtime-config": ",".join(f"resource.k8s.io/{served}=true" for served in _DRA_VERSIONS),
        "feature-gates": feature_gates(version),
        # One user and one machine: fairness between tenants would only slow a load test down.
        "enable-priority-and-fairness": "false",
        "max-requests-inflight": 0,
        "max-mutating-requests-inflight": 0,
        "shutdown-delay-duration": "0s",
    }
    return Component("kube-apiserver", _flags(flags), f"{record.server}/readyz")


def _controller_manager(record: Record, folder: Folder, version: Version) -> Component:
    lease = lease_seconds(record.nodes)
    flags = {
        **_controller_flags(record, folder, "controller-manager", version),
        "root-ca-file": folder.pki / "ca.crt",
        "service-account-private-key-file": folder.pki / "service-account.key",
        "cluster-signing-cert-file": folder.pki / "ca.crt",
        "cluster-signing-key-file": folder.pki / "ca.key",
        "node-monitor-grace-period": f"{lease + 10}s",
        "service-cluster-ip-range": SERVICE_RANGE,
    }
    return Component("kube-controller-manager", _flags(flags), _health(record, "controller-manager"))


def _scheduler(record: Record, folder: Folder, version: Version) -> Component:
    return Component(
        "kube-scheduler",
        _flags(_controller_flags(record, folder, "scheduler", version)),
        _health(record, "scheduler"),
    )


def _controller_flags(record: Record, folder: Folder, listener: str, version: Version) -> dict[str, object]:
    return {
        "kubeconfig": folder.kubeconfig,
        "master": record.server,  # on the command line, so that a process of an older port is restarted
        "authentication-kubeconfig": folder.kubeconfig,
        "authorization-kubeconfig": folder.kubeconfig,
        "authorization-always-allow-paths": "/healthz,/readyz,/livez,/metrics",
        "bind-address": "127.0.0.1",
        "secure-port": record.ports[listener],
        "leader-elect": "false",
        "kube-api-qps": 5000,
        "kube-api-burst": 10000,
        "feature-gates": feature_gates(version),
    }


def _kwok(record: Record, folder: Folder) -> Component:
    port = record.ports["kwok"]
    flags = {
        "config": folder.path / "kwok.yaml",
        "v": "WARN",  # by default it logs each change of each object
        "kubeconfig": folder.kubeconfig,
        "master": record.server,
        "manage-all-nodes": "false",
        "manage-nodes-with-annotation-selector": f"{vocabulary.KWOK_NODE}=fake",
        "enable-crds": "Stage",
        "cidr": POD_RANGE,
        "node-ip": record.address,
        "node-port": port,
        "node-lease-duration-seconds": lease_seconds(record.nodes),
        "server-address": f"{record.address}:{port}",
        "tls-cert-file": folder.pki / "apiserver.crt",
        "tls-private-key-file": folder.pki / "apiserver.key",
    }
    return Component("kwok", _flags(flags), f"http://{record.address}:{port}/healthz")


def _health(record: Record, listener: str) -> str:
    return f"https://127.0.0.1:{record.ports[listener]}/healthz"


def _flags(values: Mapping[str, object]) -> list[str]:
    return [f"--{name}={value}" for name, value in values.items()]
