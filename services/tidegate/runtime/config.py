"""Config sections that more than one service reads, and the settings every service process gets.

A service's own section lives in its room; ``cli.run_file`` puts all of them together into the one run file.
"""

from typing import Annotated, Literal

import msgspec

from tidegate.core.goodput import GoodputConfig
from tidegate.core.hard_sync import HardSyncConfig
from tidegate.core.ids import RunId
from tidegate.core.records import Sampler
from tidegate.core.response import STANDARD_TIERS, Tier, out_of_order

Positive = Annotated[int, msgspec.Meta(ge=1)]
PositiveSeconds = Annotated[float, msgspec.Meta(gt=0.0)]
Share = Annotated[float, msgspec.Meta(ge=0.0, le=1.0)]


class StalenessConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The staleness budget, the promise of the platform.

    ``max_lag``: policy versions between a trajectory's oldest version and the update it takes part in; 0 is
    synchronous training, larger values buy overlap of rollouts and training. ``max_age_s``: seconds since the rollout
    started; below the time of one rollout nothing would ever be trained.
    """

    max_lag: Annotated[int, msgspec.Meta(ge=0, le=1024)] = 4
    max_age_s: PositiveSeconds = 300.0


class ResponseConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the platform does about lag inside of the budget; by default nothing.

    ``graded``: whether ``tiers`` hold: what a learner step does from which lag on. ``hard_sync``: the periodic moment
    at which nothing stale is under way. ``goodput``: a controller that moves the budget inside [0, ``max_lag``].

    Raises:
        ValueError: the tiers are not in the order of their lag.
    """

    graded: bool = False
    tiers: tuple[Tier, ...] = STANDARD_TIERS
    hard_sync: HardSyncConfig = HardSyncConfig()
    goodput: GoodputConfig = GoodputConfig()

    def __post_init__(self) -> None:
        """Refuse a table of which a line could never hold."""
        wrong = out_of_order(self.tiers)
        if wrong is not None:
            raise ValueError(f"tiers must be in order of from_lag: {wrong} is not above the one before it")

    def tiers_in_force(self) -> tuple[Tier, ...]:
        """The table, empty while it is switched off."""
        return self.tiers if self.graded else ()


class WorkloadConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What is rolled out.

    ``segments``: vectorised environments in the actor; ``num_envs`` environments are stepped ``unroll_length`` times a
    segment, and one segment is one trajectory. ``text``: prompts of a dataset; each task asks for ``num_samples``
    completions (the group of one prompt), drawn as ``sampler`` says and scored by the environment ``env``.
    """

    kind: Literal["segments", "text"]
    env: str
    num_envs: Annotated[int, msgspec.Meta(ge=1, le=4096)] = 16
    unroll_length: Annotated[int, msgspec.Meta(ge=1, le=4096)] = 32
    num_samples: Annotated[int, msgspec.Meta(ge=1, le=1024)] = 1
    sampler: Sampler = Sampler()


class PolicyConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The network. ``hidden`` (units a layer) belongs to ``mlp_actor_critic``, the rest to ``char_lm``."""

    kind: Literal["mlp_actor_critic", "char_lm"]
    hidden: tuple[Positive, ...] = (64, 64)
    d_model: Positive = 64
    num_layers: Positive = 2
    num_heads: Positive = 4
    context_length: Positive = 32


class TelemetryConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Traces and metrics. Without ``otlp_endpoint`` nothing is exported and nothing is slow.

    ``otlp_endpoint``: host:port of an OTLP/gRPC receiver. ``sample_ratio``: share of trajectories whose trace is
    recorded from its first span; dropped ones are always traced. ``stats_period_s``: seconds between statistics.
    """

    otlp_endpoint: str = ""
    sample_ratio: Share = 0.02
    stats_period_s: Annotated[float, msgspec.Meta(ge=0.05, le=10.0)] = 0.5
    metric_period_s: Annotated[float, msgspec.Meta(ge=0.1, le=300.0)] = 10.0


class Settings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What every service process knows about the run, besides its own section.

    ``batch_size``: trajectories a learner step, whole groups. ``max_running``: trajectories between admission and the
    store (C). ``addresses``: host:port of each instance by service name. ``data_dir``: the run folder.
    """

    run: RunId
    seed: int
    staleness: StalenessConfig
    workload: WorkloadConfig
    policy: PolicyConfig
    batch_size: Positive
    max_running: Positive
    telemetry: TelemetryConfig
    drain_timeout_s: PositiveSeconds
    broker_url: str
    broker_token: str
    addresses: dict[str, list[str]]
    data_dir: str
    response: ResponseConfig = ResponseConfig()
