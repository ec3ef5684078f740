"""Names, defaults and limits that users and other programs see, each in one place.

Resources, labels, annotations, ConfigMaps and their keys, environment variables, files and limits: each constant is
made together with its entry in `docs/reference/keys.md`, which `docs/generate.py` writes from `TERMS` and
`LIMITS`. A term's `writer` is who sets it; "you" are a cluster's users.
"""

from __future__ import annotations

import functools
from typing import NamedTuple


class Term(NamedTuple):
    """A name, and its description for the reference (in Markdown)."""

    name: str
    where: str
    writer: str
    meaning: str
    values: str = ""
    default: str = ""


class Limit(NamedTuple):
    """The highest number that is accepted, and of what."""

    highest: int
    what: str
    why: str = ""


TERMS: dict[str, list[Term]] = {}  # by heading of the reference
LIMITS: list[Limit] = []


def _term(
    heading: str, name: str, where: str, writer: str, meaning: str, *, values: str = "", default: str = ""
) -> str:
    TERMS.setdefault(heading, []).append(Term(name, where, writer, meaning, values, default))
    return name


_node = functools.partial(_term, "Nodes")
_pod = functools.partial(_term, "Pods")
_object = functools.partial(_term, "Objects")
_load = functools.partial(_term, "Load tests")
_variable = functools.partial(_term, "Environment variables")
_file = functools.partial(_term, "Files")


def _discovered(name: str, meaning: str, *, values: str = "") -> str:
    heading = "Labels of feature discovery"
    return _term(heading, f"nvidia.com/{name}", "label", "SimGPU", meaning, values=values)


def _attribute(name: str, where: str, meaning: str, *, values: str = "") -> str:
    full = name if "/" in name else f"{DRA_DRIVER}/{name}"
    _term("Attributes of DRA devices", full, where, "SimGPU", meaning, values=values)
    return name


def _limit(highest: int, what: str, why: str = "") -> int:
    LIMITS.append(Limit(highest, what, why))
    return highest


# Defaults.

DEFAULT_POOL = "default"
DEFAULT_NAMESPACE = "gpu-operator"
DEFAULT_RESERVATION_NAMESPACE = "runai-reservation"
DEFAULT_MODEL, DEFAULT_COUNT = "h200", 8  # GPUs of a node of `simgpu up`
DEFAULT_NODES = 3  # of `simgpu up`
DEFAULT_PROMETHEUS = "http://prometheus-operated.runai:9090"
DEFAULT_DRIVER, DEFAULT_CUDA = "580.159.04", "13.0"  # of models that state none

COMPONENTS = DRIVER_PART, PLUGIN_PART, DRA_PART, LABELS_PART, EXPORTER_PART = (
    "driver", "device-plugins", "dra", "labels", "exporter",
)  # that an agent can bring  # fmt: skip

DEFAULT_TOPOLOGY_POLICY, DEFAULT_TOPOLOGY_SCOPE = "single-numa-node", "container"  # of pools with `numa`
TOPOLOGY_POLICIES = (DEFAULT_TOPOLOGY_POLICY, "restricted", "best-effort", "none")
TOPOLOGY_SCOPES = (DEFAULT_TOPOLOGY_SCOPE, "pod")
DEFAULT_NUMA_DISTANCES = (10, 21)  # of a NUMA node from itself, and from others

# Limits.

MAX_GPUS = _limit(1024, "GPUs of a node in the topology", "all of them on a fake node")
MAX_PAGES = _limit(
    128, "GPUs of a real node, of `simgpu run` and of `exporter --page`", "libnvidia-ml.so.1 opens no more state pages"
)
MAX_REPLICAS = _limit(1000, "times that a GPU is offered (`replicas` of `sharing`)")
MAX_MACHINE_GPUS = _limit(1_000_000, "GPUs of an exporter's `--config`")
MAX_DEVICES = _limit(
    10_000, "devices of a resource, shares included", "the kubelet takes the list of them in one message of 4 MiB"
)
MAX_RESOURCES = _limit(64, "other resources of a node", "each has a device plugin of its own")
MAX_NUMA_ZONES = _limit(64, "NUMA nodes of a node (`zones` of `numa`)")
MAX_NUMA_DISTANCE = _limit(255, "distance of NUMA nodes (`distances` of `numa`)", "firmware states it in one byte")
MAX_MEMORY_MIB = _limit(100_000_000, "MiB of a GPU's memory")
MAX_NAME = _limit(253, "characters of a pool's, node's or product's name", "as many as names of nodes have")
MAX_MIG_CONFIGS = _limit(256, "layouts of `mig-configs`, and of a mig-parted file")
MAX_LABEL = _limit(63, "characters of a label's value", "Kubernetes allows no more")
MAX_POD_ANNOTATION = _limit(
    64,
    "characters of a pod's annotation",
    "a longer one is an event on the pod, and counts as none. KWOK uses `simgpu.dev/run-time` of any length; "
    "`runai-gpu` is only compared",
)
MAX_LOAD_ANNOTATION = _limit(
    1 << 14, "characters of a pod's `simgpu.dev/utilization-timeline`, `shape`, `activity-profile` and `gpu-memory`",
    "longer profiles are in a ConfigMap; a longer one is an event on the pod, and counts as none",
)  # fmt: skip
MAX_TIMELINE_STEPS = _limit(500, "steps of a pod's timeline")
MAX_TIMELINE_SECONDS = _limit(366 * 24 * 3600, "seconds of a step of a timeline")
MAX_NODE_ANNOTATION = _limit(4096, "characters of a node's annotation", "a longer one is an event on the node")
MAX_CONTAINERS = _limit(256, "containers with GPUs in a pod of a fake node", "further ones have none")
MAX_POD_GROUPS = _limit(64, "labels `runai-gpu-group/<group>` of a pod", "further ones have no effect")
MAX_NODES = _limit(50_000, "nodes of `simgpu up`")
MAX_CONNECTIONS = _limit(64, "connections of a pod to the workload socket at a time")
MAX_CONNECTS = _limit(64, "connections that a pod, or one of its processes, may open at once")
MAX_CONNECT_RATE = _limit(20, "connections that a pod, or one of its processes, may open in a second after that")
MAX_DOCUMENT_BYTES = _limit(1 << 16, "bytes of a pod's document for the workload socket")
MAX_ACTIVITIES = _limit(4096, "activities of a pod, in all its workloads")
MAX_PLACES = _limit(1024, "workloads of a pod, each counted once for every GPU that it is on")
MAX_ALL_PLACES = _limit(
    8192, "workloads of all pods of a real node, counted so", "each pod can always have one on all its GPUs"
)
MAX_CLAIMS = _limit(4096, "claims that are prepared on a real node at a time")
MAX_CHANGES = _limit(64, "changes of a pod's activities in a step", "where they are shorter, some are skipped")

MAX_SLICE_DEVICES = _limit(128, "devices of a ResourceSlice", "the API allows no more; further ones are in more slices")
MAX_COUNTING_DEVICES = _limit(64, "devices of a ResourceSlice where any has taints or consumes counters", "the same")
MAX_COUNTER_SETS = _limit(8, "counter sets of a ResourceSlice", "the same")
MAX_CLAIM_RESULTS = _limit(32, "devices of a ResourceClaim", "the API allows no more; further ones are not read")
MAX_CLAIM_USERS = _limit(256, "pods that a ResourceClaim is reserved for", "the same")
MAX_POD_CLAIMS = _limit(
    64, "claims of a pod of a fake node, and of each of its containers", "further ones have no effect"
)
MAX_OPAQUE_BYTES = _limit(10 * 1024, "bytes of a claim's opaque configuration", "the API allows no more")
MAX_SHARES = _limit(1000, "shares of a GPU (`consumableShares`)")

MAX_FLEET_GPUS = _limit(1_000_000, "items that an API request can skip (`offset`)")
MAX_API_ITEMS = _limit(
    1000, "items of an API answer (`limit`), and GPUs of a node in it", "further ones are in more answers"
)
MAX_API_TEXT = _limit(253, "characters of a parameter of an API request", "as many as names of nodes have")
MAX_VIEWERS = _limit(128, "viewers of the page at a time", "further ones get 503 and try again")
MAX_VIEWS = _limit(64, "different views that they look at", "the same")
MAX_PENDING_PODS = _limit(500, "pending pods with GPUs that the page lists")
MAX_PENDING_REQUESTS = _limit(
    8, "requests for 500 pending pods each, from which the page picks those with GPUs", "further pods are not listed"
)

# Resources and nodes.

GPU_RESOURCE = _node(
    "nvidia.com/gpu",
    "capacity, allocatable",
    "SimGPU",
    "GPUs of the node, which pods request; shares of them where they are shared and not renamed",
    values=f"0 to {MAX_GPUS}, on a real node to {MAX_PAGES}; with shares to {MAX_DEVICES:,}",
)
KWOK_NODE = _node(
    "kwok.x-k8s.io/node", "annotation", "you, `up`",
    "KWOK plays the life of a node with `fake`; the controller leaves nodes without it alone. As a taint with "
    "effect `NoSchedule`, it keeps pods away that do not ask for simulated nodes",
    values="`fake`",
)  # fmt: skip
NODE_TYPE_LABEL = _node("type", "label", "`up`", "marks the nodes that `simgpu up` makes", values="`kwok`")
POOL_LABEL = _node(
    "run.ai/simulated-gpu-node-pool", "label", "you, `up`",
    "the pool whose GPUs the node has; the topology's `nodePoolLabelKey` names another label",
    values="a pool of the topology", default=f"none; `up` sets `{DEFAULT_POOL}`",
)  # fmt: skip
GPUS_ANNOTATION = _node(
    "simgpu.dev/gpus", "annotation", "you",
    "GPUs of this node alone; comes before the topology. The node then has nothing of its pool: no sharing, failures, "
    "NUMA nodes, other devices, settable GPUs or source of utilization. One that cannot be read is reported by an "
    "event, and the node keeps its GPUs",
    values=f"`MODEL:COUNT`, several with commas, such as `h200:8`; at most {MAX_GPUS} GPUs",
    default="the topology's entry for the node's name, else the pool's",
)  # fmt: skip
ALLOCATIONS = EXTENDED, DRA, BOTH = ("extended", "dra", "both")
ALLOCATION_ANNOTATION = _node(
    "simgpu.dev/allocation", "annotation", "you",
    "how pods get the node's GPUs: as the extended resource, through [DRA](../guides/dra.md), or both; comes before "
    "the pool's `allocation`",
    values=", ".join(f"`{way}`" for way in ALLOCATIONS), default=f"the topology's, else `{EXTENDED}`",
)  # fmt: skip
FAILURES_ANNOTATION = _node(
    "simgpu.dev/failures", "annotation", "you",
    "[what fails](../guides/real-nodes.md#failures), on a fake node its GPUs alone; comes before the pool's",
    values="YAML, such as `{refuse: true}`", default="the pool's",
)  # fmt: skip
MIG_STRATEGIES = MIG_NONE, MIG_SINGLE, MIG_MIXED = ("none", "single", "mixed")
MIG_RESOURCE_PREFIX = _node(
    "nvidia.com/mig-", "capacity, allocatable, such as `nvidia.com/mig-1g.18gb`", "SimGPU",
    "[MIG instances](../guides/mig.md) of a profile with the strategy `mixed`; a `+` of its name is a `.` here",
    values="a number",
)  # fmt: skip
MIG_CONFIG = _node(
    "nvidia.com/mig.config", "label", "you",
    "[the layout of MIG instances](../guides/mig.md) that the node's GPUs get, as NVIDIA's MIG manager applies it",
    values="a layout's name, such as `all-balanced`", default="that of `run.ai/mig.config`, else the pool's",
)  # fmt: skip
MIG_STATES = MIG_PENDING, MIG_REBOOTING, MIG_SUCCESS, MIG_FAILED = ("pending", "rebooting", "success", "failed")
MIG_CONFIG_STATE = _node(
    "nvidia.com/mig.config.state", "label", "SimGPU",
    "how far the change of layout is; the event of a failed one has the reason, and the node keeps what it had",
    values=", ".join(f"`{state}`" for state in MIG_STATES),
)  # fmt: skip
RUNAI_MIG_CONFIG = _node(
    "run.ai/mig.config", "annotation", "you, Run:ai", "the same as a document",
    values="a mig-parted file whose layout is called `selected`", default="the pool's layout",
)  # fmt: skip
RUNAI_MIG_SELECTED = "selected"
RUNAI_MIG_MAPPING = _node(
    "run.ai/mig-mapping", "annotation", "SimGPU", "the instances that `run.ai/mig.config` has led to, by GPU",
    values="JSON in base64",
)  # fmt: skip
AGENT_LABEL = _node(
    "simgpu.dev/agent", "label", "you",
    "a real node for [the agent's DaemonSet](../guides/real-nodes.md#as-a-daemonset)", values='`"true"`',
)  # fmt: skip
MANAGED_LABEL = _node(
    "simgpu.dev/managed", "label", "SimGPU",
    "a real node on which an agent has put something; removed last: until then the agent's DaemonSet stays there",
    values="`true`",
)  # fmt: skip
FAKE_GPU_LABEL = _node("run.ai/fake.gpu", "label", "SimGPU", "the node's GPUs are simulated", values="`true`")

GPU_PRODUCT = _discovered(
    "gpu.product", "product of the first GPU; it ends in `-SHARED` where GPUs are shared unrenamed"
)
GPU_COUNT = _discovered("gpu.count", "how many GPUs the node has")
GPU_MEMORY = _discovered("gpu.memory", "memory of the first GPU", values="MiB")
GPU_PRESENT = _discovered("gpu.present", "the node has GPUs", values="`true`")
GPU_FAMILY = _discovered("gpu.family", "architecture, such as `hopper`")
GPU_MACHINE = _discovered("gpu.machine", "type of the machine", values="`SimGPU`")
GPU_REPLICAS = _discovered("gpu.replicas", "how often each GPU is offered", values=f"1 to {MAX_REPLICAS}")
GPU_SHARING_STRATEGY = _discovered("gpu.sharing-strategy", "how GPUs are shared", values="`none`, `time-slicing`")
GPU_COMPUTE_MAJOR = _discovered("gpu.compute.major", "compute capability, before the point")
GPU_COMPUTE_MINOR = _discovered("gpu.compute.minor", "compute capability, after the point")
DRIVER_FULL = _discovered("cuda.driver-version.full", "driver version")
DRIVER_MAJOR = _discovered("cuda.driver-version.major", "its first part")
DRIVER_MINOR = _discovered("cuda.driver-version.minor", "its second part")
DRIVER_REVISION = _discovered("cuda.driver-version.revision", "its third part")
CUDA_FULL = _discovered("cuda.runtime-version.full", "CUDA version")
CUDA_MAJOR = _discovered("cuda.runtime-version.major", "its first part")
CUDA_MINOR = _discovered("cuda.runtime-version.minor", "its second part")
OLD_DRIVER_MAJOR = _discovered("cuda.driver.major", "the same as `cuda.driver-version.major`, under its older name")
OLD_DRIVER_MINOR = _discovered("cuda.driver.minor", "the same as `cuda.driver-version.minor`, under its older name")
OLD_DRIVER_REVISION = _discovered("cuda.driver.rev", "the same as `cuda.driver-version.revision`, under its older name")
OLD_CUDA_MAJOR = _discovered("cuda.runtime.major", "the same as `cuda.runtime-version.major`, under its older name")
OLD_CUDA_MINOR = _discovered("cuda.runtime.minor", "the same as `cuda.runtime-version.minor`, under its older name")
GPU_MODE = _discovered(
    "gpu.mode", "what GPUs are for, by their PCI class", values="`compute`, `graphics`; `unknown` if they differ"
)
VGPU_PRESENT = _discovered("vgpu.present", "whether there are virtual GPUs", values="`false`")
DISCOVERY_TIME = _discovered(
    "gfd.timestamp",
    "when the controller or agent that labelled the node first had started",
    values="seconds since 1970",
)
MIG_CAPABLE = _discovered("mig.capable", "whether any GPU can be divided", values="`true`, `false`")
MIG_STRATEGY = _discovered(
    "mig.strategy", "the pool's `mig.strategy`, else the topology's `migStrategy`",
    values=", ".join(f"`{name}`" for name in MIG_STRATEGIES),
)  # fmt: skip
MPS_CAPABLE = _discovered("mps.capable", "whether GPUs are shared by MPS", values="`false`")
DEPLOYED_LABELS = (_discovered("gpu.deploy.dcgm-exporter", "the node gets an exporter", values="`true`"),)
DEPLOYED_ON_REAL_LABELS = (
    _discovered("gpu.deploy.device-plugin", "on a real node, it gets a device plugin", values="`true`"),
    _discovered("gpu.deploy.dra-plugin-gpu", "on a real node, it gets the GPU plugin of DRA", values="`true`"),
    _discovered(
        "gpu.deploy.compute-domain-dra-plugin", "on a real node, it gets the plugin of compute domains", values="`true`"
    ),
)

# Pods.

UTILIZATION_ANNOTATION = _pod(
    "run.ai/simulated-gpu-utilization", "annotation", "you", "how busy its GPUs are",
    values="a percentage such as `80`, or a range such as `10-30`", default="100",
)  # fmt: skip
_BY_CONTAINER = "; or a JSON object of these by container"
TIMELINE_ANNOTATION = _pod(
    "simgpu.dev/utilization-timeline", "annotation", "you",
    "[how busy its GPUs are over time](../guides/busy-pods.md#over-time), since the pod's start; idle afterwards",
    values='JSON: `{"steps": [{"time": "1h", "utilization": 80}], "repeat": 5}`, `repeat` 0 is for ever; or only the '
    f"steps, for once{_BY_CONTAINER}",
)  # fmt: skip
SHAPE_ANNOTATION = _pod(
    "simgpu.dev/shape", "annotation", "you",
    "[what kind of work keeps its GPUs busy](../guides/busy-pods.md#what-kind-of-work): power, clocks and memory "
    "follow from it", values=f"a shape that `simgpu catalog` lists{_BY_CONTAINER}", default="`training`",
)  # fmt: skip
ACTIVITY_ANNOTATION = _pod(
    "simgpu.dev/activity-profile", "annotation", "you",
    "[everything that it does](../guides/busy-pods.md#everything), as a workload document",
    values=f"a document as JSON, or `configmap/<name>` of its namespace (key `profile.yaml`){_BY_CONTAINER}",
)  # fmt: skip
MEMORY_ANNOTATION = _pod(
    "simgpu.dev/gpu-memory", "annotation", "you", "memory that it holds of each of its GPUs",
    values=f"a quantity such as `20Gi`{_BY_CONTAINER}", default="all that it may have; that of its shape",
)  # fmt: skip
LIMIT_ANNOTATION = _pod(
    "simgpu.dev/on-limit", "annotation", "you",
    "what happens to a pod whose activity profile crosses one of its limits, beside an event",
    values="`report`, or `fail`: its phase becomes Failed", default="`report`",
)  # fmt: skip
LIMIT_ACTIONS = REPORT_LIMIT, FAIL_AT_LIMIT = ("report", "fail")
CONFIG_MAP_PREFIX = "configmap/"
UTILIZATION_SOURCES = FROM_POD, FROM_CPU = ("pod", "cpu")
SOURCE_ANNOTATION = _pod(
    "simgpu.dev/utilization-from", "annotation", "you",
    "on a real node, where its GPUs' utilization comes from: `pod`, the annotation above, or `cpu`, "
    "[what its processes do](../guides/real-nodes.md#what-keeps-a-gpu-busy)",
    values=" or ".join(f"`{source}`" for source in UTILIZATION_SOURCES), default="the pool's `utilizationFrom`",
)  # fmt: skip
KIND_LABEL = _pod(
    "workloadKind", "label", "you, Run:ai",
    "how busy its GPUs are [without an annotation](../guides/busy-pods.md#kinds-of-workloads)",
    values="`TrainingWorkload`, `InteractiveWorkload`, `InferenceWorkload`, `DistributedWorkload`, "
    "`DistributedInferenceWorkload`", default="that of its PodGroup",
)  # fmt: skip
DEFAULT_FULL_LOAD = 100.0  # requests a second
FULL_LOAD_ANNOTATION = _pod(
    "simgpu.dev/requests-at-full-load", "annotation", "you",
    "of [an inference pod](../guides/busy-pods.md#inference-with-knative), the requests that keep its GPUs 100 % busy",
    values="requests a second", default=f"{DEFAULT_FULL_LOAD:.0f}",
)  # fmt: skip
POD_GROUP_ANNOTATION = _pod(
    "pod-group-name", "annotation", "Run:ai",
    "a PodGroup (`scheduling.run.ai/v2alpha2`) of its namespace, whose `priorityClassName` says the same",
)  # fmt: skip
IDLE_POD_PREFIX = _pod("runai-idle-gpu-", "name `runai-idle-gpu-…`", "Run:ai", "its GPUs are idle")
FRACTION_ANNOTATION = _pod(
    "gpu-fraction", "annotation", "you", "the share of a GPU's memory that the pod takes",
    values="above 0 and at most 1", default="1",
)  # fmt: skip
GPU_MEMORY_KEY = _pod(
    "gpu-memory", "annotation", "you",
    "the memory of a shared GPU that the pod takes instead of a fraction; comes before `simgpu.dev/gpu-memory`. Also a "
    "key of nodes by name in a topology",
    values="MiB",
)  # fmt: skip
RUNAI_INDEX = _pod(
    "runai-gpu", "annotation", "Run:ai",
    "[the reservation](../guides/real-nodes.md#fractions-of-gpus-runai) whose GPU the pod shares, by "
    "index", values="a number",
)  # fmt: skip
RUNAI_GROUP = _pod(
    "runai-gpu-group", "label", "Run:ai",
    "the same, by group; a label `runai-gpu-group/<group>` for each of several reservations",
)  # fmt: skip
RUNAI_RESERVED = _pod(
    "run.ai/reserve_for_gpu_index", "annotation", "SimGPU, Run:ai",
    "the GPU that a reservation pod holds; an existing annotation is kept",
)  # fmt: skip
APP_LABEL = _pod(
    "app", "label", "you",
    "an exporter pod on a fake node, in the controller's namespace: its name and address are on the metrics page",
    values="`nvidia-dcgm-exporter`",
)  # fmt: skip
EXPORTER = "nvidia-dcgm-exporter"
SERVICE_SELECTOR = "app.kubernetes.io/name=simgpu,app.kubernetes.io/component=controller"  # the chart's Services
RUN_TIME_ANNOTATION = _pod(
    "simgpu.dev/run-time", "annotation", "you",
    "how long a job's pod works on a fake node; one that cannot be read is reported by an event on the pod",
    values="`30s`, `1h30m`, `500ms`, or a bare number of seconds", default="30 s",
)  # fmt: skip
JOB_TYPE_LABEL = _pod(
    "job-type", "label", "you", "without a run time, a job's pod works for an hour", values="`long-running`"
)
NUDGED_ANNOTATION = _pod(
    "simgpu.dev/nudged", "annotation", "`up`, `loadtest`",
    "a change of it makes a KWOK that was restarted look at the pod again", values="a time",
)  # fmt: skip
MIRROR_ANNOTATION = _pod(
    "kubernetes.io/config.mirror", "annotation", "kubelet", "the uid by which the kubelet knows a static pod"
)

# Objects.

TOPOLOGY = _object(
    "topology", f"ConfigMap in namespace `{DEFAULT_NAMESPACE}`", "you, `up`",
    "which GPUs the nodes of a pool have, in [any of the formats](../guides/fleet.md#the-topology)",
    values="key `topology.yml`",
)  # fmt: skip
TOPOLOGY_KEY = "topology.yml"
UNINSTALL_ANNOTATION = _object(
    "simgpu.dev/uninstall", "annotation of that ConfigMap", "`cleanup`",
    "controllers and agents remove everything that they put on nodes, and then wait", values="`true`",
)  # fmt: skip
MIG_FILE = _object(
    "default-mig-parted-config", f"ConfigMap in namespace `{DEFAULT_NAMESPACE}`", "you, NVIDIA's GPU operator",
    "[layouts of MIG instances](../guides/mig.md) by name: a file of NVIDIA's mig-parted. Those of the topology's "
    "`mig-configs` come first",
    values="key `config.yaml`",
)  # fmt: skip
MIG_FILE_KEY = "config.yaml"
PROFILE_PREFIX = _object(
    "gpu-profile-",
    "ConfigMap `gpu-profile-<name>`",
    "you, chart",
    "a GPU profile that pools can name",
    values="key `profile.yaml`",
)
PROFILE_KEY = "profile.yaml"
VIEW_PREFIX = _object(
    "topology-", "ConfigMap `topology-<node>`", "SimGPU",
    "the node's GPUs, who uses them, and its saved counters. Where the node's name is too long for the "
    "ConfigMap's name, it ends in a digest",
    values="keys `topology.yml`, `counters.json`",
)  # fmt: skip
COUNTERS_KEY = "counters.json"
VIEW_LABEL = _object("node-topology", "label of that ConfigMap", "SimGPU", "it is a node's", values="`true`")
VIEW_NODE_LABEL = _object(
    "node-name", "label of that ConfigMap", "SimGPU", "the node; of a name that is too long, its beginning and a digest"
)
VIEW_NODE_ANNOTATION = _object(
    "simgpu.dev/node-name", "annotation of that ConfigMap", "SimGPU", "the node, where its name is too long for a label"
)
VIEW_LABELS_ANNOTATION = _object(
    "simgpu.dev/labels", "annotation of that ConfigMap", "SimGPU", "labels of the node that SimGPU wrote, by name"
)
LEASE = _object("simgpu-controller", "Lease", "SimGPU", "which controller works")
CLEANUP_MANAGER = _object(
    "simgpu-cleanup", "field manager", "`cleanup`", "that of `simgpu cleanup`, in `managedFields`"
)
RUNAI_RULE = _object(
    "fake-gpu-operator-kwok-dcgm", "PrometheusRule in Run:ai's namespace", "SimGPU",
    "metrics of GPUs under the names that Run:ai reads (`--runai-namespace`)",
)  # fmt: skip
_object("simgpu-*", "Stage", "`up`", "how KWOK plays nodes and pods")
SAMPLE_NAMESPACE = _object("sample", "Namespace", "`up`", "the workload of `simgpu up --sample`")
NODE_PREFIX = _object(
    "kwok-gpu-node-",
    "Node `kwok-gpu-node-<number>`, from 1",
    "`up`",
    "a simulated node with 32 CPUs, 128 GiB and room for 110 pods",
)
MANAGER = _object("simgpu", "field manager", "SimGPU", "the controller's, in `managedFields`")
AGENT_MANAGER = _object("simgpu-agent", "field manager", "SimGPU", "the agent's, in `managedFields`")
UP_MANAGER = _object("simgpu-up", "field manager", "`up`", "that of `simgpu up`, in `managedFields`")

# Load tests.

LOADTEST_LABEL = _load(
    "simgpu.dev/loadtest", "label of all that a load test makes", "`loadtest`",
    "the run that made the object; `shared` for what several runs use together", values="an id of the run, `shared`",
)  # fmt: skip
LOADTEST_USER_PREFIX = _load(
    "loadtest.simgpu.dev/", "annotation `loadtest.simgpu.dev/<run>` of what runs share", "`loadtest`",
    "a run that uses the object; the last one to end deletes it", values="the time at which the run began to use it",
)  # fmt: skip
LOADTEST_PREFIX = _load(
    "simgpu-loadtest-", "Lease `simgpu-loadtest-<run>` in `default`, Stages `simgpu-loadtest-<run>-<job type>`",
    "`loadtest`", "that a run is alive (`loadtest cleanup` removes what others left); how long its jobs run",
)  # fmt: skip
LOADTEST_MANAGER = _load("simgpu-loadtest", "field manager", "`loadtest`", "that of load tests, in `managedFields`")
LOADTEST_DRIVER = _load(
    "cl2-gpu.kwok.x-k8s.io", "DeviceClass, driver of ResourceSlices", "`loadtest`",
    "GPUs of dependency `kwok-dra` (method `DRAKWOKDriver`); also the capacity `cl2-gpu.kwok.x-k8s.io/gpu`",
)  # fmt: skip
LOADTEST_EXAMPLE_DRIVER = _load(
    "gpu.example.com", "DeviceClass, driver of ResourceSlices", "`loadtest`", "GPUs of method `DRATestDriver`"
)
LOADTEST_NODE_PREFIX = _load(
    "kwok-node-", "Node `kwok-node-<number>`, from 0", "`loadtest`",
    "a simulated node with 32 CPUs, 256 GiB and room for 110 pods; numbers that are taken are left out",
)  # fmt: skip
LOADTEST_SLICE_PREFIX = NODE_PREFIX  # ResourceSlices of a run are named as nodes of `up`
LOADTEST_POOL_PREFIX = _load(
    "kwok-gpu-pool-node-",
    "pool of ResourceSlices `kwok-gpu-node-<number>`, further ones with `-<part>`",
    "`loadtest`",
    "the GPUs of node `kwok-node-<number>`",
)
DRIVER_LABEL = _load("resource.k8s.io/driver", "label of these slices", "`loadtest`", "their driver")
KWOK_NAMESPACE = _load(
    "kwok-system",
    "Namespace",
    "`loadtest`",
    "KWOK, where the cluster has none; deleted with the last run that uses it, as are the Role and the RoleBinding "
    "`kwok-controller` in `kube-node-lease`",
)
NODE_LEASES_NAMESPACE = "kube-node-lease"
SHORT_LIVED, LONG_RUNNING = "short-lived", "long-running"  # values of label job-type
JOB_RUNNING_TIME_ENV = _load(
    "CL2_JOB_RUNNING_TIME_MS", "environment of `loadtest`", "you",
    "how long pods with label `job-type: short-lived` run, in milliseconds", default="30000",
)  # fmt: skip
LONG_JOB_RUNNING_TIME_ENV = _load(
    "CL2_LONG_JOB_RUNNING_TIME_MS", "environment of `loadtest`", "you",
    "how long pods with label `job-type: long-running` run, in milliseconds", default="3600000",
)  # fmt: skip
JOB_DURATION_ENV = _load(
    "CL2_JOB_RUNNING_TIME", "environment of `loadtest`", "you", "as `CL2_JOB_RUNNING_TIME_MS`, which comes before it",
    values="such as `30s` or `1h30m`; a number is seconds",
)  # fmt: skip
LONG_JOB_DURATION_ENV = _load(
    "CL2_LONG_JOB_RUNNING_TIME", "environment of `loadtest`", "you",
    "as `CL2_LONG_JOB_RUNNING_TIME_MS`, which comes before it", values="such as `30s` or `1h30m`; a number is seconds",
)  # fmt: skip
VERBOSITY_ENV = _load(
    "KLOG_V", "environment of `loadtest`", "you", "how much is logged, as `--v`", values="0 to 10", default="0"
)
MAX_LOADTEST_NODES = _limit(50_000, "nodes of a load test's dependency")
MAX_LOADTEST_GPUS = _limit(1024, "GPUs of such a node", "128 in each slice")
# Dynamic resource allocation.

DRA_DRIVER = _object(
    "gpu.nvidia.com", "DRA driver, DeviceClass", "SimGPU", "GPUs of nodes, and the class of whole ones"
)
CDI_KIND = _object("k8s.gpu.nvidia.com/gpu", "CDI devices", "the agent", "GPUs of claims on a real node")
MIG_CLASS = _object(
    "mig.nvidia.com", "DeviceClass", "SimGPU", "MIG devices: instances of divided GPUs, or those that DRA makes"
)
SLICE_PREFIX = _object(
    "kwok-", "ResourceSlice `kwok-<node>-gpu`, then `-1`, `-2`", "SimGPU",
    "GPUs of a fake node; its pool has the node's name",
)  # fmt: skip
SLICE_SUFFIX = "-gpu"
SLICE_LABEL = _object(
    "simgpu.dev/fake-node", "label of that slice, and of NodeResourceTopologies", "SimGPU", "it is a fake node's",
    values="`true`",
)  # fmt: skip
ZONES_LABEL = _object(
    "simgpu.dev/numa", "label of NodeResourceTopologies", "SimGPU",
    "the NUMA zones of a node of a pool with `numa`, where `topology.node.k8s.io/v1alpha2` is served",
    values="the namespace of the topology",
)  # fmt: skip
CONFIG_API = _object(
    "resource.nvidia.com/v1beta1", "opaque configuration in claims and classes", "you",
    "kinds `GpuConfig` and `MigDeviceConfig`: `sharing` by `TimeSlicing` or `MPS`",
)  # fmt: skip
OPERATOR_CONFIG_API = _object(
    "gpu.resource.example.com/v1alpha1", "opaque configuration in claims and classes", "you",
    "kind `GpuConfig`, as fake-gpu-operator has it: `sharing` by `TimeSlicing` or `SpacePartitioning`",
)  # fmt: skip
XID_TAINT = _object(
    "gpu.nvidia.com/xid", "taint of a DRA device", "SimGPU", "the GPU had this XID error", values="its number"
)
LOST_TAINT = _object("gpu.nvidia.com/gpu-lost", "taint of a DRA device", "SimGPU", "the GPU does not answer any more")
TYPE_ATTRIBUTE = _attribute("type", "every device", "what it is", values="`gpu`, `mig`")
UUID_ATTRIBUTE = _attribute("uuid", "GPUs, and MIG instances of divided ones", "its id")
MODEL_ATTRIBUTE = _attribute("model", "GPUs", "product, as fake-gpu-operator names it")
PRODUCT_ATTRIBUTE = _attribute("productName", "every device", "product, such as `NVIDIA H200`")
BRAND_ATTRIBUTE = _attribute("brand", "devices of NVIDIA", "brand, such as `Nvidia`")
ARCHITECTURE_ATTRIBUTE = _attribute("architecture", "every device", "architecture, such as `Hopper`")
CAPABILITY_ATTRIBUTE = _attribute("cudaComputeCapability", "every device", "a version, such as 9.0.0")
DRIVER_ATTRIBUTE = _attribute("driverVersion", "every device", "a version, such as 580.159.4")
CUDA_ATTRIBUTE = _attribute("cudaDriverVersion", "every device", "a version, such as 13.0.0")
ADDRESSING_ATTRIBUTE = _attribute("addressingMode", "where it is known", "addressing mode, such as `None`")
PARENT_ATTRIBUTE = _attribute("parentUUID", "MIG devices", "id of the GPU")
PROFILE_ATTRIBUTE = _attribute("profile", "MIG devices", "MIG profile, such as `1g.18gb`")
BUS_ATTRIBUTE = _attribute("resource.kubernetes.io/pciBusID", "every device", "such as 0000:03:00.0")
ROOT_ATTRIBUTE = _attribute(
    "resource.kubernetes.io/pcieRoot", "every device", "such as pci0000:00; one for each NUMA node"
)
NUMA_ATTRIBUTE = _attribute("resource.kubernetes.io/numaNode", "every device", "number of the NUMA node")
QUALIFIED_ATTRIBUTES = tuple(
    f"{DRA_DRIVER}/{name}" for name in (TYPE_ATTRIBUTE, UUID_ATTRIBUTE, PRODUCT_ATTRIBUTE)
)  # as fake-gpu-operator writes them; the same attributes in CEL

# Environment variables.

NODE_NAME_ENV = _variable(
    "NODE_NAME",
    "`agent`, containers with GPUs",
    "you; the agent, for containers",
    "the node, where `--node` is not given",
)
POD_NAME_ENV = _variable("POD_NAME", "`workload`", "you", "the pod that a workload belongs to, as `--pod` has it")
POD_NAMESPACE_ENV = _variable(
    "POD_NAMESPACE", "`controller`, `agent`, `workload`", "you",
    "the namespace of the topology, and of the pod that a workload belongs to",
    default=f"`{DEFAULT_NAMESPACE}`; none for `workload`",
)  # fmt: skip
CONTAINER_NAME_ENV = _variable("CONTAINER_NAME", "`workload`", "you", "the container that a workload belongs to")
RESERVATION_NAMESPACE_ENV = _variable(
    "RESOURCE_RESERVATION_NAMESPACE", "`controller`, `agent`", "you", "where Run:ai's reservation pods are",
    default=f"`{DEFAULT_RESERVATION_NAMESPACE}`",
)  # fmt: skip
PROMETHEUS_ENV = _variable(
    "PROMETHEUS_URL", "`controller`, `agent`", "the chart, you",
    "the Prometheus that knows the requests of inference pods, as `--prometheus-url` has it",
    default=f"`{DEFAULT_PROMETHEUS}`",
)  # fmt: skip
POD_UID_ENV = _variable(
    "POD_UID", "`agent`", "you", "the agent's own pod, by uid: agents of an update can then overlap on a node"
)
COMPLETION_INDEX_ENV = _variable(
    "JOB_COMPLETION_INDEX", "`workload`", "Kubernetes", "replaces `INDEX` in device names, modulo `--max-index`"
)
VISIBLE_DEVICES_ENV = _variable(
    "NVIDIA_VISIBLE_DEVICES",
    "containers with GPUs, `workload`",
    "the agent",
    "ids of the container's GPUs, with commas; where it is set, `simgpu workload` without devices uses all of them",
)
MOCK_DEVICES_ENV = _variable(
    "MOCK_NVIDIA_VISIBLE_DEVICES", "containers with GPUs", "the agent", "the same, as fake-gpu-operator names it"
)
DEVICE_ENV_PREFIX = _variable(
    "GPU_DEVICE_", "containers with claims of GPUs", "the agent",
    "`GPU_DEVICE_<device>` for each device of the container, with `_` for `-`: the device's name; "
    "with `_SHARING_STRATEGY`, `_TIMESLICE_INTERVAL` or `_PARTITION_COUNT` after it, how it is shared",
)  # fmt: skip
SOCKET_ENV = _variable(
    "SIMGPU_SOCKET", "`workload`, libnvidia-ml.so.1 and nvidia-smi, containers with GPUs, commands of `run`",
    "the agent, `run`, you", "the workload socket, which also takes settings", default="`/tmp/simgpu.sock`",
)  # fmt: skip
SHARED_MEMORY_ENV = _variable(
    "SIMGPU_MEMORY_MIB", "containers that share GPUs by a reservation", "the agent",
    "memory of each GPU that the container's processes show at most, in MiB",
)  # fmt: skip
PAGES_ENV = _variable(
    "SIMGPU_PAGES", "libnvidia-ml.so.1 and nvidia-smi", "`run`, you", "folder of the GPUs' state pages",
    default="`/var/lib/simgpu/gpus`",
)  # fmt: skip
CATALOG_ENV = _variable(
    "SIMGPU_CATALOG",
    "`up` and every command with `--catalog`",
    "you",
    "model files, or folders of them",
    values="paths with colons",
)
ALLOCATION_ENV = _variable(
    "SIMGPU_ALLOCATION", "`controller`, `agent`", "the chart, you",
    "how pods get GPUs where the topology does not say it, as `--allocation` has it",
    values=", ".join(f"`{way}`" for way in ALLOCATIONS), default=f"`{EXTENDED}`",
)  # fmt: skip
DOWNLOAD_ENV = _variable(
    "SIMGPU_DOWNLOAD",
    "`up`, `tools`",
    "you",
    "whether release files are downloaded",
    values="`auto`, `never`",
    default="`auto`",
)
MIRROR_ENV = _variable("SIMGPU_MIRROR", "`up`, `tools`", "you", "mirror of release files", values="a URL")
CLUSTER_ENV = _variable(
    "SIMGPU_CLUSTER_DIR", "processes of a local cluster", "`up`", "the cluster that a process belongs to"
)
COMPONENT_ENV = _variable("SIMGPU_COMPONENT", "processes of a local cluster", "`up`", "the component that a process is")

# Files.

STATE_DIR = _file("/var/lib/simgpu", "node", "the agent", "the agent's state, and the files that are mounted into pods")
PAGES_DIR = _file("/var/lib/simgpu/gpus", "node, containers with GPUs", "the agent", "state pages, `<id>/page` each")
_file(
    "/var/lib/simgpu/run/workload.sock", "node", "the agent",
    "the workload socket on the node, whose folder containers with GPUs have as `/run/simgpu`",
)  # fmt: skip
_file(
    "/var/lib/simgpu/programs/<digest>/", "node", "the agent",
    "library and tool that are mounted into containers, a folder for each version; none is removed",
)  # fmt: skip
STATE_FILE = _file(
    "state.json", "node, in the state folder", "the agent", "counters and state of GPUs, for the next start"
)
KNOWN_FILE = _file(
    "known.json",
    "node, in the state folder",
    "the agent",
    "the GPUs that the node had last, for a start without an API server",
)
POD_SOCKET = _file("/run/simgpu/workload.sock", "containers with GPUs", "the agent", "the workload socket")
SOCKET_NAME = "workload.sock"
EXPORTER_SOCKET = _file("/tmp/simgpu.sock", "machine of an exporter", "`exporter --socket`", "its workload socket")  # noqa: S108 - only its owner may connect
LIBRARY = _file("libnvidia-ml.so.1", "containers with GPUs, commands of `run`", "the agent, `run`", "NVML")
DRIVER_DIR = _file(
    "/run/nvidia/driver", "node", "`agent --driver-only`",
    "the driver folder: library, tool, pages, device files and the texts of `/proc/driver`, as the GPU Operator's "
    "driver container leaves them on a node",
)  # fmt: skip
PAGE_FIRMWARE = "gsp_simgpu-"  # of the names of pages among a driver's firmware; native/finding.c has it, too
SMI = _file("nvidia-smi", "containers with GPUs, commands of `run`", "the agent, `run`", "nvidia-smi")
PLUGIN_DIR = _file("/var/lib/kubelet/device-plugins", "node", "kubelet, agent", "sockets of device plugins")
KUBELET_SOCKET = "kubelet.sock"
_file(
    "simgpu-<resource>.sock", "node, in that folder", "the agent",
    "its device plugin of a resource, with `_` for `/`; of a resource whose name is too long, a digest",
)  # fmt: skip
KUBELET_CHECKPOINT = _file(
    "kubelet_internal_checkpoint", "node, in that folder", "kubelet", "which pod has which device"
)
POD_RESOURCES_SOCKET = _file(
    "/var/lib/kubelet/pod-resources/kubelet.sock", "node", "kubelet", "which pod has which device"
)
DRA_PLUGIN_DIR = _file(
    "/var/lib/kubelet/plugins", "node", "agent",
    "`gpu.nvidia.com/dra.sock` in it is the agent's DRA plugin; `dra-<pod uid>.sock` of an agent that knows its pod",
)  # fmt: skip
DRA_SOCKET = "dra.sock"
REGISTRY_DIR = _file(
    "/var/lib/kubelet/plugins_registry", "node", "agent",
    "`gpu.nvidia.com-reg.sock` in it, or `gpu.nvidia.com-<pod uid>-reg.sock`, registers the DRA plugin",
)  # fmt: skip
CDI_DIR = _file(
    "/var/run/cdi", "node", "the agent",
    "CDI files that inject GPUs of claims: `k8s.gpu.nvidia.com-gpu_common.yaml`, and one for each prepared claim",
)  # fmt: skip
AGENT_LOCK = _file("agent.lock", "node, in the state folder", "the agent", "held by the agent that runs on the node")
CLAIMS_FILE = _file("claims.json", "node, in the state folder", "the agent", "the claims that are prepared on the node")
RUNAI_DIR = _file("/var/lib/runai", "node", "the agent", "what Run:ai's container toolkit reads")
NRI_SOCKET = _file(
    "/var/run/nri/nri.sock", "node", "the container runtime",
    "where the agent adjusts containers of pods that share GPUs by a reservation",
)  # fmt: skip
