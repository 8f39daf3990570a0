"""Settings of an actor-critic learner step; read by run files, so nothing heavy is imported here."""

from typing import Annotated, Literal

import msgspec

from tidegate.core.response import Response

ObjectiveName = Literal["vtrace", "ppo", "a2c", "none"]
Share = Annotated[float, msgspec.Meta(ge=0.0, le=1.0)]
Clip = Annotated[float, msgspec.Meta(gt=0.0, lt=1.0)]
RatioLimit = Annotated[float, msgspec.Meta(gt=0.0, le=100.0)]


class ActorCriticSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Objective and optimiser of an actor-critic learner step. Defaults are for CartPole-v1, 1,024 steps a batch.

    ``objective``: ``vtrace`` (targets, advantages and weights corrected for the data's age, then PPO's clip around the
    policy at the start of the step; with one epoch and one minibatch it is IMPALA's loss), ``ppo`` (GAE, PPO's clip
    around the behaviour policy), ``a2c`` (GAE and the plain policy gradient, one gradient step a batch; for
    ``max_lag`` 0), ``none`` (``vtrace`` with every ratio set to 1: no correction for stale data, for comparison).
    ``discount``: γ per step. ``lambda_``: share of each further step's estimate; 1 is all return and no bootstrap
    within a segment. ``clip_rho``: largest weight of a step (ρ̄); below 1 the learnt value is that of another policy.
    ``clip_c``: largest trace coefficient of a step (c̄), at most ``clip_rho``.
    ``clip``: how far π may leave the policy it is clipped around before its gradient stops; 0.2 learns no faster and
    degrades more as lag grows. ``normalise_advantages``: to mean 0 and deviation 1 over a batch.
    ``entropy_weight``: advantage per nat; too large and the policy never becomes deterministic. It changes linearly to
    ``entropy_weight_final`` at update ``entropy_anneal_updates`` and stays there; 0 updates keep it.
    ``value_weight``: of the value loss. ``value_scale``: return for which the value network outputs 1; near the typical
    return, so that errors above 1, where Huber's loss turns linear, are rare.
    ``learning_rate``: Adam's, which falls linearly to ``learning_rate_final_share`` of itself at update
    ``anneal_updates`` and stays there; 0 keeps it. What hurts under lag is learning rate × lag.
    ``value_learning_rate``: of the value network instead, with the same schedule; 0: the same rate.
    ``adam_epsilon``: added to Adam's denominator. ``max_grad_norm``: gradients are scaled down to it.
    ``epochs``: passes over a batch; ``minibatches``: gradient steps of each. Their product is the number of gradient
    steps per version; with fewer than 16 of about 256 steps each some seeds miss the target at a lag of 16 versions.
    ``target_kl``: no further epoch once the policy is this far, in nats and as the mean of an epoch, from the policy
    that it is clipped around; 0.01 to 0.03 are usual, 0 is off. The metric ``gradient_steps`` says how many were taken.

    Raises:
        ValueError: ``clip_c`` is larger than ``clip_rho``, or ``a2c`` has more than one gradient step a batch.
    """

    objective: ObjectiveName = "vtrace"
    discount: Share = 0.99
    lambda_: Share = msgspec.field(default=0.98, name="lambda")
    clip_rho: RatioLimit = 1.0
    clip_c: RatioLimit = 1.0
    clip: Clip = 0.1
    normalise_advantages: bool = True
    entropy_weight: Annotated[float, msgspec.Meta(ge=0.0, le=1.0)] = 0.005
    entropy_weight_final: Annotated[float, msgspec.Meta(ge=0.0, le=1.0)] = 0.0
    entropy_anneal_updates: Annotated[int, msgspec.Meta(ge=0, le=100_000_000)] = 0
    value_weight: Annotated[float, msgspec.Meta(ge=0.0, le=100.0)] = 0.5
    value_scale: Annotated[float, msgspec.Meta(gt=0.0)] = 10.0
    learning_rate: Annotated[float, msgspec.Meta(gt=0.0, le=1.0)] = 2e-3
    value_learning_rate: Annotated[float, msgspec.Meta(ge=0.0, le=1.0)] = 0.0
    anneal_updates: Annotated[int, msgspec.Meta(ge=0, le=100_000_000)] = 98
    learning_rate_final_share: Share = 0.05
    adam_epsilon: Annotated[float, msgspec.Meta(gt=0.0, le=1.0)] = 1e-5
    max_grad_norm: Annotated[float, msgspec.Meta(gt=0.0)] = 0.5
    epochs: Annotated[int, msgspec.Meta(ge=1, le=1024)] = 4
    minibatches: Annotated[int, msgspec.Meta(ge=1, le=1024)] = 4
    target_kl: Annotated[float, msgspec.Meta(ge=0.0, le=100.0)] = 0.0

    def __post_init__(self) -> None:
        """Reject limits for which V-trace has no fixed point, and steps of A2C that nothing would bound."""
        if self.objective == "a2c" and self.epochs * self.minibatches > 1:
            raise ValueError(
                f"objective a2c has {self.epochs} epochs of {self.minibatches} minibatches: without a clip only the"
                " first gradient step is right; set epochs and minibatches to 1, or objective to ppo"
            )
        if self.clip_c > self.clip_rho:
            raise ValueError(
                f"clip_c {self.clip_c} is above clip_rho {self.clip_rho}: lower it, or raise clip_rho"
            )

    def under(self, response: Response) -> "ActorCriticSettings":
        """The settings tightened by the graded response; never loosened."""
        clip_rho = (
            self.clip_rho if response.importance_cap is None else min(self.clip_rho, response.importance_cap)
        )
        return msgspec.structs.replace(
            self,
            objective="vtrace" if response.corrected else self.objective,
            clip=self.clip if response.clip is None else min(self.clip, response.clip),
            clip_rho=clip_rho,
            clip_c=min(self.clip_c, clip_rho),
            learning_rate=self.learning_rate * response.learning_rate_scale,
        )
