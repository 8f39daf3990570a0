"""Builds the inference service."""

from tidegate.core.spaces import EnvironmentDescription
from tidegate.inference.config import InferenceConfig
from tidegate.inference.loops import FOLLOWER_STATISTICS, Inference
from tidegate.inference.servicer import InferenceServicer
from tidegate.models.policies import build_policy
from tidegate.models.policy_port import SegmentPolicy, StepPolicy
from tidegate.runtime.config import Settings
from tidegate.runtime.described_environment import ask_description
from tidegate.runtime.own_policy import load_policy_code
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
    return assemble(context, config, policy_of(context.settings, description))


def policy_of(settings: Settings, description: EnvironmentDescription) -> SegmentPolicy:
    """The run's network for its environment.

    Raises:
        ConfigError: it does not fit the environment, or the user's own layers cannot be loaded.
    """
    code = load_policy_code(settings.policy, folder=settings.files_dir)
    return build_policy(description, settings.policy, code=code)


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
