"""The actor's own section of the run file."""

from typing import Annotated, Literal

import msgspec

from tidegate.actor.engines.server_config import ServerConfig
from tidegate.actor.gateway.config import GatewayConfig
from tidegate.algorithms.actor_critic_settings import ActorCriticSettings
from tidegate.algorithms.q_learning_settings import QActingSettings


class ActorConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How many tasks an actor holds, and which engine runs its rollouts.

    ``engine``: ``auto`` chooses by the workload (segments: ``vector_env``; text in one turn by ``char_lm``:
    ``text_generation``; by ``transformers``, or in several turns: ``torch``). Or one of your own:
    ``my_engine.py:open_engine``, a module with a name, or a name of the entry points ``tidegate.engines``.
    ``vllm`` and ``sglang`` are servers.
    ``gradient_env`` turns each segment into its gradient, as A3C does; it needs ``learner.algorithm``
    ``applied_gradients`` and loads torch. ``actor_critic``: the objective of that gradient; the optimiser's settings
    are the learner's. ``inference_env`` asks the service ``inference`` for each action, as in SEED RL, and the run has
    that service; actors hold no weights. ``inference_wait_s``: seconds that a step waits for that service to return
    before its task is released; shorter than a restart of the service loses the segments of all actors at each one.
    ``q_learning`` (policies of the values of actions): exploration, and the first priority of a replayed unit.
    ``slots``: of ``vector_env`` and ``text_generation``, tasks generated together; for text it is the number of groups
    in a batch, for segments more than 1 only adds waiting. With ``workload.latency`` the next batch starts after the
    slowest task of this one, so for long latencies use many actors with one slot each. Of the engines that write tokens
    (``torch``, ``vllm``, ``sglang``), continuations generated at once: as many tasks run as fit with all of their
    samples, at least one, and each is published as soon as it is finished. ``prefetch``: further tasks held ready for
    the engine; large values starve the other actors. A slot is freed when its rollout is handed to publishing.
    ``cache_on_swap``: what engines that write tokens do with keys and values of an older policy. ``recompute`` computes
    them again, so that each logprob is exactly its version's; ``keep`` continues at once, and the learner's correction
    has to compensate the mismatch. ``server``: the inference server of the engines ``vllm`` and ``sglang``.
    ``gateway``: external agents run the episodes through the OpenAI API, on an engine that writes tokens; unset: the
    actor runs them itself. ``keep_progress_s``: seconds between two checkpoints of partial rollouts to PROGRESS: about
    the seconds of tokens lost when an actor is killed. Large rollouts are checkpointed less often.
    ``max_unacked_publishes``: concurrent unacknowledged publishes. One more batch of ``slots`` may finish meanwhile;
    after that generation waits (backpressure). ``ack_wait_s``: seconds without a heartbeat after which another actor
    gets the task: a synchronous run waits this long for a killed actor's task. Heartbeats are three times as frequent;
    too short a time duplicates work on an overloaded machine. ``retry_delay_s``: seconds before a task that this actor
    could not run is offered again. ``device``: of the engine ``torch``; ``auto`` is CUDA where torch can use it, and in
    pods to which the chart gives a GPU it is ``cuda``, which ends an actor that finds none. ``threads``: threads of
    one operation of torch or onnxruntime; more than the free cores slows everything down. ``evaluation_batch`` (text):
    held-out problems generated at once. ``evaluation_problems_max`` (text): problems used of the held-out file; bounds
    how long an evaluation keeps the engine from rollouts. ``evaluation_episodes`` (segments): whole episodes of one
    evaluation, each from its own seed, in at most ``workload.num_envs`` copies at a time. ``evaluation_steps_max``
    (segments): steps after which an episode counts with the return that it has reached; for environments that may
    never end. ``evaluation_deadline_s`` (segments, seconds): an evaluation that takes longer fails; the actor that
    plays it makes no segments meanwhile. ``pull_attempts``: attempts to pull one version's tensors before the actor
    checks for a newer one; it serves the old policy meanwhile.
    """

    engine: Annotated[str, msgspec.Meta(min_length=1, max_length=256)] = "auto"
    inference_wait_s: Annotated[float, msgspec.Meta(ge=1.0, le=3600.0)] = 30.0
    actor_critic: ActorCriticSettings = ActorCriticSettings()
    q_learning: QActingSettings = QActingSettings()
    slots: Annotated[int, msgspec.Meta(ge=1, le=1024)] = 1
    prefetch: Annotated[int, msgspec.Meta(ge=0, le=1024)] = 1
    cache_on_swap: Literal["recompute", "keep"] = "recompute"
    server: ServerConfig = ServerConfig()
    gateway: GatewayConfig | None = None
    keep_progress_s: Annotated[float, msgspec.Meta(ge=0.05, le=3600.0)] = 1.0
    max_unacked_publishes: Annotated[int, msgspec.Meta(ge=1, le=256)] = 4
    ack_wait_s: Annotated[float, msgspec.Meta(ge=1.0, le=3600.0)] = 10.0
    retry_delay_s: Annotated[float, msgspec.Meta(ge=0.0, le=3600.0)] = 5.0
    device: Literal["auto", "cpu", "cuda"] = "auto"
    threads: Annotated[int, msgspec.Meta(ge=1, le=256)] = 1
    evaluation_batch: Annotated[int, msgspec.Meta(ge=1, le=65536)] = 512
    evaluation_problems_max: Annotated[int, msgspec.Meta(ge=1, le=1_000_000)] = 4096
    evaluation_episodes: Annotated[int, msgspec.Meta(ge=1, le=10_000)] = 16
    evaluation_steps_max: Annotated[int, msgspec.Meta(ge=1, le=100_000_000)] = 30_000
    evaluation_deadline_s: Annotated[float, msgspec.Meta(gt=0.0, le=86_400.0)] = 120.0
    pull_attempts: Annotated[int, msgspec.Meta(ge=1, le=1000)] = 5
