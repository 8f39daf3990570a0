"""How the lifecycle builds weight distribution."""

from functools import partial
from pathlib import Path

from tidegate.runtime.memory import keep_freed_memory
from tidegate.runtime.service import Loop, ServiceContext, ServiceParts, ServiceSpec
from tidegate.runtime.snapshots.servicer import SnapshotServicer
from tidegate.weight_distribution.best import BestKeeper
from tidegate.weight_distribution.config import WeightDistributionConfig
from tidegate.weight_distribution.loops import Distribution
from tidegate.weight_distribution.servicer import WeightDistributionServicer
from tidegate.weight_distribution.snapshot import best_moment

FREED_BYTES_KEPT = 64 << 20


async def build(context: ServiceContext, config: WeightDistributionConfig) -> ServiceParts:
    """Recover the versions; the loop announces the newest again if POLICY lost it."""
    # Each chunk of a stream takes the place of one that was sent.
    keep_freed_memory(FREED_BYTES_KEPT)
    distribution = Distribution(context, config)
    servicer = WeightDistributionServicer(context, config, distribution)
    best = BestKeeper(context, distribution.versions)
    loops: dict[str, Loop] = {"follow": distribution.follow, "best": best.follow}
    snapshots = SnapshotServicer(
        partial(best_moment, folder=context.data_dir),
        folder=Path(context.settings.data_dir),
        staging_in=context.data_dir,
    )
    return ServiceParts(loops=loops, servicers=[servicer.registration(), snapshots.registration()])


SPEC = ServiceSpec(name="weight_distribution", config_type=WeightDistributionConfig, build=build)
