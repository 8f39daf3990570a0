"""How the lifecycle builds weight distribution."""

from tidegate.runtime.memory import keep_freed_memory
from tidegate.runtime.service import Loop, ServiceContext, ServiceParts, ServiceSpec
from tidegate.weight_distribution.best import BestKeeper
from tidegate.weight_distribution.config import WeightDistributionConfig
from tidegate.weight_distribution.loops import Distribution
from tidegate.weight_distribution.servicer import WeightDistributionServicer

FREED_BYTES_KEPT = 64 << 20


async def build(context: ServiceContext, config: WeightDistributionConfig) -> ServiceParts:
    """Recover the versions; the loop announces the newest again if POLICY lost it."""
    # Each chunk of a stream takes the place of one that was sent.
    keep_freed_memory(FREED_BYTES_KEPT)
    distribution = Distribution(context, config)
    servicer = WeightDistributionServicer(context, config, distribution)
    best = BestKeeper(context, distribution.versions)
    loops: dict[str, Loop] = {"follow": distribution.follow, "best": best.follow}
    return ServiceParts(loops=loops, servicers=[servicer.registration()])


SPEC = ServiceSpec(name="weight_distribution", config_type=WeightDistributionConfig, build=build)
