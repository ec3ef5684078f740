"""The only place that constructs and wires. Each long-running command is one module here."""

from __future__ import annotations

import sys

from simgpu.cluster.components import Role


def cluster_roles() -> tuple[Role, ...]:
    """Return the processes of SimGPU that a local cluster runs beside its control plane."""
    listen = ("--listen", "127.0.0.1:{port:metrics}", "--topology-listen", "127.0.0.1:{port:topology}")
    return (
        Role(
            name="controller",
            command=(sys.executable, "-m", "simgpu", "controller", "--kubeconfig", "{kubeconfig}", *listen),
            ports=("metrics", "topology"),
            health="http://127.0.0.1:{port:metrics}/healthz",
            endpoints={
                "dashboard": "http://127.0.0.1:{port:metrics}/",
                "metrics": "http://127.0.0.1:{port:metrics}/metrics",
                "topology": "http://127.0.0.1:{port:topology}/topology",
            },
        ),
    )
