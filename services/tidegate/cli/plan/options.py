"""Options of ``tidegate plan``, a group for each panel of its help; None: not given."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import typer

from tidegate.cli.option_groups import panel
from tidegate.core.distributions import FORMS_WITH_FILES
from tidegate.core.planner.rollout import LAG_WALL, PENALTY_PER_VERSION
from tidegate.core.sizing.plan import KEEP_VERSIONS, MFU

_Balance = panel("Balance")
_Rollouts = panel("Rollouts")
_Model = panel("A language model on GPUs, instead of rates")
_Prices = panel("Prices (dollars per hour)")


@dataclass(frozen=True, slots=True, kw_only=True)
class BalanceOptions:
    """The size and the rates of the loop."""

    actors: Annotated[int | None, _Balance(help="Actors.")] = None
    actor_rate: Annotated[float | None, _Balance(help="Samples/s of one actor.")] = None
    learner_rate: Annotated[float | None, _Balance(help="Samples/s of one learner replica.")] = None
    update_rate: Annotated[
        float | None, _Balance(help="Updates/s of one replica, instead of its samples/s.")
    ] = None
    batch: Annotated[int | None, _Balance(help="Samples per update.")] = None
    replicas: Annotated[int, _Balance(help="Learner replicas.")] = 1
    speedup: Annotated[
        str | None,
        _Balance(
            help="Measured speedups, as 1:1,2:1.9,4:3.5 (default: G·(1 − 0.04·(G − 1)) for G replicas)."
        ),
    ] = None
    environments: Annotated[
        int | None, _Balance(help="Environment workers; 0: actors compute the rewards.")
    ] = None
    environment_rate: Annotated[float | None, _Balance(help="Samples/s of one environment worker.")] = None
    store_rate: Annotated[
        float, _Balance(help="Samples/s of the trajectory store; 0: never the bottleneck.")
    ] = 0.0
    max_lag: Annotated[int | None, _Balance(help="Staleness budget, versions.")] = None
    after: Annotated[float, _Balance(help="Predict queue and lag after this many seconds.", min=0.0)] = 60.0
    target_rate: Annotated[float, _Balance(help="Samples/s that the cheapest size must reach.", min=0.0)] = (
        0.0
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutOptions:
    """The parts of a step: without --rollout and --from-run only the balance is predicted."""

    rollout: Annotated[str | None, _Rollouts(help=f"Rollout time: {FORMS_WITH_FILES}.")] = None
    slots: Annotated[int | None, _Rollouts(help="Concurrent rollouts of one actor.", min=1)] = None
    group: Annotated[
        int | None,
        _Rollouts(help="Rollouts per step; a synchronous step waits for all (default: the batch)."),
    ] = None
    train: Annotated[float | None, _Rollouts(help="Seconds per update of one replica.", min=0.0)] = None
    weight_sync: Annotated[
        float | None, _Rollouts(help="Seconds until actors serve a new version.", min=0.0)
    ] = None
    reward_tail: Annotated[str | None, _Rollouts(help="Reward time, in the forms of --rollout.")] = None
    lag_wall: Annotated[float, _Rollouts(help="Lag above which data is worth less.", min=0.0)] = LAG_WALL
    freshness_penalty: Annotated[
        float, _Rollouts(help="Relative cost of each version above --lag-wall.", min=0.0)
    ] = PENALTY_PER_VERSION


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelOptions:
    """A model, whose memory, rates, versions and split are planned."""

    model: Annotated[str, _Model(help="Folder of a model, or a size of Qwen2.5: 0.5b to 72b.")] = ""
    gpus: Annotated[str, _Model(help="Number and kind, as 8xH100-80.")] = ""
    length: Annotated[str, _Model(help="Tokens of the longest text, prompt included: 16k or 4096.")] = "4k"
    lora: Annotated[int, _Model(help="Rank of adapters; 0: all weights.", min=0, max=1024)] = 0
    dtype: Annotated[Literal["float32", "bfloat16"], _Model(help="policy.dtype.")] = "bfloat16"
    pass_tokens: Annotated[int, _Model(help="learner.pass_tokens.", min=1)] = 4096
    reference: Annotated[bool, _Model("--reference", help="The objective reads a reference policy.")] = False
    mfu: Annotated[float, _Model(help="Share of a GPU's peak that the layers reach, in (0, 1].")] = MFU
    learner_gpus: Annotated[int, _Model(help="GPUs that train; 0: propose a split.", min=0)] = 0
    keep_versions: Annotated[int, _Model(help="weight_distribution.keep_versions.", min=2)] = KEEP_VERSIONS
    gpu_price: Annotated[float, _Model(help="Dollars per hour of one GPU.", min=0.0)] = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PriceOptions:
    """Dollars per hour; without them those of the run file, or examples."""

    actor_price: Annotated[float | None, _Prices(help="One actor.")] = None
    environment_price: Annotated[float | None, _Prices(help="One environment worker.")] = None
    learner_price: Annotated[float | None, _Prices(help="One learner replica.")] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceOptions:
    """Where measurements come from and where the answer goes."""

    from_run: Annotated[
        Path | None, typer.Option(help="Take values that are not given from this run folder's measurements.")
    ] = None
    html: Annotated[
        Path | None, typer.Option(help="Also write an interactive HTML page; needs no network.")
    ] = None
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False
