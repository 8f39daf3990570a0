"""The actor's own section of the run file."""

from typing import Annotated, Literal

import msgspec


class ActorConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How much an actor holds, and which engine runs its rollouts.

    ``engine``: ``auto`` takes the one that fits the workload (segments: ``vector_env``, text: ``text_generation``).
    ``slots``: tasks generated in one go; for text it is the number of groups in a batch, for segments more than 1
    only adds waiting. With ``workload.latency`` the next batch starts once the slowest of this one has had its time,
    so actors that mostly wait are best many, with one slot each. ``prefetch``: tasks held besides, so that the engine
    finds the next one at once; large values starve the other actors. A slot is freed when its rollout is handed to
    publishing.
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

    engine: Literal["auto", "vector_env", "text_generation"] = "auto"
    slots: Annotated[int, msgspec.Meta(ge=1, le=1024)] = 1
    prefetch: Annotated[int, msgspec.Meta(ge=0, le=1024)] = 1
    max_unacked_publishes: Annotated[int, msgspec.Meta(ge=1, le=256)] = 4
    ack_wait_s: Annotated[float, msgspec.Meta(ge=1.0, le=3600.0)] = 10.0
    retry_delay_s: Annotated[float, msgspec.Meta(ge=0.0, le=3600.0)] = 5.0
    threads: Annotated[int, msgspec.Meta(ge=1, le=256)] = 1
    evaluation_batch: Annotated[int, msgspec.Meta(ge=1, le=65536)] = 512
    evaluation_problems_max: Annotated[int, msgspec.Meta(ge=1, le=1_000_000)] = 4096
    pull_attempts: Annotated[int, msgspec.Meta(ge=1, le=1000)] = 5
