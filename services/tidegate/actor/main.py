"""How the actor is put together."""

from functools import partial

from tidegate.actor.config import ActorConfig
from tidegate.actor.desk import Desk
from tidegate.actor.engines.port import Engine, Steering
from tidegate.actor.engines.registry import EngineSetting, open_engine
from tidegate.actor.evaluation import Evaluator
from tidegate.actor.investment import report_investment
from tidegate.actor.loops import WorkLoops
from tidegate.actor.policy import PolicyHolder, PolicyLoop
from tidegate.actor.predictions import Predictions
from tidegate.actor.publishing import Publisher
from tidegate.actor.running import RolloutRunner
from tidegate.actor.servicer import ActorServicer
from tidegate.actor.tail import TailWatch
from tidegate.runtime.memory import keep_freed_memory
from tidegate.runtime.policy_watch import PolicyWatch
from tidegate.runtime.service import Loop, ServiceContext, ServiceParts, ServiceSpec

FREED_BYTES_KEPT = 1 << 30


async def build(context: ServiceContext, config: ActorConfig) -> ServiceParts:
    """Put the actor's parts together; nothing runs yet.

    Raises:
        ConfigError: the engine does not fit the workload or the policy.
    """
    # Each policy takes the place of the one before the last.
    keep_freed_memory(FREED_BYTES_KEPT)
    steering = Steering()
    engine = open_engine(
        config.engine,
        EngineSetting(
            workload=context.settings.workload,
            policy=context.settings.policy,
            seed=context.settings.seed,
            actor_index=context.index,
            threads=config.threads,
            evaluation_batch=config.evaluation_batch,
        ),
        steering,
        context.clock,
    )
    return assemble(context, config, engine=engine, steering=steering)


def assemble(
    context: ServiceContext, config: ActorConfig, *, engine: Engine, steering: Steering
) -> ServiceParts:
    """The parts of an actor around an engine that reads ``steering``."""
    desk = Desk(capacity=config.slots + config.prefetch, finished_max=config.slots)
    holder = PolicyHolder(steering, desk.bell)
    watch = PolicyWatch(context)
    policy = PolicyLoop(context, watch, holder, engine, attempts=config.pull_attempts)
    publisher = Publisher(context, desk, retry_delay_s=config.retry_delay_s)
    predictions = Predictions(context.settings.long_tail)
    tail = TailWatch(context, watch, steering, predictions)
    runner = RolloutRunner(context, engine=engine, steering=steering, predictions=predictions, tail=tail)
    work = WorkLoops(
        context,
        config,
        desk=desk,
        engine=engine,
        runner=runner,
        predictions=predictions,
        holder=holder,
        evaluator=Evaluator(context, num_problems_max=config.evaluation_problems_max),
    )
    loops: dict[str, Loop] = {
        "watch": watch.run,
        "policy": policy.run,
        "fetch": work.fetch,
        "generate": work.generate,
        "heartbeat": work.heartbeat,
        "investment": partial(report_investment, context, desk),
    }
    if tail.wanted:
        loops["tail"] = tail.run
    for number in range(config.max_unacked_publishes):
        loops[f"publish-{number}"] = publisher.run

    async def close() -> None:
        engine.close()

    servicer = ActorServicer(context.instance, desk, holder, steering, slots=config.slots)
    return ServiceParts(loops=loops, servicers=[servicer.registration()], close=close)


SPEC = ServiceSpec(name="actor", config_type=ActorConfig, build=build)
