"""The actor's own section of the run file."""

from typing import Annotated, Literal

import msgspec

from tidegate.actor.engines.server_config import ServerConfig
from tidegate.actor.gateway.config import GatewayConfig


class ActorConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How much an actor holds, and which engine runs its rollouts.

    ``engine``: ``auto`` takes the one that fits (segments: ``vector_env``; text in one turn by ``char_lm``:
    ``text_generation``; by ``transformers``, or in several turns: ``torch``). ``vllm`` and ``sglang`` are servers.
    ``slots``: of ``vector_env`` and ``text_generation``, tasks generated in one go; for text it is the number of groups
    in a batch, for segments more than 1 only adds waiting. With ``workload.latency`` the next batch starts once the
    slowest of this one has had its time, so actors that mostly wait are best many, with one slot each. Of the engines
    that write tokens (``torch``, ``vllm``, ``sglang``), continuations written at once: as many tasks run as fit with
    all of their samples, at least one, and each leaves as soon as it is done. ``prefetch``: tasks held besides, so that
    the engine finds the next one at once; large values starve the other actors. A slot is freed when its rollout is
    handed to publishing.
    ``cache_on_swap``: what engines that write tokens do with what they read under an older policy. ``recompute`` reads
    it again, so that each logprob is exactly its version's; ``keep`` goes on at once, and the learner's correction for
    the mismatch has to bear it.
    ``server``: the inference server of the engines ``vllm`` and ``sglang``.
    ``gateway``: agents that speak the OpenAI API hold the episodes, on an engine that writes tokens; not set, the actor
    holds them itself.
    ``keep_progress_s``: seconds between two looks at what is written of running tasks and not yet kept in PROGRESS:
    about the seconds of tokens that a killed actor costs. Large rollouts are kept less often than that.
    ``max_unacked_publishes``: rollouts on their way to a stream at once. One more batch of ``slots`` may be finished
    behind them; past that generation waits (backpressure).
    ``ack_wait_s``: seconds without a heartbeat after which a task goes to another actor: what a killed actor costs a
    synchronous run. Heartbeats come three times as often; on an overloaded machine too short a time doubles work.
    ``retry_delay_s``: seconds before a task that this actor could not run is offered again.
    ``threads``: threads of one torch operation; more than the free cores makes everything slower.
    ``evaluation_batch``: held-out problems generated at once. ``evaluation_problems_max``: problems used of the
    held-out file; bounds how long an evaluation keeps the engine from rollouts.
    ``pull_attempts``: tries for one version's tensors before the actor looks for a newer one; the policy it serves
    stays meanwhile.
    """

    engine: Literal["auto", "vector_env", "text_generation", "torch", "vllm", "sglang"] = "auto"
    slots: Annotated[int, msgspec.Meta(ge=1, le=1024)] = 1
    prefetch: Annotated[int, msgspec.Meta(ge=0, le=1024)] = 1
    cache_on_swap: Literal["recompute", "keep"] = "recompute"
    server: ServerConfig = ServerConfig()
    gateway: GatewayConfig | None = None
    keep_progress_s: Annotated[float, msgspec.Meta(ge=0.05, le=3600.0)] = 1.0
    max_unacked_publishes: Annotated[int, msgspec.Meta(ge=1, le=256)] = 4
    ack_wait_s: Annotated[float, msgspec.Meta(ge=1.0, le=3600.0)] = 10.0
    retry_delay_s: Annotated[float, msgspec.Meta(ge=0.0, le=3600.0)] = 5.0
    threads: Annotated[int, msgspec.Meta(ge=1, le=256)] = 1
    evaluation_batch: Annotated[int, msgspec.Meta(ge=1, le=65536)] = 512
    evaluation_problems_max: Annotated[int, msgspec.Meta(ge=1, le=1_000_000)] = 4096
    pull_attempts: Annotated[int, msgspec.Meta(ge=1, le=1000)] = 5
