"""Actor and learner as their rooms build them, with an engine and a trainer of the simulation in place of networks."""

import asyncio
import random

from tidegate.actor.config import ActorConfig
from tidegate.actor.desk import Desk
from tidegate.actor.engines.port import Steering
from tidegate.actor.evaluation import Evaluator
from tidegate.actor.loops import WorkLoops
from tidegate.actor.policy import PolicyHolder, PolicyLoop
from tidegate.actor.publishing import Publisher
from tidegate.actor.servicer import ActorServicer
from tidegate.learner.checkpoint import CheckpointFolder
from tidegate.learner.config import LearnerConfig
from tidegate.learner.loops import Learner
from tidegate.learner.reporting import Reporter
from tidegate.learner.servicer import LearnerServicer
from tidegate.learner.steps_log import StepsLog
from tidegate.runtime.policy_watch import PolicyWatch
from tidegate.runtime.service import Loop, ServiceContext, ServiceParts, ServiceSpec
from tidegate.sim.engine import Pace, PacedEngine, PacedTrainer
from tidegate.sim.truth import Truth


def actor_spec(pace: Pace, truth: Truth, rng: random.Random) -> ServiceSpec:
    """An actor whose rollouts take as long as ``pace`` says."""

    async def build(context: ServiceContext, config: ActorConfig) -> ServiceParts:
        steering = Steering()
        engine = PacedEngine(pace, steering, context.clock, truth, rng)
        desk = Desk(capacity=config.slots + config.prefetch, finished_max=config.max_unacked_publishes)
        holder = PolicyHolder(steering, desk.bell)
        watch = PolicyWatch(context)
        policy = PolicyLoop(context, watch, holder, engine, attempts=config.pull_attempts)
        publisher = Publisher(context, desk, retry_delay_s=config.retry_delay_s)
        work = WorkLoops(
            context,
            config,
            desk=desk,
            engine=engine,
            steering=steering,
            holder=holder,
            evaluator=Evaluator(context, num_problems_max=config.evaluation_problems_max),
        )
        loops: dict[str, Loop] = {
            "watch": watch.run,
            "policy": policy.run,
            "fetch": work.fetch,
            "generate": work.generate,
            "heartbeat": work.heartbeat,
        }
        for number in range(config.max_unacked_publishes):
            loops[f"publish-{number}"] = publisher.run
        servicer = ActorServicer(context.instance, desk, holder, steering, slots=config.slots)
        return ServiceParts(loops=loops, servicers=[servicer.registration()])

    return ServiceSpec(name="actor", config_type=ActorConfig, build=build)


def learner_spec(pace: Pace, truth: Truth) -> ServiceSpec:
    """A learner whose updates take as long as ``pace`` says."""

    async def build(context: ServiceContext, config: LearnerConfig) -> ServiceParts:
        trainer = PacedTrainer(pace, context.clock, truth)
        log = StepsLog(context.data_dir / "steps.jsonl", bytes_max=config.steps_file_bytes_max)
        folder = await asyncio.to_thread(
            CheckpointFolder, context.data_dir / "checkpoints", keep=config.keep_checkpoints
        )
        learner = Learner(
            context,
            config,
            trainer=trainer,
            folder=folder,
            reporter=Reporter(context, log),
            make_first_policy=lambda: None,
        )

        async def close() -> None:
            log.close()

        return ServiceParts(
            loops={"train": learner.run}, servicers=[LearnerServicer(learner).registration()], close=close
        )

    return ServiceSpec(name="learner", config_type=LearnerConfig, build=build)
