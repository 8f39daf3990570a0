"""Settings of soft actor-critic; read by run files, so nothing heavy is imported here."""

from typing import Annotated

import msgspec

from tidegate.core.response import Response

Rate = Annotated[float, msgspec.Meta(gt=0.0, le=1.0)]


class SacSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Soft actor-critic (Haarnoja 2018) on sampled transitions, for policies ``squashed_mlp`` and ``squashed_cnn``.

    It also trains layers of your own with ``policy.squash_actions``.
    An update is one gradient step of critics, policy and temperature, on ``batch_size / updates_per_version``
    transitions; 256 are usual.
    ``discount``: γ per step. Transitions of several steps (``n_steps``) leave out the entropy of the steps between.
    ``policy_learning_rate``, ``critic_learning_rate``: Adam's. ``temperature_learning_rate``: of the temperature's
    logarithm, by which the policy's entropy is held at ``target_entropy``; 0 keeps ``initial_temperature``.
    ``initial_temperature``: reward per nat of entropy; without a rate it decides how random the policy stays.
    ``target_entropy``: nats of the density of actions between -1 and 1, where a uniform component has 0.69 and larger
    ones are impossible; null: minus one for each component. Too large and the policy never becomes precise.
    ``target_rate``: share by which the target critics follow the critics after each gradient step; near 1 they diverge,
    far below 0.005 learning is slow. ``critic_hidden``: units of each layer of either critic; empty: ``policy.hidden``.
    On images the critics' loss trains the convolutions, which the policy reads without changing them.
    ``importance_exponent``: how far a transition counts less for being drawn more often than others
    (``replay.selector``): 1 removes the bias of drawing them so, 0 keeps it. No effect on uniform sampling.
    ``adam_epsilon``: added to Adam's denominator. ``max_grad_norm``: gradients are scaled down to it; 0: never.
    """

    discount: Annotated[float, msgspec.Meta(ge=0.0, lt=1.0)] = 0.99
    policy_learning_rate: Rate = 3e-4
    critic_learning_rate: Rate = 1e-3
    temperature_learning_rate: Annotated[float, msgspec.Meta(ge=0.0, le=1.0)] = 1e-3
    initial_temperature: Annotated[float, msgspec.Meta(gt=0.0, le=1e6)] = 1.0
    target_entropy: Annotated[float, msgspec.Meta(ge=-1e4, le=1e4)] | None = None
    target_rate: Rate = 0.005
    critic_hidden: tuple[Annotated[int, msgspec.Meta(ge=1, le=65536)], ...] = ()
    importance_exponent: Annotated[float, msgspec.Meta(ge=0.0, le=1.0)] = 0.4
    adam_epsilon: Rate = 1e-8
    max_grad_norm: Annotated[float, msgspec.Meta(ge=0.0)] = 0.0

    def under(self, response: Response) -> "SacSettings":
        """The settings tightened by the graded response: lower rates; its clips belong to other objectives."""
        scale = response.learning_rate_scale
        return msgspec.structs.replace(
            self,
            policy_learning_rate=self.policy_learning_rate * scale,
            critic_learning_rate=self.critic_learning_rate * scale,
            temperature_learning_rate=self.temperature_learning_rate * scale,
        )
