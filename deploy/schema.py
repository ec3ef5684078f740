"""The schema of the chart's values, from which Helm's checks and the reference of the topology come.

`python -m deploy.schema` writes `chart/values.schema.json`. Every value may be null, which counts as left out.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from simgpu import vocabulary
from simgpu.topology import keys

FILE = Path(__file__).parent / "chart" / "values.schema.json"

Schema = dict[str, Any]

_IN_OBJECT = "in the NodeResourceTopology: the topology manager's"
_EQUAL = "by default an equal part of the node's"


def _of(kind: str, about: str = "", **more: Any) -> Schema:
    found: Schema = {"type": [kind, "null"], **more}
    return {"description": about, **found} if about else found


def text(about: str = "", **more: Any) -> Schema:
    """A text."""
    return _of("string", about, **more)


def flag(about: str = "") -> Schema:
    """True or false."""
    return _of("boolean", about)


def number(about: str = "", *, highest: int | None = None, lowest: int = 0) -> Schema:
    """A whole number."""
    return _of("integer", about, minimum=lowest, **({} if highest is None else {"maximum": highest}))


def several(item: Schema, about: str = "") -> Schema:
    """A list."""
    return _of("array", about, items=item)


def section(fields: Mapping[str, Schema], about: str = "") -> Schema:
    """A mapping with these keys and no others."""
    return _of("object", about, properties=dict(fields), additionalProperties=False)


def by_name(entry: Schema, about: str = "") -> Schema:
    """A mapping from names to entries of one form."""
    return _of("object", about, additionalProperties=entry)


def anything(about: str = "") -> Schema:
    """A mapping with any keys: what Kubernetes, or a format that is not ours, defines."""
    return _of("object", about)


def one_of(*allowed: str, about: str = "") -> Schema:
    """One of some texts; empty or null for none."""
    return {"description": about, "enum": [*allowed, "", None]} if about else {"enum": [*allowed, "", None]}


# The topology. Sections that `simgpu config check` explains better are not described in full here.

_SIZE: Schema = {"type": ["string", "integer", "null"]}
_COUNT = number(highest=vocabulary.MAX_DEVICES)

POOL: dict[str, Schema] = {
    "gpus": several(
        section(
            {
                "type": text("GPU model of the catalog, its product name, or a product of your own"),
                "memory": {"description": "memory of each, such as `80GiB`; needed for unknown products", **_SIZE},
                "count": number("how many, by default 1", highest=vocabulary.MAX_GPUS, lowest=1),
            }
        ),
        "GPUs of a node, also of several models",
    ),
    "gpuProduct": text("in fake-gpu-operator's older form: the product of all GPUs"),
    "gpuCount": number("how many GPUs a node has", highest=vocabulary.MAX_GPUS),
    "gpuMemory": number("memory of each, in MiB", highest=vocabulary.MAX_MEMORY_MIB),
    "gpu": section(
        {
            "backend": one_of("fake", "mock", about="both mean the same: NVML is always simulated"),
            "profile": text("a profile (ConfigMap `gpu-profile-<name>`), or a model of the catalog"),
            "overrides": anything("what differs from the profile: `device_count`, `device_defaults`, `system` …"),
        },
        "in fake-gpu-operator's newer form: all GPUs are of one profile",
    ),
    "otherDevices": several(
        section({"name": text("resource, such as `rdma/hca`"), "count": _COUNT}), "other resources of a node"
    ),
    "resources": several(by_name(_COUNT), "the same, as a list of mappings with one entry: `rdma/hca: 1`"),
    "numa": section(
        {
            "zones": number("NUMA nodes", highest=vocabulary.MAX_NUMA_ZONES),
            "gpusPerZone": several(number(highest=vocabulary.MAX_GPUS), "GPUs of each; by default evenly"),
            "topologyManagerPolicy": one_of(*vocabulary.TOPOLOGY_POLICIES, about=f"{_IN_OBJECT} policy"),
            "topologyManagerScope": one_of(*vocabulary.TOPOLOGY_SCOPES, about=f"{_IN_OBJECT} scope"),
            "cpuPerZone": {"description": f"cores of each; {_EQUAL}", "type": ["string", "integer", "null"]},
            "memPerZone": {"description": f"memory of each, such as `64Gi`; {_EQUAL}", **_SIZE},
            "distances": section(
                {name: number(highest=vocabulary.MAX_NUMA_DISTANCE) for name in keys.DISTANCES},
                "of a NUMA node from itself and from others, 10 and 21 by default",
            ),
        },
        "NUMA nodes that GPUs are on, also as NodeResourceTopology where that is served",
    ),
    "sharing": anything("GPUs for several pods: the section of NVIDIA's device plugin"),
    "failures": anything("what fails: `unhealthy`, `dying`; on a real node also `refuse`, `delay`, `vanish`, `flap`"),
    "settable": flag("on a real node, whether pods may set power limits, clocks and modes of their GPUs"),
    "allocation": one_of(*vocabulary.ALLOCATIONS, about="how pods get GPUs: `nvidia.com/gpu`, claims (DRA), or both"),
    "dra": section(
        {
            "dynamicMIG": flag("whether MIG devices are offered beside GPUs that can be divided"),
            "consumableShares": {"description": "parts of a GPU for claims: `memory`, `unlimited`, or a number"},
        },
        "how DRA offers GPUs, named as options of NVIDIA's driver",
    ),
    "mig": section(
        {
            "strategy": one_of(*vocabulary.MIG_STRATEGIES, about="how pods request them; by default `migStrategy`"),
            "config": {"description": "layout of instances: its name, profiles with counts, or entries of mig-parted"},
        },
        "MIG instances that GPUs are divided into",
    ),
    "utilizationFrom": one_of(
        *vocabulary.UTILIZATION_SOURCES, about="on a real node, what keeps GPUs busy: an annotation or CPU use"
    ),
}  # fmt: skip

NODE: dict[str, Schema] = {
    "gpu-product": text("product of all GPUs"),
    "gpu-memory": number("memory of each, in MiB", highest=vocabulary.MAX_MEMORY_MIB),
    "gpus": several(
        section(
            {
                "id": text("the GPU's id, unique on the node"),
                "metrics": anything("what it does while no pod uses it: `utilization`, `fb-used`, `metadata`"),
            }
        ),
        "the node's GPUs",
    ),
    **{name: POOL[name] for name in ("sharing", "failures", "settable", "utilizationFrom", "allocation", "dra", "mig")},
}

TOPOLOGY: dict[str, Schema] = {
    "nodePoolLabelKey": text(f"label by which nodes are in a pool; by default `{vocabulary.POOL_LABEL}`"),
    "migStrategy": one_of(*vocabulary.MIG_STRATEGIES, about="how pods request MIG instances; by default `mixed`"),
    "mig-strategy": one_of(*vocabulary.MIG_STRATEGIES, about="the same, as an older form spells it"),
    "mig-configs": by_name({"type": ["array", "object"]}, "layouts of MIG instances by name, as in mig-parted's files"),
    "version": text("of such a file: `v1`"),
    "nodePools": by_name(section(POOL), "pools by name: what each node of a pool has"),
    "nodes": by_name(section(NODE), "nodes by name, instead of a pool or besides one"),
    "gpuOperator": anything("accepted, without effect"),
    "allocation": POOL["allocation"],
    "dra": POOL["dra"],
}

# The chart's own values.

_QUANTITIES = anything("requests and limits")
_PLACING: dict[str, Schema] = {
    "resources": _QUANTITIES,
    "nodeSelector": anything(),
    "tolerations": several(anything()),
    "affinity": anything(),
    "priorityClassName": text(),
    "podAnnotations": anything(),
    "podLabels": anything(),
}
_PROCESS: dict[str, Schema] = {
    "enabled": flag(),
    "identity": text("exporter to mimic"),
    "logLevel": one_of("debug", "info", "warning", "error"),
    "dashboard": flag("whether to serve the live page and its API beside the metrics"),
    "extraArgs": several(text(), "more options of the command"),
    **_PLACING,
}
_DURATION = text(pattern="^[0-9]+[smh]$")

OURS: dict[str, Schema] = {
    "image": section({"repository": text(), "tag": text(), "pullPolicy": one_of("Always", "IfNotPresent", "Never")}),
    "imagePullSecrets": several(section({"name": text()})),
    "fullnameOverride": text(),
    "commonLabels": by_name(text()),
    "topology": section(TOPOLOGY),
    "cluster": section(TOPOLOGY),
    "topologyConfigMap": section({"enabled": flag()}),
    "builtinProfiles": section({"enabled": flag()}),
    "customProfiles": by_name(anything()),
    "catalog": by_name({"type": ["object", "string", "null"]}),
    "allocation": one_of(*vocabulary.ALLOCATIONS),
    "controller": section({**_PROCESS, "replicas": number(highest=100)}),
    "agent": section(
        {
            **_PROCESS, "onKwokNodes": flag(), "updateStrategy": anything(), "kubeletDir": text(pattern="^/"),
            "cdiDir": text(pattern="^/"), "driverDir": text(pattern="^/"),
            "zoneView": section({"enabled": flag(), "dir": text(pattern="^/")}),
            "kernelLog": text(pattern="^(/.*)?$"),
        }
    ),
    "components": section(
        {
            "driver": flag("a driver folder for NVIDIA's own programs, with device files"),
            "devicePlugin": flag("the kubelet's device plugins"),
            "dra": flag("the kubelet's DRA plugin, and ResourceSlices"),
            "labels": flag("labels of GPU feature discovery"),
            "exporter": flag("metrics"),
        },
        "what agents bring to real nodes",
    ),
    "runtimeClass": section({"enabled": flag(), "name": text(), "handler": text()}),
    "serviceMonitor": section({"enabled": flag(), "interval": _DURATION, "labels": by_name(text())}),
    "dashboards": section({"enabled": flag(), "labels": by_name(text()), "annotations": by_name(text())}),
    "runai": section(
        {
            "enabled": flag(), "namespace": text(), "reservationNamespace": text(), "pollingInterval": _DURATION,
            "nri": flag(),
        }
    ),
    "admissionPolicy": section({"enabled": flag()}),
    "cleanup": section({"enabled": flag(), "timeout": _DURATION}),
    "global": anything("values that Helm gives to all charts"),
}  # fmt: skip


def _component(*names: str, **more: Schema) -> Schema:
    """A component of fake-gpu-operator: these switches, and what all of its components have."""
    return section(
        {"enabled": flag(), "image": anything(), "resources": anything(), **dict.fromkeys(names, anything()), **more}
    )


FAKE_GPU_OPERATOR: dict[str, Schema] = {
    "environment": section({"openshift": flag(), "fakeCSVVersion": text(), "resourceReservationNamespace": text()}),
    "prometheus": section({"url": text()}),
    "devicePlugin": _component(),
    "statusUpdater": _component(
        "podPatchRbac", disableNodeLabeling=flag(),
        runaiIntegration=section({"enabled": flag(), "pollingInterval": _DURATION}),
    ),
    "topologyServer": _component(),
    "statusExporter": _component(
        "nodeResourceTopology", "podResources", "kwok", topologyMaxExportInterval=text(),
    ),
    "kwokGpuDevicePlugin": _component(),
    "kwokDraPlugin": _component(),
    "migFaker": _component(),
    "nvmlMock": _component(),
    "gpuOperator": _component(),
    "nvidiaDraDriver": _component(),
    "draPlugin": _component("serviceAccount", "kubeletPlugin", imagePullSecrets=several(anything())),
    "ubuntu": _component(),
    "computeDomainController": _component(),
    "computeDomainDraPlugin": _component(healthcheckPort=number()),
    "kwokComputeDomainDraPlugin": _component(),
    "gpu-operator": anything(),
    "nvidia-dra-driver-gpu": anything(),
    **{name: text() for name in ("nameOverride", "namespaceOverride")},
    "selectorLabelsOverride": anything(),
}  # fmt: skip


def document() -> Schema:
    """Return the schema as Helm reads it."""
    return {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": "Values of SimGPU",
        "type": "object",
        "properties": OURS | FAKE_GPU_OPERATOR,
        "additionalProperties": False,
    }


def rendered() -> str:
    """Return the text of the file."""
    return json.dumps(document(), indent=1) + "\n"


def unknown_to_the_reader() -> Iterable[str]:
    """Yield keys of the topology that only one of the schema and its reader knows."""
    pairs: dict[str, tuple[Iterable[str], Iterable[str]]] = {
        "": (TOPOLOGY, keys.TOP),
        "nodePools.": (POOL, {*keys.LISTED_POOL, *keys.PROFILED_POOL, *keys.OLD_POOL}),
        "nodes.": (NODE, keys.NAMED_NODE),
    }
    for where, (here, there) in pairs.items():
        yield from (f"{where}{key}" for key in sorted({*here} ^ {*there}))


if __name__ == "__main__":
    FILE.write_text(rendered())
