import msgspec
import numpy as np
import pytest
import torch

from tests.unit.learner.trajectories import group, version
from tidegate.algorithms.grpo import GrpoSettings
from tidegate.core.errors import RecordError, StaleFolderError
from tidegate.core.records import Trajectory
from tidegate.core.response import Response
from tidegate.learner.optim.language_model import LanguageModelTrainer
from tidegate.models.char_lm import CharLmSpec
from tidegate.models.completion_batch import completion_logprobs

CPU = torch.device("cpu")
SPEC = CharLmSpec(d_model=16, num_layers=1, num_heads=2, context_length=12)


def trainer(settings: GrpoSettings | None = None, *, seed: int = 0) -> LanguageModelTrainer:
    return LanguageModelTrainer(
        SPEC,
        settings or GrpoSettings(minibatches=2, warmup_versions=0, learning_rate=1e-2),
        seed=seed,
        device=CPU,
    )


def batch(number: int = 0) -> list[Trajectory]:
    return [
        *group(f"a{number}", "1+2=", [("3", 1.0), ("12", 0.0), ("4", 0.0)], at=version(0)),
        *group(f"b{number}", "2+2=", [("4", 1.0), ("22", 0.0), ("5", 1.0)], at=version(0)),
    ]


def logprob_of_each(made: LanguageModelTrainer, trajectories: list[Trajectory]) -> list[float]:
    prepared = made.prepare(trajectories)
    with torch.no_grad():
        logprobs = completion_logprobs(made.model, prepared.completions)
    return [float(value) for value in logprobs.sum(dim=1)]


def test_rewarded_completions_become_likelier_against_the_others_of_their_group() -> None:
    made = trainer(GrpoSettings(minibatches=1, warmup_versions=0, learning_rate=1e-3))
    before = np.array(logprob_of_each(made, batch()))
    metrics = [made.update(made.prepare(batch()), number=number) for number in range(1, 6)]
    gains = np.array(logprob_of_each(made, batch())) - before
    rewards = np.array([trajectory.reward for trajectory in batch()])
    for members in (slice(0, 3), slice(3, 6)):
        rewarded = rewards[members] == 1.0
        assert gains[members][rewarded].mean() > gains[members][~rewarded].mean()
    assert metrics[-1].keys() >= {"loss", "ess", "clipped_fraction", "reward_mean", "zero_signal_fraction"}


def test_batch_without_any_signal_changes_nothing_and_still_counts() -> None:
    made = trainer()
    before = made.policy()
    flat = group("a", "1+2=", [("3", 1.0), ("12", 1.0)], at=version(0))
    metrics = made.update(made.prepare(flat), number=1)
    assert metrics["zero_signal_fraction"] == 1.0
    for name, array in made.policy().items():
        np.testing.assert_array_equal(array, before[name])


def test_restored_trainer_goes_on_exactly_as_if_it_had_never_stopped() -> None:
    settings = GrpoSettings(minibatches=2, kl_weight=0.1)
    whole = trainer(settings)
    for number in (1, 2):
        whole.update(whole.prepare(batch(number)), number=number)
    policy, state = whole.policy(), whole.state()
    for number in (3, 4):
        whole.update(whole.prepare(batch(number)), number=number)
    restored = trainer(settings, seed=9)
    restored.restore(policy, state)
    for number in (3, 4):
        restored.update(restored.prepare(batch(number)), number=number)
    for name, array in whole.policy().items():
        np.testing.assert_array_equal(array, restored.policy()[name])


def test_reference_is_the_policy_that_reinforcement_began_from() -> None:
    settings = GrpoSettings(minibatches=1, kl_weight=1.0, warmup_versions=0)
    made = trainer(settings)
    made.begin_from(trainer(settings, seed=3).policy())
    metrics = made.update(made.prepare(batch()), number=1)
    assert metrics["reference_kl"] == pytest.approx(0.0, abs=1e-6)
    again = made.update(made.prepare(batch()), number=2)
    assert again["reference_kl"] > 1e-6


def test_checkpoint_of_another_model_is_refused() -> None:
    other = LanguageModelTrainer(CharLmSpec(d_model=8, num_heads=2), GrpoSettings(), seed=0, device=CPU)
    with pytest.raises(StaleFolderError, match="does not fit"):
        trainer().restore(other.policy(), other.state())


def test_completion_without_reward_or_of_another_temperature_is_refused() -> None:
    unscored = group("a", "1+2=", [("3", 1.0)], at=version(0))[0]
    with pytest.raises(RecordError, match="no reward"):
        trainer().prepare([msgspec.structs.replace(unscored, reward=None)])
    hot = group("b", "1+2=", [("3", 1.0)], at=version(0), temperature=0.7)
    with pytest.raises(RecordError, match="temperature"):
        trainer().prepare([unscored, *hot])


def test_completion_beyond_the_context_is_refused_before_anything_is_trained() -> None:
    fits = group("a", "1+2=", [("1234567", 1.0)], at=version(0))
    made = trainer()
    made.update(made.prepare(fits), number=1)
    with pytest.raises(RecordError, match="context holds 12"):
        made.prepare(group("a", "1+2=", [("12345678", 1.0)], at=version(0)))


def test_a_response_turns_an_uncorrected_objective_into_truncated_weights() -> None:
    uncorrected = GrpoSettings(objective="none", minibatches=1, warmup_versions=0, importance_cap=1.0)
    response = Response(tier=6, corrected=True, importance_cap=1.0)
    answered, corrected = trainer(uncorrected), trainer(msgspec.structs.replace(uncorrected, objective="tis"))
    answered.update(answered.prepare(batch()), number=1, response=response)
    corrected.update(corrected.prepare(batch()), number=1)
    for name, array in corrected.policy().items():
        np.testing.assert_array_equal(array, answered.policy()[name])


def test_recency_weights_follow_their_completions_when_groups_are_left_out() -> None:
    # The first group has no signal and is left out: the weights of the second must not slide onto its rows.
    flat = group("flat", "1+1=", [("2", 0.0), ("3", 0.0), ("4", 0.0)], at=version(0))
    told = group("told", "2+2=", [("4", 1.0), ("22", 0.0), ("5", 1.0)], at=version(0))
    settings = GrpoSettings(minibatches=1, warmup_versions=0, learning_rate=1e-2, objective="none")
    silent = trainer(settings)
    before = silent.policy()
    silent.update(
        silent.prepare([*flat, *told]),
        number=1,
        response=Response(tier=6, weights=(2.0, 2.0, 2.0, 0.0, 0.0, 0.0)),
    )
    for name, array in silent.policy().items():
        np.testing.assert_allclose(array, before[name], atol=1e-7)
