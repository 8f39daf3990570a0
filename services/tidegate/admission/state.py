"""Decisions of admission, without IO: the limits to publish, and the diagnosis' signals from a window of statistics.

A lost learner or store deliberately does not pause admission: the admission law bounds the work in flight, so actors
stop by themselves once the budget is filled and resume without a command. Zero actors do not pause admission (I9).
"""

from collections.abc import Sequence

import msgspec

from tidegate.admission.observations import Observations, mean
from tidegate.catalogue import actor as actor_stats
from tidegate.catalogue import environment as environment_stats
from tidegate.catalogue import gpu as gpu_stats
from tidegate.catalogue import inference as inference_stats
from tidegate.catalogue import learner as learner_stats
from tidegate.catalogue import process as process_stats
from tidegate.catalogue import task_queue as queue_stats
from tidegate.catalogue import trajectory_store as store_stats
from tidegate.catalogue.kinds import Counter, Gauge
from tidegate.core.admission import Flow, Limits
from tidegate.core.balance import Signals
from tidegate.core.pauses import Pause


class Decision(msgspec.Struct, frozen=True):
    """The limits for the task queue, and how many tasks actors may hold unacknowledged at once."""

    limits: Limits
    max_ack_pending: int


def decide(
    run_file: Limits,
    pause: Pause,
    *,
    resident_bytes: float,
    resident_bytes_high: float,
    group_size: int,
    budget: int | None = None,
    hold: str = "",
) -> Decision:
    """The limits for this moment, computed from the arguments alone: the same tick twice changes nothing.

    ``budget``: the staleness budget in force, where a controller chose one below the run file's. ``hold``: why the
    platform itself pauses admission for a while; an operator's pause takes precedence.

    When the store fills up the bound on running rollouts shrinks, never below one batch: only a checkpoint frees
    trained payloads, and a checkpoint needs more steps. Pausing completely could deadlock.
    """
    max_running, reason = run_file.max_running, ""
    if resident_bytes > resident_bytes_high:
        share = resident_bytes_high / resident_bytes
        floor = min(run_file.batch_size, run_file.max_running)
        max_running = max(floor, int(run_file.max_running * share) // group_size * group_size)
        reason = (
            f"the store holds {resident_bytes / 1e6:.0f} MB"
            f" (admission.resident_bytes_high {resident_bytes_high / 1e6:.0f} MB)"
        )
    if pause.paused:
        reason = pause.sentence()
    elif hold:
        reason = hold
    limits = Limits(
        max_lag=run_file.max_lag if budget is None else max(0, min(budget, run_file.max_lag)),
        batch_size=run_file.batch_size,
        max_running=max_running,
        paused=pause.paused or bool(hold),
        reason=reason,
        paced=run_file.paced,
    )
    # One more than the rollouts: an evaluation must not take a rollout's slot when all are in use.
    return Decision(limits=limits, max_ack_pending=max(1, max_running // group_size) + 1)


class StreamBacklog(msgspec.Struct, frozen=True):
    """Messages in the streams of work; each is one task."""

    tasks: float = 0.0
    rollouts: float = 0.0
    trajectories: float = 0.0


def mean_backlog(backlogs: Sequence[StreamBacklog]) -> StreamBacklog:
    """The mean of several samples; a single sample of a stream that fills and drains with every batch is noise."""
    return StreamBacklog(
        tasks=mean(backlog.tasks for backlog in backlogs),
        rollouts=mean(backlog.rollouts for backlog in backlogs),
        trajectories=mean(backlog.trajectories for backlog in backlogs),
    )


def flow_of(seen: Observations, *, now_s: float) -> Flow:
    """The work in flight that the task queue reported last; all zero while it does not report."""
    latest = seen.latest("task_queue", now_s=now_s)
    if not latest:
        return Flow(running=0, in_flight=0)
    values = latest[0].values
    return Flow(
        running=int(values.get(queue_stats.RUNNING_TRAJECTORIES, 0.0)),
        in_flight=int(values.get(queue_stats.IN_FLIGHT_TRAJECTORIES, 0.0)),
        unannounced=int(values.get(queue_stats.UNANNOUNCED_TRAJECTORIES, 0.0)),
        behind=int(values.get(queue_stats.BEHIND_VERSIONS, 0.0)),
    )


def running_of(seen: Observations, flow: Flow, *, now_s: float) -> int | None:
    """Running rollouts; None while the task queue does not report, of which the flow says 0."""
    return flow.running if seen.num_alive("task_queue", now_s=now_s) else None


def signals_of(
    seen: Observations, limits: Limits, backlog: StreamBacklog, *, group_size: int, now_s: float
) -> Signals:
    """The signals of the window, from which the bottleneck is diagnosed."""
    learner = seen.latest("learner", now_s=now_s)
    queue = seen.latest("task_queue", now_s=now_s)
    stores = seen.latest("trajectory_store", now_s=now_s)
    serving = seen.serving(now_s=now_s)
    learner_values = learner[0].values if learner else {}
    slowest = min((version.step for version in serving), default=None)
    behind = learner_values.get(learner_stats.VERSION_STEP, 0.0) - slowest if slowest is not None else 0.0

    def ratio(service: str, name: Counter) -> float:
        return seen.ratio(service, name, now_s=now_s)

    def rate(service: str, name: Counter | Gauge) -> float:
        return seen.rate(service, name, now_s=now_s)

    def gauge(service: str, name: Gauge) -> float:
        return seen.gauge(service, name, now_s=now_s)

    return Signals(
        num_actors=seen.num_alive("actor", now_s=now_s),
        num_environments=seen.num_alive("environment", now_s=now_s),
        # One learner of several ranks reports for all of them.
        num_learners=sum(int(stats.values.get(learner_stats.REPLICAS, 1.0)) for stats in learner),
        num_stores=seen.num_alive("trajectory_store", now_s=now_s),
        actor_steps_per_s=rate("actor", actor_stats.STEPS),
        actor_busy_ratio=ratio("actor", actor_stats.BUSY_S),
        actor_wait_task_ratio=ratio("actor", actor_stats.WAIT_TASK_S),
        actor_wait_policy_ratio=ratio("actor", actor_stats.WAIT_POLICY_S),
        actor_wait_publish_ratio=ratio("actor", actor_stats.WAIT_PUBLISH_S),
        environment_busy_ratio=ratio("environment", environment_stats.BUSY_S),
        scored_per_s=rate("environment", environment_stats.SCORED),
        learner_samples_per_s=rate("learner", learner_stats.TRAINED_TRAJECTORIES),
        learner_steps_per_s=rate("learner", learner_stats.VERSION_STEP),
        learner_busy_ratio=ratio("learner", learner_stats.BUSY_S),
        learner_idle_ratio=ratio("learner", learner_stats.WAIT_BATCH_S),
        learner_publish_ratio=min(
            1.0, ratio("learner", learner_stats.PUBLISH_S) + ratio("learner", learner_stats.COMMIT_S)
        ),
        available=gauge("trajectory_store", store_stats.AVAILABLE_TRAJECTORIES),
        unscored=backlog.rollouts * group_size,
        unstored=backlog.trajectories * group_size,
        running=gauge("task_queue", queue_stats.RUNNING_TRAJECTORIES),
        in_flight=gauge("task_queue", queue_stats.IN_FLIGHT_TRAJECTORIES),
        batch_size=limits.batch_size,
        max_running=limits.max_running,
        max_lag=limits.max_lag,
        lag_mean=learner_values.get(learner_stats.LAG_MEAN, 0.0),
        lag_max=learner_values.get(learner_stats.LAG_LAST_MAX, 0.0),
        publish_lag=max(0.0, behind),
        weight_pull_ms=seen.mean_of("actor", actor_stats.WEIGHT_PULL_MS, now_s=now_s),
        paused=limits.paused,
        admission_state=limits.reason
        if limits.paused
        else (queue[0].labels.get(queue_stats.ADMISSION_STATE, "") if queue else ""),
        num_inferences=seen.num_alive("inference", now_s=now_s),
        actor_wait_inference_ratio=ratio("actor", actor_stats.INFERENCE_WAIT_S),
        # With a small network messages take more of its time than the network does.
        inference_busy_ratio=max(
            ratio("inference", inference_stats.BUSY_S), ratio("inference", process_stats.CPU_S)
        ),
        # All ranks of the learner's pod see the same GPUs.
        learner_gpus=int(learner_values.get(gpu_stats.GPUS, 0.0)),
        learner_gpu_busy_ratio=ratio("learner", gpu_stats.GPU_BUSY_S),
        learner_mfu=learner_values.get(learner_stats.MFU, 0.0),
        actor_gpus=round(
            seen.mean_of("actor", gpu_stats.GPUS, now_s=now_s) * seen.num_alive("actor", now_s=now_s)
        ),
        actor_gpu_busy_ratio=ratio("actor", gpu_stats.GPU_BUSY_S),
        # Seconds of waiting a second.
        inference_waiting=rate("inference", inference_stats.WAITED_S),
        replay_actors_wait_ratio=ratio("trajectory_store", store_stats.REPLAY_WAIT_S.member("actors")),
        replay_learner_wait_ratio=ratio("trajectory_store", store_stats.REPLAY_WAIT_S.member("learner")),
        replay_wait=next(
            filter(None, (stats.labels.get(store_stats.REPLAY_WAIT, "") for stats in stores)), ""
        ),
    )
