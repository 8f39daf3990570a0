import msgspec
import numpy as np
import pytest
import torch

from tests.unit.learner.trajectories import group, version, with_conversations
from tidegate.algorithms.grpo_settings import GrpoSettings, ObjectiveName
from tidegate.core.conversations import CONVERSATIONS
from tidegate.core.errors import RecordError, StaleFolderError
from tidegate.core.records import Trajectory
from tidegate.core.response import Response
from tidegate.learner.optim.language_model import PASS_TOKENS, LanguageModelTrainer
from tidegate.models.char_lm import CharLm, CharLmSpec
from tidegate.models.char_tokenizer import encode_prompt
from tidegate.models.completion_batch import completion_logprobs

CPU = torch.device("cpu")
SPEC = CharLmSpec(d_model=16, num_layers=1, num_heads=2, context_length=12)


def trainer(
    settings: GrpoSettings | None = None,
    *,
    seed: int = 0,
    pass_tokens: int = PASS_TOKENS,
    spec: CharLmSpec = SPEC,
) -> LanguageModelTrainer:
    return LanguageModelTrainer(
        CharLm(spec, generator=torch.Generator().manual_seed(seed)),
        settings or GrpoSettings(minibatches=2, warmup_versions=0, learning_rate=1e-2),
        seed=seed,
        device=CPU,
        pass_tokens=pass_tokens,
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
    assert metrics[-1].keys() >= {
        *(
            "loss",
            "ess",
            "ratio_mean",
            "clipped_fraction",
            "mismatch_kl",
            "entropy",
            "grad_norm",
            "learning_rate",
        ),
        *("reward_mean", "zero_signal_fraction", "completion_tokens_mean", "completion_tokens_max"),
        *("update_tokens", "text_tokens_mean"),
    }


def test_update_counts_the_tokens_that_it_computes_each_prompt_once() -> None:
    made = trainer()
    learns = group("a", "1+2=", [("3", 1.0), ("12", 0.0)], at=version(0))
    flat = group("b", "4+4=", [("8", 1.0), ("8", 1.0)], at=version(0))
    metrics = made.update(made.prepare([*learns, *flat]), number=1)
    # A prompt of 5 tokens with its beginning, and completions of 2 and 3 with their ends.
    assert metrics["update_tokens"] == 5 + 2 + 3
    assert metrics["text_tokens_mean"] == (7 + 8) / 2
    assert made.update(made.prepare(flat), number=2)["update_tokens"] == 0.0


def with_prompt(trajectory: Trajectory, prompt: str) -> Trajectory:
    tokens = np.array(encode_prompt(prompt), dtype=np.int32)
    return msgspec.structs.replace(trajectory, tensors={**trajectory.tensors, "prompt_tokens": tokens})


def test_each_sample_continues_its_own_prompt_where_agents_of_a_group_wrote_different_ones() -> None:
    made = trainer()
    first, second = group("a", "1+2=", [("3", 1.0), ("12", 0.0)], at=version(0))
    second = with_prompt(second, "1+2+4=")
    together = logprob_of_each(made, [first, second])
    alone = [*logprob_of_each(made, [first]), *logprob_of_each(made, [second])]
    np.testing.assert_allclose(together, alone, atol=1e-5)
    changed = logprob_of_each(made, [first, with_prompt(second, "9+9=")])
    assert changed[0] == pytest.approx(together[0], abs=1e-5)
    assert changed[1] != pytest.approx(together[1], abs=1e-3)


def test_episode_of_several_conversations_is_one_sample_of_its_group() -> None:
    settings = GrpoSettings(minibatches=1, warmup_versions=0, learning_rate=1e-3)
    made = trainer(settings)
    first, second, third = group("a", "1+2=", [("3", 1.0), ("12", 0.0), ("4", 0.0)], at=version(0))
    several = with_conversations(first, [("1+2=", "3"), ("2+2=", "44"), ("1+2=", "5")])
    parts = [("1+2=", "3"), ("2+2=", "44"), ("1+2=", "5")]
    singles = [
        group(f"s{index}", prompt, [(text, 1.0)], at=version(0))[0]
        for index, (prompt, text) in enumerate(parts)
    ]
    expected = sum(logprob_of_each(made, [single])[0] for single in singles)
    assert logprob_of_each(made, [several, second, third])[0] == pytest.approx(expected, abs=1e-4)
    metrics = made.update(made.prepare([several, second, third]), number=1)
    # The rewards of three samples, not of five conversations.
    assert metrics["reward_mean"] == pytest.approx(1 / 3)
    # Two prompts of five tokens, each once, and replies of 2 + 3 + 2, 3 and 2 tokens.
    assert metrics["update_tokens"] == 2 * 5 + 7 + 3 + 2
    assert metrics["completion_tokens_max"] == 7


def test_conversations_count_against_the_memory_of_a_pass_and_change_no_update() -> None:
    def trained(pass_tokens: int) -> LanguageModelTrainer:
        made = trainer(
            GrpoSettings(minibatches=1, warmup_versions=0, learning_rate=1e-3), pass_tokens=pass_tokens
        )
        first, *others = group("a", "1+2=", [("3", 1.0), ("12", 0.0), ("4", 0.0)], at=version(0))
        several = with_conversations(first, [("1+2=", "3"), ("2+2=", "44"), ("3+2=", "5")])
        made.update(
            made.prepare([several, *others, *group("b", "2+2=", [("4", 1.0), ("5", 0.0)], at=version(0))]),
            number=1,
        )
        return made

    assert_same_policy(trained(PASS_TOKENS), trained(20), atol=5e-5)


@pytest.mark.parametrize(
    "lengths", [[(5, 2), (5, 3)], [(10, 0), (0, 4)], [(5, 5), (5, -1)], [(10, 4, 0)], []], ids=str
)
def test_conversations_that_do_not_divide_the_tokens_are_refused(lengths: list[tuple[int, ...]]) -> None:
    [first] = group("a", "1+2=", [("3", 1.0)], at=version(0))
    several = with_conversations(first, [("1+2=", "3"), ("2+2=", "4")])
    assert len(trainer().prepare([several]).rewards_B) == 1
    tensors = {**several.tensors, CONVERSATIONS: np.array(lengths, dtype=np.int32)}
    with pytest.raises(RecordError, match="conversations"):
        trainer().prepare([msgspec.structs.replace(several, tensors=tensors)])


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
    other = LanguageModelTrainer(
        CharLm(CharLmSpec(d_model=8, num_heads=2)), GrpoSettings(), seed=0, device=CPU
    )
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
    varied = group("varied", "2+2=", [("4", 1.0), ("22", 0.0), ("5", 1.0)], at=version(0))
    settings = GrpoSettings(minibatches=1, warmup_versions=0, learning_rate=1e-2, objective="none")
    silent = trainer(settings)
    before = silent.policy()
    silent.update(
        silent.prepare([*flat, *varied]),
        number=1,
        response=Response(tier=6, weights=(2.0, 2.0, 2.0, 0.0, 0.0, 0.0)),
    )
    for name, array in silent.policy().items():
        np.testing.assert_allclose(array, before[name], atol=1e-7)


def assert_same_policy(left: LanguageModelTrainer, right: LanguageModelTrainer, *, atol: float) -> None:
    others = right.policy()
    for name, array in left.policy().items():
        np.testing.assert_allclose(array, others[name], rtol=0, atol=atol, err_msg=name)


@pytest.mark.parametrize("objective", ["tis", "ppo", "gspo"])
@pytest.mark.parametrize("minibatches", [1, 2])
def test_passes_that_fit_into_memory_give_the_update_of_one(
    objective: ObjectiveName, minibatches: int
) -> None:
    settings = GrpoSettings(
        objective=objective, minibatches=minibatches, warmup_versions=0, kl_weight=0.1, learning_rate=1e-2
    )
    spec = msgspec.structs.replace(SPEC, value_head=True)
    whole, passed = (trainer(settings, pass_tokens=tokens, spec=spec) for tokens in (10_000, 12))
    for number in (1, 2, 3):
        first = whole.update(whole.prepare(batch(number)), number=number)
        second = passed.update(passed.prepare(batch(number)), number=number)
        assert second == pytest.approx(first, rel=1e-5, abs=1e-5)
    # Not parameter by parameter: Adam makes whole steps of the rounding in those that change nothing (biases of keys).
    np.testing.assert_allclose(
        logprob_of_each(passed, batch()), logprob_of_each(whole, batch()), rtol=0, atol=1e-4
    )


def test_what_the_environment_replied_moves_nothing() -> None:
    """A reply's own tokens have no loss: only its being read changes the update."""

    def with_reply(logprob: float) -> list[Trajectory]:
        made: list[Trajectory] = []
        for trajectory in batch():
            tensors = dict(trajectory.tensors)
            num_tokens = len(tensors["tokens"])
            tensors["chosen"] = np.arange(num_tokens) != 0
            tensors["behavior_logprobs"] = np.where(tensors["chosen"], -1.0, logprob).astype(np.float32)
            made.append(msgspec.structs.replace(trajectory, tensors=tensors))
        return made

    one, other, without = trainer(), trainer(), trainer()
    one.update(one.prepare(with_reply(0.0)), number=1)
    other.update(other.prepare(with_reply(-7.0)), number=1)
    assert_same_policy(one, other, atol=0.0)
    without.update(without.prepare(batch()), number=1)
    with pytest.raises(AssertionError):
        assert_same_policy(one, without, atol=1e-6)


def test_a_mask_that_is_not_one_value_a_token_is_refused() -> None:
    invalid = batch()
    tensors = {**invalid[0].tensors, "chosen": np.ones(9, dtype=np.bool_)}
    with pytest.raises(RecordError, match="not one value per token in chosen"):
        trainer().prepare([msgspec.structs.replace(invalid[0], tensors=tensors), *invalid[1:]])


def test_a_critic_learns_what_completions_earn() -> None:
    settings = GrpoSettings(
        objective="ppo",
        minibatches=1,
        warmup_versions=0,
        learning_rate=1e-2,
        value_weight=5.0,
        value_clip=0.0,
    )
    made = trainer(settings, spec=msgspec.structs.replace(SPEC, value_head=True))
    measured = [made.update(made.prepare(batch()), number=number) for number in range(1, 31)]
    assert measured[-1]["value_loss"] < 0.5 * measured[0]["value_loss"]
    assert measured[-1]["explained_variance"] > measured[0]["explained_variance"]


def test_the_interpolated_proximal_policy_knows_how_old_each_token_is() -> None:
    settings = GrpoSettings(
        objective="decoupled_ppo",
        proximal="interpolated",
        minibatches=2,
        warmup_versions=0,
        learning_rate=1e-2,
    )
    fresh, stale = trainer(settings), trainer(settings)
    fresh.update(fresh.prepare(batch()), number=1)
    stale.update(stale.prepare(batch()), number=9)
    with pytest.raises(AssertionError):
        assert_same_policy(fresh, stale, atol=1e-7)


@pytest.mark.parametrize("minibatches", [1, 2])
def test_mismatch_at_lag_0_is_numerics_and_at_a_lag_staleness(minibatches: int) -> None:
    """Half of the tokens were written by the version that is trained, the others by one far from it."""
    made = trainer(GrpoSettings(minibatches=minibatches, warmup_versions=0, learning_rate=1e-3))
    prompts = {"1+2=": 4, "2+2=": 1, "3+3=": 0}
    trajectories = [
        each
        for index, (prompt, step) in enumerate(prompts.items())
        for each in group(f"g{index}", prompt, [("3", 1.0), ("12", 0.0)], at=version(step), logprob=-1.0)
    ]
    # What the trained policy itself gives those of its own version.
    prepared = made.prepare(trajectories)
    with torch.no_grad():
        own = completion_logprobs(made.model, prepared.completions).numpy()
    for row in (0, 1):
        tensors = trajectories[row].tensors
        tensors["behavior_logprobs"] = own[row, : len(tensors["tokens"])].astype(np.float32)
    metrics = made.update(made.prepare(trajectories), number=5)
    by_lag = {name: value for name, value in metrics.items() if name.startswith("mismatch_kl_lag_")}
    assert by_lag.keys() <= {"mismatch_kl_lag_0", "mismatch_kl_lag_2-3", "mismatch_kl_lag_4-7"}
    assert by_lag.get("mismatch_kl_lag_0", 0.0) < 1e-9
    assert max(by_lag.values()) > 1e-3
    if minibatches == 1:
        assert len(by_lag) == 3


def test_lag_counts_versions_where_a_version_has_several_updates() -> None:
    made = LanguageModelTrainer(
        CharLm(SPEC, generator=torch.Generator().manual_seed(0)),
        GrpoSettings(minibatches=1, warmup_versions=0),
        seed=0,
        device=CPU,
        updates_per_version=4,
    )
    fresh = [*group("a", "1+2=", [("3", 1.0), ("12", 0.0)], at=version(5))]
    first = made.update(made.prepare(fresh), number=5 * 4 + 1)
    assert "mismatch_kl_lag_0" in first
    second = made.update(made.prepare(fresh), number=5 * 4 + 2)
    assert not any(name.startswith("mismatch_kl_lag_") for name in second), "between two versions"
    assert {"mismatch_kl", "entropy"} <= second.keys()
