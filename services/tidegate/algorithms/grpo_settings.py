"""Settings of a learner step on scored groups; read by run files, so nothing heavy is imported here."""

from typing import Annotated, Literal, get_args

import msgspec

from tidegate.core.response import Response

ObjectiveName = Literal[
    "none",
    "grpo",
    "ppo",
    "tis",
    "decoupled_ppo",
    "icepop",
    "sequence_mask",
    "cispo",
    "gspo",
    "dppo",
    "topr",
    "opsm",
    "tba",
]
OBJECTIVE_NAMES: tuple[str, ...] = get_args(ObjectiveName)
Share = Annotated[float, msgspec.Meta(ge=0.0, le=1.0)]
Ratio = Annotated[float, msgspec.Meta(ge=0.0, le=1000.0)]

# The weight cap that decoupled PPO was measured with: it only guards against single outliers.
DECOUPLED_WEIGHT_MAX = 50.0

# Objectives that ignore the age of a completion, beyond a clip around its behaviour policy.
_UNCORRECTED: frozenset[str] = frozenset({"none", "grpo", "ppo"})
_READ_PROXIMAL: frozenset[str] = frozenset({"tis", "decoupled_ppo", "icepop", "sequence_mask"})


class GrpoSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Objective and optimiser of a learner step on scored groups. Ratios are of probabilities, without a unit.

    ``objective``: one of ``algorithms.grpo.OBJECTIVES``; docs/objectives.md defines each and when to use it. Or one of
    your own: ``my_objective.py:my_loss``, a module with a name, or a name that an installed package registered
    (``tidegate.objectives``); it is given the proximal policy, as ``tis`` is.
    ``clip_low``, ``clip_high``: how far a ratio may leave 1 downwards and upwards before its gradient stops (``grpo``,
    ``ppo``, ``tis``, ``decoupled_ppo``, ``icepop``, ``sequence_mask``, ``opsm``; of completions in ``gspo``, whose
    authors use 3e-4); above 0.5 the clip rarely applies. A ``clip_high`` above ``clip_low`` lets rare tokens
    grow (DAPO).
    ``importance_cap``: largest weight of ``tis``; below 1 even fresh data is scaled down, above 5 single tokens
    dominate a step. ``proximal``: the source of π_prox for the objectives that use it: ``forward``, one more pass over
    the batch before the first gradient step, or ``interpolated`` between behaviour policy and θ by versions, without
    that pass.
    ``icepop_low``, ``icepop_high``: tokens whose π_prox/μ lies outside have no gradient; 1 must lie well inside, or
    fresh data is masked. ``sequence_low``, ``sequence_high``: the same for the geometric mean over a completion
    (``sequence_mask``), which varies far less than a token's ratio: wide bounds mask nothing; with short
    completions on old data narrow ones keep almost none, and those few are biased.
    ``cispo_low``, ``cispo_high``: smallest and largest weight of ``cispo``, absolute (papers write 1 + ε); at a
    ``cispo_high`` below 1 fresh data is scaled down, and hard caps cost reward once data is stale.
    ``dppo_delta``: change of a token's probability beyond which further change in the same direction is masked; 1
    masks nothing. ``dppo_tau``: weight of the squared log ratio (nats²), a penalty on every token.
    ``opsm_kl_max``: mean nats per token by which a completion below its group's average may have become less likely
    before it is masked; at 0 rounding decides.
    ``tba_beta``: reward worth a nat of distance from the reference policy; the target is π_ref exp(R/β). Small
    values are greedy, with gradients that grow as 1/β and need fresher data; far above the rewards' spread nothing is
    learnt.
    ``kl_weight``: weight of the KL to the reference policy, in reward per nat; 0 needs no reference. ``kl_in``: added
    to the ``loss`` (k3, differentiated by θ) or subtracted from the ``reward`` (through advantages).
    ``normalise_by_std``: divide a group's advantages by their standard deviation; else only centre them (Dr. GRPO).
    Advantages of a value head are normalised to deviation 1 over the batch.
    ``token_mean``: average over all tokens (DAPO), or with ``false`` over each completion first, which favours short
    ones. None, the default, is what the objective's paper does: over completions for ``gspo``, else over tokens.
    ``length_divisor_tokens``: above 0, divide by completions × this instead of by the number of tokens (Dr. GRPO: the
    longest possible completion), which removes the dependence on length; far from typical lengths it only rescales
    gradients before ``max_grad_norm``.
    ``drop_zero_signal``: skip groups of equal rewards, which have no gradient (DAPO's dynamic sampling). No effect
    where they have one (``learns_from_equal_rewards``).
    ``discount``, ``gae_lambda``: per chosen token, of a policy with a value head; at 1 and 1 an advantage is R − V. A
    discount below 1 lets the reward of long completions vanish for their early tokens. ``value_weight``: of the value
    loss.
    ``value_clip``: how far V may move from its value at the start of the step before its gradient stops, in
    reward; 0 for no limit. If too small for the rewards' scale V never learns.
    ``learning_rate``: reached after ``warmup_versions`` updates, then falls linearly to ``learning_rate_final_share``
    of itself at update ``anneal_versions`` and stays there; 0 keeps it. What hurts is learning rate × lag: halve it
    when the staleness budget doubles past 4. ``beta1``, ``beta2``, ``weight_decay``: AdamW's.
    ``max_grad_norm``: gradients are scaled down to it. ``minibatches``: gradient steps a version, of whole groups.

    Raises:
        ValueError: a lower bound is not below its upper one.
    """

    objective: Annotated[str, msgspec.Meta(min_length=1, max_length=256)] = "tis"
    clip_low: Annotated[float, msgspec.Meta(gt=0.0, lt=1.0)] = 0.2
    clip_high: Annotated[float, msgspec.Meta(gt=0.0, le=10.0)] = 0.2
    importance_cap: Annotated[float, msgspec.Meta(gt=0.0, le=DECOUPLED_WEIGHT_MAX)] = 2.0
    proximal: Literal["forward", "interpolated"] = "forward"
    icepop_low: Ratio = 0.5
    icepop_high: Ratio = 5.0
    sequence_low: Ratio = 0.99
    sequence_high: Ratio = 1.01
    cispo_low: Ratio = 0.0
    cispo_high: Annotated[float, msgspec.Meta(gt=0.0, le=1000.0)] = 5.0
    dppo_delta: Annotated[float, msgspec.Meta(gt=0.0, le=1.0)] = 0.2
    dppo_tau: Annotated[float, msgspec.Meta(ge=0.0, le=10.0)] = 1e-3
    opsm_kl_max: Annotated[float, msgspec.Meta(ge=0.0, le=20.0)] = 1e-4
    tba_beta: Annotated[float, msgspec.Meta(gt=0.0, le=1000.0)] = 0.3
    kl_weight: Annotated[float, msgspec.Meta(ge=0.0, le=10.0)] = 0.0
    kl_in: Literal["loss", "reward"] = "loss"
    normalise_by_std: bool = True
    token_mean: bool | None = None
    length_divisor_tokens: Annotated[int, msgspec.Meta(ge=0, le=10_000_000)] = 0
    drop_zero_signal: bool = True
    discount: Annotated[float, msgspec.Meta(gt=0.0, le=1.0)] = 1.0
    gae_lambda: Share = 1.0
    value_weight: Annotated[float, msgspec.Meta(ge=0.0, le=100.0)] = 0.5
    value_clip: Annotated[float, msgspec.Meta(ge=0.0, le=1e6)] = 0.2
    learning_rate: Annotated[float, msgspec.Meta(gt=0.0, le=1.0)] = 3e-4
    warmup_versions: Annotated[int, msgspec.Meta(ge=0, le=1_000_000)] = 10
    anneal_versions: Annotated[int, msgspec.Meta(ge=0, le=100_000_000)] = 0
    learning_rate_final_share: Share = 0.05
    beta1: Annotated[float, msgspec.Meta(ge=0.0, lt=1.0)] = 0.9
    beta2: Annotated[float, msgspec.Meta(ge=0.0, lt=1.0)] = 0.95
    weight_decay: Annotated[float, msgspec.Meta(ge=0.0, le=1.0)] = 0.0
    max_grad_norm: Annotated[float, msgspec.Meta(gt=0.0)] = 1.0
    minibatches: Annotated[int, msgspec.Meta(ge=1, le=1024)] = 4

    def __post_init__(self) -> None:
        """Reject empty intervals."""
        for name, low, high in (
            ("icepop", self.icepop_low, self.icepop_high),
            ("sequence", self.sequence_low, self.sequence_high),
            ("cispo", self.cispo_low, self.cispo_high),
        ):
            if low >= high:
                raise ValueError(
                    f"{name}_low {low} is not below {name}_high {high}: lower it, or raise the other"
                )

    @property
    def is_own(self) -> bool:
        """Whether the objective is a user's own code."""
        return self.objective not in OBJECTIVE_NAMES

    @property
    def reads_reference(self) -> bool:
        """Whether the learner must compute logprobs under a reference policy."""
        return self.kl_weight > 0.0 or self.objective == "tba"

    @property
    def reads_proximal(self) -> bool:
        """Whether the learner must run a forward pass over the batch before its first gradient step."""
        return self._corrects and self.proximal == "forward"

    @property
    def reads_version_gap(self) -> bool:
        """Whether the learner must provide each token's version gap."""
        return self._corrects and self.proximal == "interpolated"

    @property
    def _corrects(self) -> bool:
        return self.is_own or self.objective in _READ_PROXIMAL

    @property
    def reads_values(self) -> bool:
        """Whether the policy must have a value head. With one, every objective but ``tba`` uses its advantages."""
        return self.objective == "ppo"

    @property
    def averages_tokens(self) -> bool:
        """Whether the loss is a mean over all tokens, rather than over completions of their means."""
        return self.objective != "gspo" if self.token_mean is None else self.token_mean

    @property
    def learns_from_equal_rewards(self) -> bool:
        """Whether groups of equal rewards still have a gradient (apart from a KL in the loss)."""
        kl_tells_apart = self.kl_weight > 0.0 and self.kl_in == "reward"
        return self.objective in ("ppo", "tba") or kl_tells_apart

    def under(self, response: Response) -> "GrpoSettings":
        """The settings tightened by the graded response; never loosened.

        Objectives that ignore staleness become ``tis``, which corrects for it with bounded weights; ``ppo`` keeps the
        advantages of its value head, and so every group. Objectives that correct already are kept. A clip
        narrows every trust region: PPO's on ratios and ``dppo``'s on probabilities, which a ratio bounds. An
        importance cap lowers weights that are truncated (``tis``, ``cispo``) and no mask: a mask above 1 would drop
        half of the freshest tokens. ``tba`` has its KL weight in ``tba_beta``.
        """
        clip, cap = response.clip, response.importance_cap
        corrected = response.corrected and self.objective in _UNCORRECTED
        cispo_high = self.cispo_high if cap is None else min(self.cispo_high, cap)
        return msgspec.structs.replace(
            self,
            objective="tis" if corrected else self.objective,
            drop_zero_signal=self.drop_zero_signal and not (corrected and self.objective == "ppo"),
            clip_low=self.clip_low if clip is None else min(self.clip_low, clip),
            clip_high=self.clip_high if clip is None else min(self.clip_high, clip),
            dppo_delta=self.dppo_delta if clip is None else min(self.dppo_delta, clip),
            importance_cap=self.importance_cap if cap is None else min(self.importance_cap, cap),
            cispo_low=self.cispo_low if self.cispo_low < cispo_high else 0.0,
            cispo_high=cispo_high,
            kl_weight=self.kl_weight * response.kl_scale,
            tba_beta=self.tba_beta * response.kl_scale,
            learning_rate=self.learning_rate * response.learning_rate_scale,
        )
