"""From a TrainingRun to the release that it asks for: values of the chart, GPUs, workloads, or why it asks for none.

Pure. What the chart's own schema and templates judge is not judged here: helm does, and its sentence becomes a
condition.
"""

import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

import msgspec

from tidegate.operator.config import OperatorConfig
from tidegate.operator.objects import RELEASE_ANNOTATION, ManagedRun, RunKey, WorkloadKind

# Names of the chart's objects begin with the run's, cut after this many characters (helm/tidegate, tidegate.fullname).
NAME = re.compile(r"[a-z]([-a-z0-9]{0,30}[a-z0-9])?")
RUN_ID_CHARS_MAX = 48
HASH_CHARS = 8
# Sections of the chart whose pods have a volume.
WITH_VOLUMES = (
    "taskQueue",
    "trajectoryStore",
    "learner",
    "weightDistribution",
    "admission",
    "inference",
    "nats",
)
# What a run file without them has (core/scaling.py); a test compares the two.
MAX_REPLICAS = 16

Values = dict[str, Any]


class ScaledWorkload(msgspec.Struct, frozen=True):
    """A workload that is at 0 while its run is suspended. ``is_last``: after all others."""

    kind: WorkloadKind
    name: str
    is_last: bool = False


class ActorPool(msgspec.Struct, frozen=True):
    """GPUs of each actor of a workload, and the most actors that the run itself asks for."""

    workload: str
    gpus: int
    replicas: int


class ReleasePlan(msgspec.Struct, frozen=True):
    """The release that a TrainingRun asks for. ``problem``: why there can be none, as a sentence; else empty.

    ``digest``: of everything that makes another release. ``reads_run``: admission reads the TrainingRun, so it says
    when nothing is in flight.
    """

    values: Values = {}
    digest: str = ""
    run_id: str = ""
    problem: str = ""
    learner_gpus: int = 0
    pools: tuple[ActorPool, ...] = ()
    scaled: tuple[ScaledWorkload, ...] = ()
    reads_run: bool = True

    def gpus(self, replicas: Mapping[str, int]) -> int:
        """GPUs of the run, with the numbers of actors that it has where they are above what it asks for."""
        return self.learner_gpus + sum(
            pool.gpus * max(pool.replicas, replicas.get(pool.workload, 0)) for pool in self.pools
        )


def plan_of(run: ManagedRun, config: OperatorConfig, *, chart: str) -> ReleasePlan:
    """The release of a TrainingRun. ``chart``: the chart's version."""
    problem = problem_of(run, config.forbidden)
    if problem or run.spec.run is None:
        return ReleasePlan(problem=problem)
    values = values_of(run, config.values)
    spec: Values = {
        "run": run.spec.run,
        "values": run.spec.values,
        "volumePolicy": run.spec.volume_policy,
    }
    if config.upgrades == "at-once":
        spec = {"chart": chart, "values": values}
    learner, actor = _section(values, "learner"), _section(values, "actor")
    pools = tuple(_pools(run.metadata.name, values, actor))
    job_set, groups = learner.get("kind") == "JobSet", _number(actor.get("nodes"), 1) > 1
    scaled = [
        ScaledWorkload("LeaderWorkerSet" if groups else "Deployment", pool.workload) for pool in pools
    ] + [ScaledWorkload("JobSet" if job_set else "StatefulSet", f"{run.metadata.name}-learner", is_last=True)]
    return ReleasePlan(
        values=values,
        digest=hashlib.sha256(json.dumps(spec, sort_keys=True).encode()).hexdigest()[:16],
        run_id=str(values["runId"]),
        learner_gpus=_learner_gpus(learner, _section(_section(values, "run"), "learner")),
        pools=pools,
        scaled=tuple(scaled),
        reads_run=bool(_section(values, "crd").get("enabled")),
    )


def problem_of(run: ManagedRun, forbidden: Sequence[str]) -> str:
    """Why the operator can make no release of a TrainingRun, as a sentence with what to do; empty where it can."""
    meta = run.metadata
    if meta.annotations.get(RELEASE_ANNOTATION) == meta.name:
        return (
            f"this TrainingRun is an object of the Helm release {meta.name}, which an upgrade by the operator would "
            "remove. Uninstall that release and create the TrainingRun by itself, or leave out spec.run"
        )
    if not NAME.fullmatch(meta.name):
        return (
            f"the name {meta.name} cannot begin the names of Services: it must begin with a letter, have at most 32 "
            "characters, and no dots. Choose another one"
        )
    set_keys = [*keys_of(run.spec.values), *keys_of(run.spec.run or {}, "run.")]
    found = [key for key, value in set_keys if any(_matches(key, value, each) for each in forbidden)]
    if "run" in run.spec.values:
        return "spec.values has a key run, which spec.run is. Move it there"
    if _section(run.spec.values, "learner").get("kind") == "TrainJob":
        return (
            "learner.kind is TrainJob, whose runtime is an object of the whole cluster, and the operator makes none of "
            "those. Set it to JobSet or StatefulSet"
        )
    if found:
        return (
            f"spec sets {', '.join(found[:5])}, which reaches beyond the pods of the run. Leave it out, or let the "
            "operator's configuration allow it"
        )
    return ""


def keys_of(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, object]]:
    """The dotted keys of nested values with what they are set to, each section and each leaf."""
    for key, value in values.items():
        yield f"{prefix}{key}", value
        if isinstance(value, dict):
            yield from keys_of(cast("Values", value), f"{prefix}{key}.")


def _matches(key: str, value: object, pattern: str) -> bool:
    """Whether a key is the one of a pattern; its section or what is in it is found by its own key."""
    if pattern.startswith("**."):
        return key.rpartition(".")[2] == pattern.removeprefix("**.")
    name, _, only = pattern.partition("=")
    return key == name and (not only or value == only)


def values_of(run: ManagedRun, defaults: Mapping[str, Any]) -> Values:
    """The values of a release: the operator's, over them those of the TrainingRun, over them what the operator sets."""
    values = merged(defaults, run.spec.values)
    kubernetes = _section(_section(values, "admission"), "kubernetes")
    imposed: Values = {
        "run": run.spec.run,
        "fullnameOverride": "",
        # The TrainingRun is there: admission reads it, and the release must not have another one.
        "crd": {"enabled": kubernetes.get("enabled", True) is not False, "create": False},
        "runId": values.get("runId") or run_id_of(run.key),
    }
    values = {**values, **imposed}
    if run.spec.volume_policy == "Delete":
        values = merged(values, {section: {"persistence": {"retain": False}} for section in WITH_VOLUMES})
    return values


def run_id_of(key: RunKey) -> str:
    """The id of a run: one for each TrainingRun of a cluster, and the same for one that is created again."""
    digest = hashlib.sha256(str(key).encode()).hexdigest()[:HASH_CHARS]
    readable = f"{key.namespace}-{key.name}"[: RUN_ID_CHARS_MAX - HASH_CHARS - 1].rstrip("-")
    return f"{readable}-{digest}"


def merged(below: Mapping[str, Any], above: Mapping[str, Any]) -> Values:
    """Two trees of values as Helm merges them: sections are merged, everything else of ``above`` goes first."""
    result: Values = dict(below)
    for key, value in above.items():
        before: object = result.get(key)
        if isinstance(value, dict) and isinstance(before, dict):
            result[key] = merged(cast("Values", before), cast("Values", value))
        else:
            result[key] = value
    return result


def _pools(name: str, values: Mapping[str, Any], actor: Values) -> Iterator[ActorPool]:
    """The actors' workloads. Numbers that an autoscaler sets count with their maximum."""
    yield ActorPool(f"{name}-actor", _gpus(actor), _num_actors(values, actor))
    for pool, overrides in _section(actor, "pools").items():
        own = merged({key: value for key, value in actor.items() if key != "pools"}, overrides or {})
        yield ActorPool(f"{name}-actor-{pool}", _gpus(own), _number(own.get("replicas"), 1))


def _gpus(section: Values) -> int:
    return _number(section.get("gpu"), 0) * max(1, _number(section.get("nodes"), 1))


def _num_actors(values: Mapping[str, Any], actor: Values) -> int:
    if actor.get("replicas") is not None:
        return _number(actor["replicas"], 1)
    for scaler in ("keda", "hpa"):
        section = _section(values, scaler)
        if section.get("enabled") is True:
            return _number(section.get("maxReplicas"), MAX_REPLICAS)
    scaling = _section(_section(_section(values, "run"), "admission"), "scaling")
    if scaling.get("mode") in ("external", "controller"):
        return _number(scaling.get("max_replicas"), MAX_REPLICAS)
    return 1


def _learner_gpus(section: Values, of_run: Values) -> int:
    """``ranks``, a process for each GPU, or those of its one pod, and as many for each pod that stands by."""
    gpus = _number(section.get("gpu"), 0)
    ranks = section.get("ranks")
    working = 0 if gpus == 0 else max(gpus, _number(of_run.get("ranks") if ranks is None else ranks, gpus))
    return working * (1 + _number(section.get("standbys"), 0))


def _section(values: Mapping[str, Any], key: str) -> Values:
    """A section; empty where there is none, or something else in its place, which the chart's schema refuses."""
    found: object = values.get(key)
    return cast("Values", found) if isinstance(found, dict) else {}


def _number(value: object, default: int) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) else default
