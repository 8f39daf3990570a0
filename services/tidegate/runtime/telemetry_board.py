"""What a service's statistics board says, as metrics: read once an export, so that no message pays for it.

A name ending in ``*`` stands for a family: what the star matched is the value of its label.
"""

from collections.abc import Iterator, Mapping
from typing import get_args

import msgspec

from tidegate.core.balance import Bottleneck
from tidegate.core.scaling import Mode
from tidegate.runtime import telemetry_names as names
from tidegate.wire.stats import ServiceStats

BOTTLENECKS: tuple[str, ...] = get_args(Bottleneck)
MODES: tuple[str, ...] = get_args(Mode)
PER_MS = 1e-3
BYTES_PER_MB = 1e6


class Shown(msgspec.Struct, frozen=True):
    """As which metric a value of the board is shown. ``family``: the label that names the member of a family."""

    metric: str
    labels: dict[str, str] = {}
    scale: float = 1.0
    family: str = ""


class Reading(msgspec.Struct, frozen=True):
    """One value of one series."""

    metric: str
    value: float
    labels: dict[str, str]


def _time_in(state: str, *, scale: float = 1.0) -> Shown:
    return Shown(names.METRIC_WORKER_TIME, {names.ATTR_STATE: state}, scale)


def _errors_of(stage: str) -> Shown:
    return Shown(names.METRIC_STAGE_ERRORS, {names.ATTR_STAGE: stage})


def _tokens(kind: str) -> Shown:
    return Shown(names.METRIC_ROLLOUT_TOKENS, {names.ATTR_KIND: kind})


def _resumption(kind: str) -> Shown:
    return Shown(names.METRIC_ROLLOUT_RESUMPTIONS, {names.ATTR_KIND: kind})


_EVERY_SERVICE = {
    "cpu_s_total": Shown(names.METRIC_PROCESS_CPU),
    "rss_mb": Shown(names.METRIC_PROCESS_MEMORY, scale=BYTES_PER_MB),
    "broker_reconnects_total": Shown(names.METRIC_RECONNECTS),
    "backpressure_total": Shown(names.METRIC_BACKPRESSURE),
}
BOARDS: dict[str, dict[str, Shown]] = {
    "task_queue": {
        "admitted_total": Shown(names.METRIC_TASKS_ADMITTED),
        "in_flight_trajectories": Shown(names.METRIC_INFLIGHT),
        "running_trajectories": Shown(names.METRIC_RUNNING),
        "unpublished_trajectories": Shown(names.METRIC_UNPUBLISHED),
        "publish_failures_total": _errors_of(names.SPAN_TASK_LEASE),
    },
    "actor": {
        "trajectories_total": Shown(names.METRIC_GENERATED),
        "steps_total": Shown(names.METRIC_STEPS),
        "tokens_written_total": _tokens("written"),
        "tokens_resumed_total": _tokens("resumed"),
        "tokens_lost_total": _tokens("lost"),
        "tokens_handed_on_total": _tokens("handed_on"),
        "tokens_given_up_total": _tokens("given_up"),
        "rollouts_resumed_total": _resumption("resumed"),
        "rollouts_begun_anew_total": _resumption("begun_anew"),
        "progress_unread_total": _resumption("unread"),
        "progress_refused_total": _resumption("refused"),
        "progress_bytes_total": Shown(names.METRIC_PROGRESS_SIZE),
        "serving_step": Shown(names.METRIC_ACTOR_VERSION),
        "busy_s_total": _time_in("busy"),
        "wait_task_s_total": _time_in("wait_task"),
        "wait_publish_s_total": _time_in("wait_publish"),
        "wait_score_s_total": _time_in("wait_score"),
        "wait_latency_s_total": _time_in("wait_latency"),
        "evaluation_s_total": _time_in("evaluation"),
        "swap_ms_total": _time_in("swap", scale=PER_MS),
        "server_updates_total": Shown(names.METRIC_SERVER_UPDATES, {names.ATTR_KIND: "taken"}),
        "server_updates_refused_total": Shown(names.METRIC_SERVER_UPDATES, {names.ATTR_KIND: "refused"}),
        "server_requests_kept_total": Shown(names.METRIC_SERVER_REQUESTS, {names.ATTR_KIND: "kept"}),
        "server_streams_cut_total": Shown(names.METRIC_SERVER_REQUESTS, {names.ATTR_KIND: "cut"}),
        "server_losses_total": Shown(names.METRIC_SERVER_LOSSES),
        "server_pause_ms": Shown(names.METRIC_SERVER_PAUSE, scale=PER_MS),
        "server_update_ms": Shown(names.METRIC_SERVER_LOAD, scale=PER_MS),
        "server_probe_error": Shown(names.METRIC_SERVER_PROBE_ERROR),
        "tasks_failed_total": _errors_of(names.SPAN_GENERATE),
        "tasks_handed_back_total": Shown(names.METRIC_TASKS_RETURNED, {names.ATTR_CAUSE: "drained"}),
        "tasks_redelivered_total": Shown(names.METRIC_REDELIVERED, {names.ATTR_STREAM: "TASKS"}),
        "quarantined_total": Shown(names.METRIC_QUARANTINED),
    },
    "environment": {
        "busy_s_total": _time_in("busy"),
        "wait_s_total": _time_in("wait_rollout"),
        "verifier_failures_total": _errors_of(names.SPAN_SCORE),
        "quarantined_total": Shown(names.METRIC_QUARANTINED),
    },
    "trajectory_store": {
        "accepted_total": Shown(names.METRIC_APPENDED),
        "dropped_*_total": Shown(names.METRIC_DROPPED, family=names.ATTR_REASON),
        "duplicates_total": Shown(names.METRIC_DUPLICATES),
        "revived_total": Shown(names.METRIC_REVIVED),
        "quarantined_total": Shown(names.METRIC_QUARANTINED),
        "available_trajectories": Shown(names.METRIC_QUEUE_DEPTH, {names.ATTR_QUEUE: "store"}),
        "leased_trajectories": Shown(names.METRIC_LEASE_ACTIVE),
        "resident_bytes": Shown(names.METRIC_STORE_BYTES),
        "full_s_total": _time_in("full"),
    },
    "learner": {
        "version_step": Shown(names.METRIC_LEARNER_VERSION),
        "trained_steps_total": Shown(names.METRIC_LEARNER_STEPS),
        "busy_s_total": _time_in("busy"),
        "wait_batch_s_total": _time_in("wait_batch"),
        "commit_s_total": _time_in("commit"),
        "publish_s_total": _time_in("publish"),
        "mean_return": Shown(names.METRIC_LEARNER_RETURN),
        "mean_reward": Shown(names.METRIC_LEARNER_REWARD),
        "loss": Shown(names.METRIC_LEARNER_LOSS),
        "ess": Shown(names.METRIC_LEARNER_ESS),
        "clipped_fraction": Shown(names.METRIC_LEARNER_CLIPPED),
        "outdated_batches_total": Shown(names.METRIC_LEARNER_OUTDATED),
        "invalid_batches_total": _errors_of(names.SPAN_CONSUME),
        "checkpoints_total": Shown(names.METRIC_CHECKPOINTS),
        "response_tier": Shown(names.METRIC_RESPONSE_TIER),
    },
    "weight_distribution": {
        "published_total": Shown(names.METRIC_WEIGHTS_PUBLISHED),
        "published_bytes_total": Shown(names.METRIC_WEIGHTS_BYTES, {names.ATTR_KIND: "published"}),
        "pulled_bytes_total": Shown(names.METRIC_WEIGHTS_BYTES, {names.ATTR_KIND: "pulled"}),
        "kept_versions": Shown(names.METRIC_WEIGHTS_KEPT),
    },
    "admission": {
        "max_running": Shown(names.METRIC_ADMISSION_LIMIT),
        "max_lag": Shown(names.METRIC_ADMISSION_MAX_LAG),
        "capacity": Shown(names.METRIC_ADMISSION_CAPACITY),
        "paused": Shown(names.METRIC_ADMISSION_PAUSED),
        "slos_*": Shown(names.METRIC_SLO_CONDITIONS, family=names.ATTR_CONDITION),
    },
}
# Counters that are shown as 0 from the start: an increase from nothing is none.
_FROM_ZERO = (
    "quarantined_total",
    "tasks_failed_total",
    "tasks_redelivered_total",
    "tokens_lost_total",
    "outdated_batches_total",
)


def readings(stats: ServiceStats) -> Iterator[Reading]:
    """Everything on the board that has a metric."""
    shown = {**_EVERY_SERVICE, **BOARDS.get(stats.service, {})}
    values: Mapping[str, float] = {**{name: 0.0 for name in _FROM_ZERO if name in shown}, **stats.values}
    for name, value in values.items():
        found = shown.get(name)
        if found is not None:
            yield Reading(found.metric, value * found.scale, found.labels)
            continue
        for pattern, family in shown.items():
            before, star, after = pattern.partition("*")
            member = name[len(before) : len(name) - len(after)]
            if star and member and name.startswith(before) and name.endswith(after):
                yield Reading(family.metric, value * family.scale, {**family.labels, family.family: member})
    yield Reading(names.METRIC_DRAINING, float(stats.state in ("draining", "stopped")), {})
    mode = stats.labels.get("scaling_mode")
    if mode:
        for name in MODES:
            yield Reading(names.METRIC_ADMISSION_MODE, float(name == mode), {names.ATTR_MODE: name})
    blamed = stats.labels.get("bottleneck")
    if blamed:
        for name in BOTTLENECKS:
            yield Reading(names.METRIC_BOTTLENECK, float(name == blamed), {names.ATTR_CAUSE: name})
