"""Diagnosis: the bottleneck of the loop, read from what each service waits for, and the one fix that helps most.

Four signals distinguish actors from the learner (steps/s of actors, samples/s and idle ratio of the learner, queue
depth, lag); the queues of the environment and the store, and the time spent on policies, show the rest. Ratios are
shares of wall time in [0, 1], averaged over the instances of a service; counts are trajectories. The order of the
questions matters: a learner that never waits is the bottleneck, even if another service is slow; only when it waits is
another service the bottleneck.

Gains are first-order estimates from the same ratios (a cycle is as long as its parts that do not overlap). They rank
fixes and are no promise. ``fixes`` prices them.
"""

import math
from collections.abc import Mapping
from typing import Literal, TypeAlias

import msgspec

from tidegate.core import pauses
from tidegate.core.workloads import ONE_MACHINE, Workloads

Bottleneck: TypeAlias = Literal[
    "actor", "learner", "environment", "inference", "weights", "store", "balanced", "idle"
]
# What a fix changes: replicas to buy, components to inspect, and the two bounds of the run file.
Lever: TypeAlias = Literal[
    "actor",
    "fewer_actors",
    "environment",
    "inference",
    "learner",
    "weights",
    "store",
    "max_lag",
    "max_running",
]

# The learner's objective is to wait at most a tenth of its time; below that a faster producer gains less than the
# noise of a ten-second window on a shared machine. The same limit applies to actors.
IDLE_RATIO_MAX = 0.10
# Once more than half of the work in flight waits for one service, all others together hold the smaller half.
PILED_UP_SHARE = 0.5
# A fifth of an actor's or a learner's time: a pull overlaps the end of a rollout and normally costs a few percent.
MOVING_WEIGHTS_RATIO_MAX = 0.20
# Blocked publishes are backpressure and therefore zero on a healthy path; a fifth of the time is more than a burst.
BLOCKED_RATIO_MAX = 0.20
# Less than a quarter of its time left: a further actor's steps would mostly wait for those of the others.
INFERENCE_BUSY_RATIO_MAX = 0.75
# Of a learner that always trains, the share of its time below which its GPUs wait for its CPU, and not it for them.
GPU_WAITS_BELOW = 0.5
# One whole batch beyond the one being trained waits: more than prefetching needs.
FULL_DEPTH_BATCHES = 1.0


# Parts that only some runs have, by what their signals are called, with the signal that counts them.
_PARTS = {
    "inference": "num_inferences",
    "actor_gpu": "actor_gpus",
    "learner_gpu": "learner_gpus",
    "learner_mfu": "learner_mfu",
}


class Signals(msgspec.Struct, frozen=True):
    """The whole system over one window of some seconds.

    ``*_ratio``: share of wall time, mean over instances. ``unscored`` and ``unstored``: trajectories that wait before
    the environment and before the store. ``available``: in the store, waiting for a batch. ``publish_lag``: versions
    between the learner and the actor farthest behind. ``admission_state``: what the task queue waits for.
    ``stuck_actors``: actors whose environments do not return from a call; ``actor_problem``: what one of the actors
    last reported of its environments or of a task that it refused; empty without any. ``batches_refused``: why the
    learner refused its last batches, if it trained none between them. ``replay_actors_wait_ratio``
    and ``replay_learner_wait_ratio``: in which that side waited at the replay buffer; ``replay_wait``: who waits for
    whom there now, and why. ``actor_wait_inference_ratio``: in which actors waited for actions of the inference
    service; ``inference_busy_ratio``: of its process, computing or with messages; ``inference_waiting``: requests that
    wait at it for a call of the network, on average. ``actor_gpus`` and ``learner_gpus``: that these services see, 0
    where they compute on CPUs; ``*_gpu_busy_ratio``: in which those GPUs ran a kernel. ``learner_mfu``: share of their
    peak that the newest update reached; 0 where it is not known.
    """

    num_actors: int = 0
    num_environments: int = 0
    num_learners: int = 0
    num_stores: int = 0
    actor_steps_per_s: float = 0.0
    actor_busy_ratio: float = 0.0
    actor_wait_task_ratio: float = 0.0
    actor_wait_policy_ratio: float = 0.0
    actor_wait_publish_ratio: float = 0.0
    environment_busy_ratio: float = 0.0
    scored_per_s: float = 0.0
    learner_samples_per_s: float = 0.0
    learner_steps_per_s: float = 0.0
    learner_busy_ratio: float = 0.0
    learner_idle_ratio: float = 0.0
    learner_publish_ratio: float = 0.0
    available: float = 0.0
    unscored: float = 0.0
    unstored: float = 0.0
    running: float = 0.0
    in_flight: float = 0.0
    batch_size: int = 1
    max_running: int = 1
    max_lag: int = 0
    lag_mean: float = 0.0
    lag_max: float = 0.0
    publish_lag: float = 0.0
    weight_pull_ms: float = 0.0
    paused: bool = False
    admission_state: str = ""
    stuck_actors: int = 0
    actor_problem: str = ""
    batches_refused: str = ""
    replay_actors_wait_ratio: float = 0.0
    replay_learner_wait_ratio: float = 0.0
    replay_wait: str = ""
    num_inferences: int = 0
    actor_wait_inference_ratio: float = 0.0
    inference_busy_ratio: float = 0.0
    inference_waiting: float = 0.0
    actor_gpus: int = 0
    actor_gpu_busy_ratio: float = 0.0
    learner_gpus: int = 0
    learner_gpu_busy_ratio: float = 0.0
    learner_mfu: float = 0.0

    def depth_batches(self) -> float:
        """Queue depth: whole batches that wait in the store."""
        return self.available / max(1, self.batch_size)

    def numbers(self) -> dict[str, float]:
        """Every number by name, for an answer in JSON and for the samples of a run."""
        named = {name: getattr(self, name) for name in self.__struct_fields__}
        numbers = {name: float(value) for name, value in named.items() if isinstance(value, (int, float))}
        return {**numbers, "queue_depth_batches": self.depth_batches()}


class Diagnosis(msgspec.Struct, frozen=True):
    """The bottleneck, one sentence with the numbers that show it, and the fix for it.

    ``lever``: what that fix changes; None without a fix to buy or set.
    """

    bottleneck: Bottleneck
    sentence: str
    fix: str = ""
    lever: Lever | None = None


def is_measured(name: str, signals: Mapping[str, float]) -> bool:
    """Whether the run has the part that a signal is of; ``signals`` are numbers by name."""
    return not any(part in name and not signals.get(number) for part, number in _PARTS.items())


def diagnose(signals: Signals, workloads: Workloads = ONE_MACHINE) -> Diagnosis:
    """Name the bottleneck of one window; ``workloads``: what the commands of its fix name."""
    absent = _absent(signals, workloads)
    if absent is not None:
        return absent
    paced = _paced_by_replay(signals, workloads)
    if paced is not None:
        return paced
    if signals.learner_idle_ratio <= IDLE_RATIO_MAX:
        return _learner_sets_the_pace(signals, workloads)
    return _learner_waits(signals, workloads)


def _absent(signals: Signals, workloads: Workloads) -> Diagnosis | None:
    """The diagnosis where a service is missing or no work is admitted; there is no bottleneck."""
    if signals.paused:
        return Diagnosis(
            "idle",
            pauses.explanation(signals.admission_state),
            pauses.way_out(signals.admission_state),
        )
    if signals.num_learners == 0:
        return Diagnosis(
            "learner",
            "No learner reports (it may still be starting), so nothing is trained.",
            f"if it stays away, {workloads.reason('learner')}",
        )
    if signals.num_actors == 0:
        return Diagnosis(
            "actor",
            f"No actor reports, so nothing is rolled out; {signals.in_flight:.0f} trajectories wait in flight."
            + _reported(signals),
            f"start an actor: {workloads.scale('actor', 1)}; if there is one,"
            f" {workloads.reason('actor', log='actor-0')}",
        )
    if signals.num_stores == 0:
        return Diagnosis(
            "store",
            "The trajectory store does not report, so nothing arrives.",
            workloads.reason("trajectory_store"),
        )
    if signals.batches_refused:
        return Diagnosis(
            "learner",
            f"{signals.batches_refused.rstrip('.')}. Nothing is trained.",
            "correct what the reason names in the run file or the environment; more of any service does not help",
        )
    if signals.stuck_actors and signals.learner_idle_ratio > IDLE_RATIO_MAX:
        return Diagnosis(
            "actor",
            f"{signals.stuck_actors} of {signals.num_actors} actors wait for an environment."
            + _reported(signals),
            "correct the environment; an actor is replaced after workload.step_timeout_s",
        )
    moving = signals.actor_steps_per_s + signals.learner_samples_per_s + signals.scored_per_s
    if moving == 0 and signals.actor_busy_ratio == 0 and signals.learner_busy_ratio == 0:
        return Diagnosis(
            "idle",
            f"Nothing moves; the task queue reports: {signals.admission_state or 'nothing yet'}."
            + _reported(signals),
        )
    return None


def _paced_by_replay(signals: Signals, workloads: Workloads) -> Diagnosis | None:
    """Which side waits for the other at the replay buffer; None where neither loses time by it."""
    actors_wait, learner_wait = signals.replay_actors_wait_ratio, signals.replay_learner_wait_ratio
    actors_lose = min(actors_wait, actors_idle_ratio(signals)) > IDLE_RATIO_MAX
    learner_loses = min(learner_wait, signals.learner_idle_ratio) > IDLE_RATIO_MAX
    now = f"; now {signals.replay_wait}" if signals.replay_wait else ""
    if actors_lose and learner_loses:
        return Diagnosis(
            "balanced",
            f"At the replay buffer actors wait {actors_wait:.0%} and the learner {learner_wait:.0%} of the time, each"
            f" for the other in turn{now}.",
            "raise trajectory_store.replay.slack, so that either may be further ahead of the other",
        )
    if learner_loses:
        held = _held_by_inference(
            signals, workloads, f"At the replay buffer the learner waits {learner_wait:.0%} of the time"
        )
        return held or Diagnosis(
            "actor",
            f"At the replay buffer the learner waits for actors {learner_wait:.0%} of the time{now}.",
            f"{action('actor', signals, workloads)}, or raise trajectory_store.replay.samples_per_insert or uses_max:"
            " each unit is then drawn more often",
            "actor",
        )
    if actors_lose:
        return Diagnosis(
            "learner",
            f"At the replay buffer actors wait for the learner {actors_wait:.0%} of the time{now}.",
            f"{action('learner', signals, workloads)}, or lower trajectory_store.replay.samples_per_insert"
            " (0: no limit)",
            "learner",
        )
    return None


def _reported(signals: Signals) -> str:
    """What an actor last reported, as a further sentence."""
    return f" {signals.actor_problem}." if signals.actor_problem else ""


def _learner_sets_the_pace(signals: Signals, workloads: Workloads) -> Diagnosis:
    waiting = f"The learner waits {signals.learner_idle_ratio:.0%} of its time"
    publishing = publishing_ratio(signals)
    if publishing > MOVING_WEIGHTS_RATIO_MAX:
        return Diagnosis(
            "weights",
            f"{waiting} for data, and {publishing:.0%} of it goes into committing and publishing.",
            action("weights", signals, workloads),
            "weights",
        )
    actors_idle = actors_idle_ratio(signals)
    if actors_idle > IDLE_RATIO_MAX or signals.depth_batches() >= FULL_DEPTH_BATCHES:
        return Diagnosis(
            "learner",
            f"{waiting} while {signals.depth_batches():.1f} batches wait for it and actors are idle"
            f" {actors_idle:.0%}; it trains {signals.learner_samples_per_s:,.0f} trajectories/s, {_lag(signals)}.",
            action("learner", signals, workloads),
            "learner",
        )
    return Diagnosis(
        "balanced",
        f"{waiting} and actors {actors_idle:.0%} of theirs: both work, {_lag(signals)}.",
        "nothing to fix; more actors and more learner only together",
    )


def _learner_waits(signals: Signals, workloads: Workloads) -> Diagnosis:
    waiting = f"The learner waits {signals.learner_idle_ratio:.0%} of its time for a batch"
    flight = max(1.0, signals.in_flight)
    if signals.actor_wait_policy_ratio > MOVING_WEIGHTS_RATIO_MAX:
        return Diagnosis(
            "weights",
            f"{waiting}, and actors wait {signals.actor_wait_policy_ratio:.0%} of theirs for a policy"
            f" ({signals.weight_pull_ms:.0f} ms a pull, up to {signals.publish_lag:.0f} versions behind).",
            f"{action('max_lag', signals, workloads)}: rollouts then start under the version an actor holds while it"
            " pulls the next",
            "max_lag",
        )
    if signals.depth_batches() >= FULL_DEPTH_BATCHES:
        return Diagnosis(
            "store",
            f"{waiting} although {signals.depth_batches():.1f} batches are in the store.",
            "check the store's CPU and disk: it leases batches more slowly than they are trained",
            "store",
        )
    blocked = signals.actor_wait_publish_ratio
    if signals.unstored / flight > PILED_UP_SHARE or blocked > BLOCKED_RATIO_MAX:
        return Diagnosis(
            "store",
            f"{waiting}; {signals.unstored:.0f} of {signals.in_flight:.0f} trajectories in flight wait before the"
            f" store and actors are blocked {blocked:.0%} of their time.",
            action("store", signals, workloads),
            "store",
        )
    if signals.unscored / flight > PILED_UP_SHARE:
        return Diagnosis(
            "environment",
            f"{waiting}; {signals.unscored:.0f} of {signals.in_flight:.0f} trajectories in flight wait for a reward"
            f" ({signals.num_environments} workers, busy {signals.environment_busy_ratio:.0%}).",
            action("environment", signals, workloads),
            "environment",
        )
    return _actors_or_the_budget(signals, workloads, waiting)


def _held_by_inference(signals: Signals, workloads: Workloads, waiting: str) -> Diagnosis | None:
    """The diagnosis where actors spend most of their time waiting for actions; None where another actor would help."""
    if signals.actor_wait_inference_ratio <= PILED_UP_SHARE:
        return None
    wait = f"{waiting}, and actors wait {signals.actor_wait_inference_ratio:.0%} of theirs for the inference service"
    if signals.num_inferences == 0:
        return Diagnosis("inference", f"{wait}, which does not report.", workloads.reason("inference"))
    queue = f"it is busy {signals.inference_busy_ratio:.0%}, and {signals.inference_waiting:.1f} requests wait for it"
    if signals.inference_busy_ratio > INFERENCE_BUSY_RATIO_MAX:
        return Diagnosis(
            "inference", f"{wait}: {queue}.", action("inference", signals, workloads), "inference"
        )
    if signals.inference_waiting > PILED_UP_SHARE * signals.num_actors:
        return Diagnosis(
            "inference",
            f"{wait}: {queue} while it waits for other actors' steps.",
            "lower inference.batch_wait_ms, or start more actors, which fill a call sooner",
        )
    return None


def _actors_or_the_budget(signals: Signals, workloads: Workloads, waiting: str) -> Diagnosis:
    """Diagnose a waiting learner: too few actors if they never idle; otherwise each side waits for the other."""
    held = _held_by_inference(signals, workloads, waiting)
    if held is not None:
        return held
    actors_idle = actors_idle_ratio(signals)
    serve = f"{signals.num_actors} actors make {signals.actor_steps_per_s:,.0f} steps/s and idle {actors_idle:.0%}"
    gain_by_actor, gain_by_overlap = actor_gain(signals), overlap_gain(signals)
    if actors_idle <= IDLE_RATIO_MAX or gain_by_actor > gain_by_overlap:
        return Diagnosis(
            "actor",
            f"{waiting}: {serve}, {_lag(signals)}.",
            f"{action('actor', signals, workloads)} (about {gain_by_actor:+.0%} throughput)",
            "actor",
        )
    if signals.running >= signals.max_running:
        return Diagnosis(
            "balanced",
            f"{waiting} and {serve}: max_running {signals.max_running} holds both.",
            action("max_running", signals, workloads),
            "max_running",
        )
    return Diagnosis(
        "balanced",
        f"{waiting} and {serve}: with max_lag {signals.max_lag} each waits for the other in turn.",
        f"{action('max_lag', signals, workloads)} (up to {gain_by_overlap:+.0%} throughput, paid in lag)",
        "max_lag",
    )


def action(lever: Lever, signals: Signals, workloads: Workloads = ONE_MACHINE) -> str:
    """The fix as a setting or command to type."""
    match lever:
        case "actor":
            return f"add an actor: {workloads.scale('actor', signals.num_actors + 1)}"
        case "fewer_actors":
            return f"run fewer: {workloads.scale('actor', actors_needed(signals))}"
        case "environment":
            more = signals.num_environments + 1
            return f"add an environment worker: {workloads.scale('environment', more)}"
        case "inference":
            threads = workloads.setting("inference.threads", "2")
            return (
                f"give the inference service more compute (cores and {threads}), or raise workload.num_envs: fewer and"
                " larger calls"
            )
        case "learner":
            return _more_for_the_learner(signals, workloads)
        case "weights":
            return "check the disk of weight_distribution and trajectory_store: every version waits for both"
        case "store":
            return "check the store's disk, or raise trajectory_store.fetch_messages_max"
        case "max_lag":
            return f"raise staleness.max_lag from {signals.max_lag} to {signals.max_lag + 1}"
        case "max_running":
            return f"raise max_running from {signals.max_running} to {2 * signals.max_running}"


def _more_for_the_learner(signals: Signals, workloads: Workloads) -> str:
    if signals.learner_gpus == 0:
        return (
            f"give the learner more compute (a GPU, or cores and {workloads.setting('learner.threads', '2')})"
        )
    busy = f"run kernels {signals.learner_gpu_busy_ratio:.0%} of the time"
    if signals.learner_gpu_busy_ratio < GPU_WAITS_BELOW * signals.learner_busy_ratio:
        return (
            "raise batch_size or learner.pass_tokens, so that the learner's GPUs compute more at once: they"
            f" {busy}, and faster ones would wait as well"
        )
    mfu = f" and reach {signals.learner_mfu:.0%} of their peak" if signals.learner_mfu else ""
    return f"give the learner more or faster GPUs (learner.ranks): its own {busy}{mfu}"


def actor_gain(signals: Signals) -> float:
    """Share of throughput that one more actor brings."""
    more = signals.num_actors + 1
    actors_work, learner_works = 1.0 - actors_idle_ratio(signals), 1.0 - signals.learner_idle_ratio
    if actors_idle_ratio(signals) <= IDLE_RATIO_MAX:
        return min(more / max(1, signals.num_actors), 1.0 / max(learner_works, 0.01)) - 1.0
    # The cycle is both parts in sequence. One more actor shortens its part; overlap hides the shorter part.
    return 1.0 / max(0.01, 1.0 - actors_work / more) - 1.0


def overlap_gain(signals: Signals) -> float:
    """Share of throughput that complete overlap of rollouts and training brings, where each waits for the other."""
    return 1.0 / max(0.01, 1.0 - actors_idle_ratio(signals), 1.0 - signals.learner_idle_ratio) - 1.0


def inference_gain(signals: Signals) -> float:
    """Share of throughput that an inference service of twice the speed brings, until the learner has no time left."""
    learner_works = 1.0 - signals.learner_idle_ratio
    actors_take = 1.0 - 0.5 * signals.actor_wait_inference_ratio
    return 1.0 / max(0.01, actors_take, learner_works) - 1.0


def actors_needed(signals: Signals) -> int:
    """How many actors could do the present work without idle time, with a twentieth to spare."""
    busy = signals.num_actors * (1.0 - actors_idle_ratio(signals))
    return min(signals.num_actors, max(1, math.ceil(busy / 0.95)))


def actors_idle_ratio(signals: Signals) -> float:
    """Share of their time in which actors had nothing to do."""
    return min(1.0, signals.actor_wait_task_ratio)


def publishing_ratio(signals: Signals) -> float:
    """Share of the learner's time that publishing costs: where it overlaps the next update it costs none."""
    return min(signals.learner_publish_ratio, 1.0 - signals.learner_busy_ratio - signals.learner_idle_ratio)


def _lag(signals: Signals) -> str:
    return f"lag {signals.lag_mean:.1f} of {signals.max_lag}"
