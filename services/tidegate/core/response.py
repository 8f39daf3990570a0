"""The graded response: a table from lag to the settings of a learner step.

A small lag needs a narrower clip; a larger one truncated importance weights, smaller steps and less weight on the
oldest; beyond that, the strongest correction or a drain of the pipeline. The table defines from which lag each setting
applies; the staleness budget stays the hard bound.
"""

import itertools
from collections.abc import Sequence
from typing import Annotated

import msgspec

Clip = Annotated[float, msgspec.Meta(gt=0.0, lt=1.0)]
Share = Annotated[float, msgspec.Meta(gt=0.0, le=1.0)]


class Tier(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Settings of a learner step from a lag on; each figure only tightens the objective's own setting.

    ``from_lag``: versions; the tier holds for a batch whose farthest trajectory is this far behind. ``clip``: the
    widest PPO clip. ``importance_cap``: the largest importance weight. ``learning_rate_scale``: factor of the learning
    rate; the cost of lag grows with learning rate times lag. ``kl_scale``: factor of the KL weight, if there is one.
    ``recency_decay``: a trajectory counts by this to the power of its lag, so the freshest of a batch lead it; 1 lets
    all count the same. ``corrected``: an objective that ignores staleness is replaced by the one that corrects for it.
    ``drain``: admission lets the pipeline run empty and every actor catch up before it admits again.
    """

    from_lag: Annotated[int, msgspec.Meta(ge=1, le=1024)]
    clip: Clip | None = None
    importance_cap: Annotated[float, msgspec.Meta(gt=0.0, le=100.0)] | None = None
    learning_rate_scale: Share = 1.0
    kl_scale: Annotated[float, msgspec.Meta(ge=1.0, le=100.0)] = 1.0
    recency_decay: Share = 1.0
    corrected: bool = False
    drain: bool = False


# Below 2 versions nothing is done. The steps are those at which corrections begin to matter in published recipes and
# in ours: 2-5 a narrower clip, 6-20 truncated weights and recency, beyond it the strongest correction and a drain.
STANDARD_TIERS: tuple[Tier, ...] = (
    Tier(from_lag=2, clip=0.1),
    Tier(
        from_lag=6,
        clip=0.1,
        importance_cap=1.0,
        learning_rate_scale=0.5,
        kl_scale=2.0,
        recency_decay=0.95,
        corrected=True,
    ),
    Tier(
        from_lag=21,
        clip=0.1,
        importance_cap=1.0,
        learning_rate_scale=0.25,
        kl_scale=4.0,
        recency_decay=0.9,
        corrected=True,
        drain=True,
    ),
)


class Response(msgspec.Struct, frozen=True):
    """Settings of one learner step for the lag of its batch; the defaults are those of fresh data.

    ``tier``: the ``from_lag`` of the tier that holds, 0 for none. ``weights``: of the batch's trajectories in their
    order, mean 1; empty when all count the same. The rest as in ``Tier``.
    """

    tier: int = 0
    clip: float | None = None
    importance_cap: float | None = None
    learning_rate_scale: float = 1.0
    kl_scale: float = 1.0
    weights: tuple[float, ...] = ()
    corrected: bool = False
    drain: bool = False

    def figures(self) -> dict[str, float]:
        """The applied settings, as numbers for a step's record; empty while no tier holds."""
        if not self.tier:
            return {}
        figures = {
            "tier": float(self.tier),
            "learning_rate_scale": self.learning_rate_scale,
            "kl_scale": self.kl_scale,
            "corrected": float(self.corrected),
            "weight_min": min(self.weights, default=1.0),
        }
        if self.clip is not None:
            figures["clip"] = self.clip
        if self.importance_cap is not None:
            figures["importance_cap"] = self.importance_cap
        return figures


FRESH = Response()


def tier_at(tiers: Sequence[Tier], lag: int) -> Tier | None:
    """The tier that holds at a lag: the last one that starts at or below it. ``tiers`` are in order."""
    held = [tier for tier in tiers if tier.from_lag <= lag]
    return held[-1] if held else None


def respond(tiers: Sequence[Tier], lags: Sequence[int]) -> Response:
    """The settings for a batch with these lags, in versions and in batch order.

    The farthest one decides the tier: a batch is as stale as the worst it contains. The weights are
    ``recency_decay ** lag`` (algorithms.md, replay) divided by their mean, so that they shift trust between
    trajectories and leave the size of a step to the learning rate.
    """
    tier = tier_at(tiers, max(lags, default=0))
    if tier is None:
        return FRESH
    return Response(
        tier=tier.from_lag,
        clip=tier.clip,
        importance_cap=tier.importance_cap,
        learning_rate_scale=tier.learning_rate_scale,
        kl_scale=tier.kl_scale,
        weights=_recency_weights(lags, tier.recency_decay),
        corrected=tier.corrected,
        drain=tier.drain,
    )


def _recency_weights(lags: Sequence[int], decay: float) -> tuple[float, ...]:
    freshest = min(lags)
    if decay == 1.0 or freshest == max(lags):
        return ()
    # Counted from the freshest: at a lag of a thousand a power of the lag itself would be nothing at all.
    raw = [decay ** (lag - freshest) for lag in lags]
    mean = sum(raw) / len(raw)
    return tuple(weight / mean for weight in raw)


def out_of_order(tiers: Sequence[Tier]) -> int | None:
    """The first ``from_lag`` that does not lie above the one before it; None if the table is in order."""
    return next(
        (after.from_lag for before, after in itertools.pairwise(tiers) if after.from_lag <= before.from_lag),
        None,
    )
