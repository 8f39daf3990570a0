"""Builds the inference service."""

from tidegate.inference.config import InferenceConfig
from tidegate.inference.loops import FOLLOWER_STATISTICS, Inference
from tidegate.inference.servicer import InferenceServicer
from tidegate.models.policies import build_policy
from tidegate.models.policy_port import StepPolicy
from tidegate.runtime.described_environment import ask_description
from tidegate.runtime.policy_follower import PolicyFollower
from tidegate.runtime.policy_watch import PolicyWatch
from tidegate.runtime.service import ServiceContext, ServiceParts, ServiceSpec
from tidegate.wire.vector_step import StepLayout


async def build(context: ServiceContext, config: InferenceConfig) -> ServiceParts:
    """Build the parts without starting them, once the environment is described.

    Raises:
        ConfigError: the policy does not fit the environment.
        UnavailableError: the environment was not described in time.
    """
    description = await ask_description(context.channel("environment"), context.drain, context.log)
    return assemble(context, config, build_policy(description, context.settings.policy))


def assemble(context: ServiceContext, config: InferenceConfig, policy: StepPolicy) -> ServiceParts:
    """The parts of a service that acts by ``policy``.

    Raises:
        ConfigError: one step of an actor does not fit a message.
    """
    layout = StepLayout.of(policy, num_envs=context.settings.workload.num_envs)
    layout.check_size()
    inference = Inference(context, config, policy, layout)
    watch = PolicyWatch(context)
    follower = PolicyFollower(context, watch, inference, FOLLOWER_STATISTICS, attempts=config.pull_attempts)
    servicer = InferenceServicer(context, inference, idle_s=config.idle_s)
    return ServiceParts(
        loops={"watch": watch.run, "policy": follower.run, "act": inference.run},
        servicers=[servicer.registration()],
        close=inference.close_thread,
    )


SPEC = ServiceSpec(name="inference", config_type=InferenceConfig, build=build)
