"""The section ``learner`` of a run file."""

from typing import Annotated, Literal

import msgspec

from tidegate.algorithms.actor_critic_settings import ActorCriticSettings
from tidegate.algorithms.grpo_settings import GrpoSettings
from tidegate.algorithms.q_learning_settings import QLearningSettings
from tidegate.algorithms.sac_settings import SacSettings
from tidegate.learner.algorithm import AlgorithmName
from tidegate.learner.warmup_settings import WarmupSettings


class LearnerConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Training, checkpoints and ranks of the learner.

    ``algorithm``: ``auto`` takes the first that trains the policy: ``actor_critic`` for networks of segments,
    ``language_model``. ``applied_gradients`` (A3C) applies gradients that actors computed with ``actor.engine``
    ``gradient_env``. ``q_learning`` (Ape-X) trains Q-networks on transitions of ``trajectory_store.replay``,
    ``r2d2`` those with ``policy.memory`` on sequences, with the settings of ``q_learning``, ``sac`` (soft actor-critic)
    policies of continuous actions.
    ``actor_critic`` belongs to policies of kind ``mlp`` and ``cnn``, ``q_learning`` to ``q_mlp`` and ``q_cnn``, ``sac``
    to ``squashed_mlp`` and ``squashed_cnn``, ``language_model`` and ``warmup`` to language models.
    ``updates_per_version``: updates of equal shares of each batch, of which only the last is committed and published.
    More of them cost fewer messages, versions and pulls for the same updates; lag counts versions, and an update within
    one is that many updates more behind its data. ``batch_size`` stays the samples of a version and must be a multiple.
    Schedules count updates.
    ``pass_tokens`` (language models): tokens, padding included, whose activations are in memory at once; a larger
    minibatch is computed in several passes for the same gradient and a third more work. About 2.4 MB a token with 135
    million parameters in float32.
    ``cache_dir``: cache of warmed-up policies across runs, relative to the working folder; empty disables it.
    ``device``: ``auto`` is CUDA where torch can use it, and in pods to which the chart gives a GPU it is ``cuda``,
    which ends a learner that finds none. The log event ``device_chosen`` states the device and why. ``threads``:
    threads of one torch operation; more than the free cores makes everything slower.
    ``ranks``: processes that train together, each on its share of every batch; `tidegate up` starts that many on this
    machine, connected over loopback, and the chart pods with a rank for each GPU. More ranks than groups in a
    minibatch (text) leave some idle. ``rank_timeout_s``: how long ranks wait for one that hangs before they restart
    from the newest checkpoint (a lost process is detected immediately where its connection closes); must exceed the
    longest gradient step, because every rank waits for the slowest. Above half of it the log event
    ``rank_timeout_short`` names the value to set.
    ``checkpoint_every_steps``: the most steps that a restart computes again, of the payloads that the trajectory store
    keeps for it. Between two, checkpoints are written as often as 1 % of the time allows, each of which the next
    replaces. The first one is written before the first update.
    ``keep_checkpoints``: how many are kept; with 1 a corrupt checkpoint ends the run. `tidegate rollback` goes back to
    these alone.
    ``prefetch``: lease the next batch while one is trained (never at ``max_lag`` 0, where it does not exist yet).
    ``lease_wait_s``: timeout of one poll for a batch, which draining may have to wait for. ``republish_after_s``:
    seconds without a batch after which the learner checks that its newest version is still published.
    ``token_gaps`` (language models): completions of each update's first gradient step, those that are furthest off, of
    which ``token_gaps.jsonl`` has how far the learner's log-probability of each token is from the one it was sampled
    with; 0: none.
    ``steps_file_bytes_max``: size at which ``steps.jsonl`` is rotated; one older file is kept.
    """

    algorithm: AlgorithmName | Literal["auto"] = "auto"
    actor_critic: ActorCriticSettings = ActorCriticSettings()
    language_model: GrpoSettings = GrpoSettings()
    q_learning: QLearningSettings = QLearningSettings()
    sac: SacSettings = SacSettings()
    warmup: WarmupSettings = WarmupSettings()
    updates_per_version: Annotated[int, msgspec.Meta(ge=1, le=1024)] = 1
    pass_tokens: Annotated[int, msgspec.Meta(ge=1, le=1 << 30)] = 4096
    cache_dir: str = ".tidegate/cache"
    device: Literal["auto", "cpu", "cuda"] = "auto"
    threads: Annotated[int, msgspec.Meta(ge=1, le=256)] = 1
    precision: Literal["float32", "bfloat16"] = "float32"
    ranks: Annotated[int, msgspec.Meta(ge=1, le=64)] = 1
    rank_timeout_s: Annotated[float, msgspec.Meta(ge=1.0, le=3600.0)] = 600.0
    checkpoint_every_steps: Annotated[int, msgspec.Meta(ge=1, le=1_000_000)] = 20
    keep_checkpoints: Annotated[int, msgspec.Meta(ge=1, le=100)] = 2
    prefetch: bool = True
    lease_wait_s: Annotated[float, msgspec.Meta(ge=0.05, le=30.0)] = 1.0
    republish_after_s: Annotated[float, msgspec.Meta(ge=0.1, le=600.0)] = 5.0
    token_gaps: Annotated[int, msgspec.Meta(ge=0, le=1024)] = 4
    steps_file_bytes_max: Annotated[int, msgspec.Meta(ge=1 << 16, le=1 << 40)] = 64 << 20
