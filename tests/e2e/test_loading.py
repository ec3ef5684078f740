"""What pods' annotations have them do on GPUs of a real node: metrics, `nvidia-smi`, events and phases follow."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable

import yaml

from tests.fixtures.agent import NAMESPACE, Gpus
from tests.fixtures.knative import Requests, forwarded
from tests.fixtures.machine import wait_for
from tests.fixtures.prometheus import Prometheus

TIMELINE, SHAPE, MEMORY, PROFILE = (
    f"simgpu.dev/{name}" for name in ("utilization-timeline", "shape", "gpu-memory", "activity-profile")
)


def shown(gpus: Gpus, pod: str, family: str = "DCGM_FI_DEV_GPU_UTIL") -> float | None:
    return next((value for labels, value in gpus.series(family) if labels.get("pod") == pod), None)


def test_pods_do_what_their_annotations_say_also_after_a_restart(gpus: Gpus) -> None:
    steps = [{"time": "500ms", "utilization": 90}, {"time": "1h", "utilization": 60}]
    timed = gpus.pod(annotations={TIMELINE: json.dumps(steps)})
    shaped = gpus.pod(annotations={SHAPE: '{"main": "inference-decode"}', MEMORY: "20Gi"})
    body = {"metadata": {"name": "steady"}, "data": {"profile.yaml": "Profile: [{Load: 45}]"}}
    gpus.node.kubectl("apply", "-f", "-", stdin=json.dumps({"apiVersion": "v1", "kind": "ConfigMap", **body}))
    stored = gpus.pod(annotations={PROFILE: "configmap/steady"})
    gpus.running(timed, shaped, stored)
    for pod, percent in {timed: 60, shaped: 85, stored: 45}.items():
        wait_for(lambda pod=pod, percent=percent: shown(gpus, pod) == percent, f"{percent} %", seconds=15)  # type: ignore[misc]
    seen = gpus.exec(shaped, "nvidia-smi", "--query-gpu=utilization.gpu,memory.used", "--format=csv,noheader").strip()
    assert seen == f"85 %, {shown(gpus, shaped, 'DCGM_FI_DEV_FB_USED'):.0f} MiB"
    assert shown(gpus, shaped, "DCGM_FI_DEV_FB_USED") == 20480
    gpus.agent.stop(signal.SIGKILL)
    gpus.node.begin(gpus.agent)
    gpus.wait_ready()
    read: list[float] = []

    def busy_again() -> bool:
        read.append(shown(gpus, timed) or 0.0)
        return read[-1] == 60

    wait_for(busy_again, "60 % again", seconds=15)
    assert max(read) <= 60  # it did not begin anew, with 90 %


def test_a_pod_that_crosses_a_limit_ends_if_it_asks_for_that(gpus: Gpus) -> None:
    document = json.dumps({"Profile": [{"Load": 35}], "Limits": {"runtime": 1}})
    name = gpus.pod(annotations={PROFILE: document, "simgpu.dev/on-limit": "fail"})

    def phase() -> str:
        return gpus.node.kubectl("get", "pod", name, "-o", "jsonpath={.status.phase} {.status.reason}")

    wait_for(lambda: phase() == "Failed GpuLimitReached", "the pod to fail", seconds=30)
    events = gpus.node.kubectl("get", "events", "--field-selector", f"involvedObject.name={name}")
    assert "container main: Limit runtime reached, terminated" in events
    wait_for(lambda: name not in {labels.get("pod") for labels, _ in gpus.series()}, "the GPU to be free", seconds=30)


def test_a_pods_kind_and_requests_decide_where_it_says_nothing(
    gpus: Gpus, prometheus: Callable[..., Prometheus]
) -> None:
    labels = {"workloadKind": "InferenceWorkload"}
    served = gpus.pod(labels=labels, annotations={"simgpu.dev/requests-at-full-load": "50"})
    unasked, trains = gpus.pod(labels=labels), gpus.pod(labels={"workloadKind": "TrainingWorkload"})
    edits = gpus.pod(labels={"workloadKind": "InteractiveWorkload"})
    requests = Requests("default", served)
    started = prometheus(requests.address)
    with forwarded(gpus.node.machine.outside, started.url) as url:
        gpus.agent.stop(signal.SIGTERM)
        gpus.agent.start("--prometheus-url", url)
        try:
            gpus.wait_ready()
            gpus.running(served, unasked, trains, edits)
            wait_for(lambda: (shown(gpus, trains) or 0) >= 80, "training", seconds=15)
            wait_for(lambda: (shown(gpus, served), shown(gpus, unasked)) == (100, 0), "its requests", seconds=60)
            assert shown(gpus, edits) == 0
            view = json.loads(
                gpus.node.kubectl("get", "configmap", f"topology-{gpus.node.name}", "-n", NAMESPACE, "-o", "json")
            )
            used = [gpu["status"]["podGpuUsageStatus"] for gpu in yaml.safe_load(view["data"]["topology.yml"])["gpus"]]
            assert [item["useKnativeUtilization"] for gpu in used for item in gpu.values()].count(True) == 2
        finally:
            gpus.agent.stop(signal.SIGTERM)
            gpus.agent.start()
            gpus.wait_ready()
            requests.server.shutdown()
            requests.server.server_close()
