"""KWOK stages of a run: how long pods with a job type run."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from simgpu import errors, yaml_text
from simgpu.loadtest.scenario import durations
from simgpu.loadtest.scenario.fields import Problems
from simgpu.vocabulary import (
    JOB_DURATION_ENV,
    JOB_RUNNING_TIME_ENV,
    JOB_TYPE_LABEL,
    LONG_JOB_DURATION_ENV,
    LONG_JOB_RUNNING_TIME_ENV,
    LONG_RUNNING,
    RUN_TIME_ANNOTATION,
    SHORT_LIVED,
)

# The stages of `simgpu up`; data, so that there is one version of them.
_MANIFESTS = Path(__file__).parents[2] / "cluster" / "manifests"
_COMPLETE = "simgpu-pod-complete"
_WEIGHT = 10**15  # beside other stages that match, which KWOK draws by weight
_MAX_MILLISECONDS = 30 * 24 * 3_600_000

# By job type: the variable with milliseconds, ClusterLoader2's with a duration, and the default in milliseconds.
RUNNING_TIMES = {
    SHORT_LIVED: (JOB_RUNNING_TIME_ENV, JOB_DURATION_ENV, 30_000),
    LONG_RUNNING: (LONG_JOB_RUNNING_TIME_ENV, LONG_JOB_DURATION_ENV, 3_600_000),
}

# Times in the API are whole seconds, cut off: a second more, so that no pod ends early. The end is computed from the
# start, so that neither changes of the pod nor a restart of KWOK prolong it.
_DELAY = """\
(.metadata.annotations["{annotation}"] // "") as $given
| (if $given | test("^[0-9]+([.][0-9]+)?$") then $given + "s" else $given end) as $text
| (if $text | test("^([0-9]+([.][0-9]+)?(ms|h|m|s))+$")
   then [$text | scan("([0-9.]+)(ms|h|m|s)")
         | (.[0] | tonumber) * {{"ms": 0.001, "s": 1, "m": 60, "h": 3600}}[.[1]]] | add
   else {seconds} end) as $seconds
| ((.status.startTime // .metadata.creationTimestamp) | fromdate) + $seconds + 1 - now
| if . > 0 then (. * 1000 | floor | tostring) + "ms" else "0s" end
"""


def manifest(name: str) -> list[dict[str, Any]]:
    """Return the objects of a manifest of the local cluster."""
    return yaml_text.parse_all((_MANIFESTS / name).read_bytes())


def running_milliseconds(variables: Mapping[str, Any], problems: Problems) -> dict[str, int]:
    """Return how long pods of each job type run; variables that are no such times are reported."""
    found = {}
    for kind, (exact, duration, default) in RUNNING_TIMES.items():
        name = exact if exact in variables else duration
        found[kind] = default
        if name not in variables:
            continue
        try:
            found[kind] = (_milliseconds if name == exact else _duration)(variables[name])
        except ValueError as error:
            problems.add(name, f"{errors.shown(variables[name])}: {error}")
    return found


def _milliseconds(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= _MAX_MILLISECONDS:
        raise ValueError(f"must be milliseconds, from 0 to {_MAX_MILLISECONDS}")
    return int(value)


def _duration(value: Any) -> int:
    """Parse a duration; a number is seconds, as for `sleep`, to which ClusterLoader2's scenarios pass it."""
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return int(durations.parse(f"{value}s" if number else value) * 1000)


def of_run(prefix: str, milliseconds: Mapping[str, int], spaces: Sequence[str], labels: dict[str, str]) -> list[Any]:
    """Return a stage for each job type, for pods in the run's namespaces."""
    [original] = [stage for stage in manifest("stages.yaml") if stage["metadata"]["name"] == _COMPLETE]
    made = []
    for kind, duration in milliseconds.items():
        stage = copy.deepcopy(original)
        stage["metadata"] = {"name": f"{prefix}{kind}", "labels": labels}
        spec = stage["spec"]
        spec.pop("weightFrom", None)
        spec["weight"] = _WEIGHT
        spec["selector"] = {
            "matchLabels": {JOB_TYPE_LABEL: kind},
            "matchExpressions": [
                {"key": ".metadata.deletionTimestamp", "operator": "DoesNotExist"},
                {"key": ".status.phase", "operator": "In", "values": ["Running"]},
                {"key": ".spec.restartPolicy", "operator": "In", "values": ["Never", "OnFailure"]},
                {"key": ".metadata.namespace", "operator": "In", "values": list(spaces)},
            ],
        }
        expression = _DELAY.format(annotation=RUN_TIME_ANNOTATION, seconds=duration / 1000)
        spec["delay"] = {"durationMilliseconds": duration, "durationFrom": {"expressionFrom": expression}}
        made.append(stage)
    return made
