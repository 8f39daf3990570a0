"""What a learner step on scored groups is set to; read by run files, so nothing heavy is imported here."""

from typing import Annotated, Literal

import msgspec

from tidegate.core.response import Response

ObjectiveName = Literal["grpo", "tis", "decoupled_ppo", "gspo", "none"]
Share = Annotated[float, msgspec.Meta(ge=0.0, le=1.0)]

# The weight cap that decoupled PPO was measured with: it only guards against a single absurd token.
DECOUPLED_WEIGHT_MAX = 50.0


class GrpoSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How a learner step turns scored groups into updates.

    ``objective``: ``tis`` (PPO clip around the policy at the start of the step, times a truncated importance weight),
    ``decoupled_ppo`` (the same, untruncated), ``grpo`` (PPO clip around the behaviour policy), ``gspo`` (the same on
    whole sequences), ``none`` (no correction; collapses once data is stale, for comparison).
    ``clip_low``, ``clip_high``: how far a ratio may leave 1 downwards and upwards before its gradient stops; above
    0.5 the clip hardly acts. ``importance_cap``: largest weight of ``tis``; below 1 even fresh data is scaled down,
    above 5 single tokens rule a step.
    ``kl_weight``: weight of the KL to the reference policy; 0 needs no reference.
    ``normalise_by_std``: divide a group's advantages by their spread; else only centre them (Dr. GRPO).
    ``token_mean``: average over all tokens (DAPO); else over each completion first, which favours short ones.
    ``drop_zero_signal``: leave out groups whose rewards are all the same: they have no gradient.
    ``learning_rate``: reached after ``warmup_versions`` updates, then falls linearly to ``learning_rate_final_share``
    of itself at update ``anneal_versions`` and stays there; 0 keeps it. What hurts is learning rate × lag: halve it
    when the staleness budget doubles past 4. ``beta1``, ``beta2``, ``weight_decay``: AdamW's.
    ``max_grad_norm``: gradients are scaled down to it. ``minibatches``: gradient steps a version, of whole groups.
    """

    objective: ObjectiveName = "tis"
    clip_low: Annotated[float, msgspec.Meta(gt=0.0, lt=1.0)] = 0.2
    clip_high: Annotated[float, msgspec.Meta(gt=0.0, le=10.0)] = 0.2
    importance_cap: Annotated[float, msgspec.Meta(gt=0.0, le=DECOUPLED_WEIGHT_MAX)] = 2.0
    kl_weight: Annotated[float, msgspec.Meta(ge=0.0, le=10.0)] = 0.0
    normalise_by_std: bool = True
    token_mean: bool = True
    drop_zero_signal: bool = True
    learning_rate: Annotated[float, msgspec.Meta(gt=0.0, le=1.0)] = 3e-4
    warmup_versions: Annotated[int, msgspec.Meta(ge=0, le=1_000_000)] = 10
    anneal_versions: Annotated[int, msgspec.Meta(ge=0, le=100_000_000)] = 0
    learning_rate_final_share: Share = 0.05
    beta1: Annotated[float, msgspec.Meta(ge=0.0, lt=1.0)] = 0.9
    beta2: Annotated[float, msgspec.Meta(ge=0.0, lt=1.0)] = 0.95
    weight_decay: Annotated[float, msgspec.Meta(ge=0.0, le=1.0)] = 0.0
    max_grad_norm: Annotated[float, msgspec.Meta(gt=0.0)] = 1.0
    minibatches: Annotated[int, msgspec.Meta(ge=1, le=1024)] = 4

    def under(self, response: Response) -> "GrpoSettings":
        """The same, tightened as the graded response asks; never loosened.

        ``tis`` is what corrects for staleness with bounded weights; objectives that already correct stay what they are.
        """
        uncorrected = self.objective in ("grpo", "none")
        cap = response.importance_cap
        return msgspec.structs.replace(
            self,
            objective="tis" if response.corrected and uncorrected else self.objective,
            clip_low=self.clip_low if response.clip is None else min(self.clip_low, response.clip),
            clip_high=self.clip_high if response.clip is None else min(self.clip_high, response.clip),
            importance_cap=self.importance_cap if cap is None else min(self.importance_cap, cap),
            kl_weight=self.kl_weight * response.kl_scale,
            learning_rate=self.learning_rate * response.learning_rate_scale,
        )
