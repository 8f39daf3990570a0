"""Settings of Q-learning; read by run files, so nothing heavy is imported here."""

from typing import Annotated

import msgspec

from tidegate.core.response import Response

Share = Annotated[float, msgspec.Meta(ge=0.0, le=1.0)]


class QSequenceSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Q-learning on sequences (``learner.algorithm`` ``r2d2``).

    ``burn_in``: first steps of a sequence that only bring its stored state up to date and are not trained; 0 from an
    episode's start, where the state is no version's. Shorter than ``trajectory_store.replay.sequence_length``, or
    nothing would be trained; steps between two starts that are in no sequence's trained part are never trained.
    ``n_steps``: of a target; fewer at an end, and at the end of the sequence.
    ``priority_max_share``: a sequence's priority is this share of its largest TD error and the rest of their mean.
    """

    burn_in: Annotated[int, msgspec.Meta(ge=0, le=4096)] = 0
    n_steps: Annotated[int, msgspec.Meta(ge=1, le=1024)] = 5
    priority_max_share: Share = 0.9


class QLearningSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Objective and optimiser of a Q-learning step: double, dueling DQN on transitions (Ape-X) or sequences (R2D2).

    How many steps, how units are drawn and how often is ``trajectory_store.replay``'s.
    ``discount``: γ per step. ``value_rescaling``: learn h(Q) instead of Q, which compresses large returns; for rewards
    of unknown or very different size, beside or instead of ``workload.reward``.
    ``importance_exponent``: β, how far a drawn unit's loss is weighted down for being drawn more often than others: 1
    removes the bias of prioritised sampling, 0 keeps it. No effect on uniform sampling.
    ``huber_width``: size of an error, in the network's scale, above which the loss is linear.
    ``learning_rate``: Adam's. ``adam_epsilon``: added to its denominator. ``max_grad_norm``: gradients are scaled down
    to it.
    ``target_period``: updates between two copies of the network into the target network. Too short and values chase
    themselves, too long and rewards travel slowly.
    An update is one gradient step; ``learner.updates_per_version`` says how many a batch is divided among.
    """

    discount: Share = 0.99
    value_rescaling: bool = False
    importance_exponent: Share = 0.4
    huber_width: Annotated[float, msgspec.Meta(gt=0.0, le=1e6)] = 1.0
    learning_rate: Annotated[float, msgspec.Meta(gt=0.0, le=1.0)] = 1e-3
    adam_epsilon: Annotated[float, msgspec.Meta(gt=0.0, le=1.0)] = 1e-5
    max_grad_norm: Annotated[float, msgspec.Meta(gt=0.0)] = 10.0
    target_period: Annotated[int, msgspec.Meta(ge=1, le=1_000_000)] = 200
    sequences: QSequenceSettings = QSequenceSettings()

    def under(self, response: Response) -> "QLearningSettings":
        """The settings under the graded response: its learning rate; its clips are of policy gradients."""
        return msgspec.structs.replace(self, learning_rate=self.learning_rate * response.learning_rate_scale)


class QActingSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How actors of a Q-network explore, and what the first priority of a unit is.

    Each environment copy takes a random action with a probability of its own, ε^(1 + α u): ``epsilon`` is ε,
    ``epsilon_exponent`` α, and u is spread evenly over 0 to 1, copy by copy, from the task's seed. So some copies of
    every actor explore and some are nearly greedy, however many actors there are.
    ``n_steps``, ``discount`` and ``value_rescaling`` are those of the TD error that is sent as first priority; they
    equal the store's and the learner's, or first priorities would mean something else than later ones.

    ``sequence_period`` (``policy.memory``): steps between two stored states, from which sequences of replay begin; 0
    stores one a segment. ``sequence_length``: steps of a sequence. ``burn_in``: of its first steps, those that are not
    trained and do not count in its first priority. ``priority_max_share``: of its largest TD error in that priority;
    the rest is their mean's. ``sequence_period`` and ``sequence_length`` equal the store's, the others those of
    ``learner.q_learning.sequences``, as ``n_steps`` does then.

    Source: Horgan 2018, section 4.1; Kapturowski 2019, section 2.3.
    """

    epsilon: Annotated[float, msgspec.Meta(gt=0.0, le=1.0)] = 0.4
    epsilon_exponent: Annotated[float, msgspec.Meta(ge=0.0, le=100.0)] = 7.0
    n_steps: Annotated[int, msgspec.Meta(ge=1, le=1024)] = 1
    discount: Share = 0.99
    value_rescaling: bool = False
    sequence_period: Annotated[int, msgspec.Meta(ge=0, le=4096)] = 0
    sequence_length: Annotated[int, msgspec.Meta(ge=1, le=4096)] = 80
    burn_in: Annotated[int, msgspec.Meta(ge=0, le=4096)] = 0
    priority_max_share: Share = 0.9
