"""The OpenAPI document, generated from the table of paths and from the structs of their answers."""

from __future__ import annotations

import functools
from typing import Any

import msgspec

import simgpu
from simgpu.dashboard import answers, queries
from simgpu.dashboard.queries import QueryParameter

STREAM = (
    queries.VIEW, queries.SHOW, queries.POOL, queries.MODEL, queries.SHOWN_NODE, queries.INDEX, queries.Q,
    queries.NAMESPACE, queries.PHASE, *queries.LISTS, queries.BLOCKS, queries.LAYOUT,
)  # fmt: skip


class ApiPath(msgspec.Struct, frozen=True):
    """A path of the API: what it returns, and the parameters of its query."""

    name: str
    path: str
    about: str
    answer: Any
    parameters: tuple[QueryParameter, ...] = ()


PATHS = (
    ApiPath("fleet", "/fleet", "Totals of everything, and GPUs by pool and model.", answers.FleetSummary),
    ApiPath(
        "nodes", "/nodes", "Nodes with sums over their GPUs.", answers.ApiPage[answers.NodeSummary],
        (queries.POOL, queries.MODEL, queries.Q, *queries.LISTS),
    ),
    ApiPath("node", "/nodes/{node}", "A node: its GPUs, links, instances, pods and events.", answers.NodeDetail),
    ApiPath("node_gpu", "/nodes/{node}/gpus/{index}", "A GPU, by node and index.", answers.GpuDetail),
    ApiPath(
        "gpus", "/gpus", "GPUs with their readings.", answers.ApiPage[answers.GpuSummary],
        (queries.POOL, queries.MODEL, queries.NODE, queries.NAMESPACE, queries.STATE, queries.Q, *queries.LISTS),
    ),
    ApiPath("gpu", "/gpus/{gpu}", "A GPU, by id.", answers.GpuDetail),
    ApiPath(
        "pods", "/pods", "Pods that have GPUs, and pending ones that request some, with the scheduler's reason.",
        answers.ApiPage[answers.PodSummary],
        (queries.NAMESPACE, queries.NODE, queries.PHASE, queries.Q, *queries.LISTS),
    ),
    ApiPath(
        "container_gpus", "/pods/{namespace}/{pod}/gpus", "What nvidia-smi reads in a pod on a fake node.",
        answers.ContainerGpus, (queries.CONTAINER,),
    ),
    ApiPath(
        "events", "/events", "Events that this process has recorded, newest first.",
        answers.ApiPage[answers.RecordedEvent], (queries.NODE, *queries.LISTS),
    ),
    ApiPath(
        "search", "/search", "Places of GPUs that match, for the canvas, and the first nodes, pods and GPUs of them.",
        answers.SearchResult, (queries.Q, queries.POOL, queries.MODEL),
    ),
    ApiPath(
        "stream", "/stream",
        "Server-sent events. View `fleet` sends `layout` and `cells`, then `change` at most twice a second; with "
        "`blocks`, cells that changed follow as a `block_change` for each block, and with the tag of the same `layout` "
        "the first cells as a `block` each. The other views send their document whenever it is different. `ping` every "
        "few seconds, `away` while there is nothing to show, `gone` if a node or GPU is no more.",
        None, STREAM,
    ),
)  # fmt: skip


def answer_name(answer: Any) -> str:
    """Return the name of an answer's schema."""
    inner = getattr(answer, "__args__", ())
    return f"{answer.__origin__.__name__} of {inner[0].__name__}" if inner else str(answer.__name__)


_PATH_PARAMETERS = {
    "node": "Name of the node.", "gpu": "Id of the GPU.", "index": "Index of the GPU on its node.",
    "namespace": "Namespace of the pod.", "pod": "Name of the pod.",
}  # fmt: skip


@functools.cache
def document() -> dict[str, Any]:
    """Return the document."""
    structs = [path.answer for path in PATHS if path.answer is not None]
    schemas, components = msgspec.json.schema_components([*structs, answers.Refusal], ref_template=_REFERENCE)
    answered = dict(zip([path.name for path in PATHS if path.answer is not None], schemas, strict=False))
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "SimGPU",
            "version": simgpu.__version__,
            "description": "Simulated GPUs: read-only. Answers have an ETag; lists come in parts (`limit`, `offset`).",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": "/api/v1"}],
        "paths": {path.path: {"get": _operation(path, answered.get(path.name), schemas[-1])} for path in PATHS},
        "components": {"schemas": components},
    }


_REFERENCE = "#/components/schemas/{name}"


def _operation(path: ApiPath, answer: dict[str, Any] | None, refusal: dict[str, Any]) -> dict[str, Any]:
    def content(schema: dict[str, Any]) -> dict[str, Any]:
        return {"application/json": {"schema": schema}}

    events = {"text/event-stream": {"schema": {"type": "string"}}}
    responses: dict[str, Any] = {
        "200": {"description": "The answer.", "content": content(answer) if answer else events},
        "400": {"description": "A parameter is invalid; it is named.", "content": content(refusal)},
        "503": {"description": "Nothing to show yet, or too many viewers.", "content": content(refusal)},
    }
    if answer:
        responses["304"] = {"description": "The client has this answer already (`If-None-Match`)."}
    inside = [
        {"name": name, "in": "path", "required": True, "description": about, "schema": {"type": "string"}}
        for name, about in _PATH_PARAMETERS.items()
        if f"{{{name}}}" in path.path
    ]
    if inside:
        responses["404"] = {"description": "There is none.", "content": content(refusal)}
    asked = [
        {"name": item.name, "in": "query", "description": item.about, "schema": item.schema()}
        for item in path.parameters
    ]
    return {
        "operationId": path.name, "summary": path.about, "parameters": [*inside, *asked],
        "responses": dict(sorted(responses.items())),
    }  # fmt: skip
