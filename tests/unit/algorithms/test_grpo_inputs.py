import dataclasses
from typing import Any

import hypothesis.strategies as st
import msgspec
import pytest
import torch
from hypothesis import given

from tests.reference import grpo as slow
from tests.support.completions import CHOSEN, GROUPS, chosen_lists, floats, make_inputs
from tidegate.algorithms.advantages import group_advantages
from tidegate.algorithms.grpo_inputs import GrpoInputs, grpo_inputs
from tidegate.algorithms.grpo_settings import GrpoSettings
from tidegate.core.errors import ConfigError

SEEDS = st.integers(0, 10_000)
CENTRED = GrpoSettings(normalise_by_std=False)


def made_of(inputs: GrpoInputs, settings: GrpoSettings, **others: Any) -> GrpoInputs:
    """The inputs that a learner would make of the same tokens, rewards and groups."""
    assert inputs.rewards_B is not None
    assert inputs.group_index_B is not None
    return grpo_inputs(
        settings,
        mask_BT=inputs.mask_BT,
        rewards_B=inputs.rewards_B,
        group_index_B=inputs.group_index_B,
        behavior_logprobs_BT=inputs.behavior_logprobs_BT,
        proximal_logprobs_BT=inputs.proximal_logprobs_BT,
        reference_logprobs_BT=inputs.reference_logprobs_BT,
        **others,
    )


@pytest.mark.parametrize("by_std", [True, False])
def test_advantages_compare_a_completion_with_its_group(by_std: bool) -> None:
    _, inputs = make_inputs(0, drift=0.3)
    found = made_of(inputs, GrpoSettings(normalise_by_std=by_std))
    assert inputs.rewards_B is not None
    expected_B = group_advantages(inputs.rewards_B, torch.tensor(GROUPS), normalise_by_std=by_std)
    torch.testing.assert_close(found.advantages_B, expected_B)
    assert found.critic is None


@given(seed=SEEDS)
def test_a_kl_in_the_reward_is_taken_off_by_completion(seed: int) -> None:
    _, inputs = make_inputs(seed, drift=0.5)
    settings = msgspec.structs.replace(CENTRED, kl_weight=0.3, kl_in="reward")
    assert inputs.proximal_logprobs_BT is not None
    assert inputs.reference_logprobs_BT is not None
    assert inputs.rewards_B is not None
    shaped = [
        float(reward) - 0.3 * (sum(current) - sum(reference))
        for reward, current, reference in zip(
            inputs.rewards_B,
            chosen_lists(inputs.proximal_logprobs_BT),
            chosen_lists(inputs.reference_logprobs_BT),
            strict=True,
        )
    ]
    means = [slow.mean(shaped[:3])] * 3 + [slow.mean(shaped[3:])] * 3
    expected = [value - mean for value, mean in zip(shaped, means, strict=True)]
    assert floats(made_of(inputs, settings).advantages_B) == pytest.approx(expected, abs=1e-9)
    in_loss = msgspec.structs.replace(settings, kl_in="loss")
    assert torch.equal(made_of(inputs, in_loss).advantages_B, made_of(inputs, CENTRED).advantages_B)


@given(seed=SEEDS)
def test_a_value_head_judges_each_token_and_learns_what_came_of_it(seed: int) -> None:
    values_BT, inputs = make_inputs(seed, drift=0.5)
    values_BT = values_BT.detach()
    settings = msgspec.structs.replace(
        CENTRED, objective="ppo", kl_weight=0.2, kl_in="reward", discount=0.9, gae_lambda=0.7
    )
    critic = made_of(inputs, settings, values_BT=values_BT).critic
    assert critic is not None
    assert inputs.proximal_logprobs_BT is not None
    assert inputs.reference_logprobs_BT is not None
    assert inputs.rewards_B is not None
    proximal, reference = (
        chosen_lists(inputs.proximal_logprobs_BT),
        chosen_lists(inputs.reference_logprobs_BT),
    )
    for row, values in enumerate(chosen_lists(values_BT)):
        rewards = [-0.2 * (new - old) for new, old in zip(proximal[row], reference[row], strict=True)]
        rewards[-1] += float(inputs.rewards_B[row])
        expected = slow.generalized_advantages(rewards, values, discount=0.9, lambda_=0.7)
        assert chosen_lists(critic.advantages_BT)[row] == pytest.approx(expected, abs=1e-9)
        returns = [advantage + value for advantage, value in zip(expected, values, strict=True)]
        assert chosen_lists(critic.returns_BT)[row] == pytest.approx(returns, abs=1e-9)
        assert chosen_lists(critic.values_BT)[row] == values
    for tensor_BT in (critic.advantages_BT, critic.returns_BT, critic.values_BT):
        assert not tensor_BT[~inputs.mask_BT].any()


def test_a_value_heads_advantages_have_deviation_one_and_its_returns_keep_their_scale() -> None:
    values_BT, inputs = make_inputs(3, drift=0.5)
    settings = GrpoSettings(objective="ppo")
    scaled = made_of(inputs, settings, values_BT=values_BT.detach()).critic
    plain = made_of(
        inputs, msgspec.structs.replace(settings, normalise_by_std=False), values_BT=values_BT.detach()
    ).critic
    assert scaled is not None
    assert plain is not None
    chosen_N = scaled.advantages_BT[inputs.mask_BT]
    assert float(chosen_N.mean()) == pytest.approx(0.0, abs=1e-9)
    assert float(chosen_N.square().mean()) == pytest.approx(1.0, rel=1e-3)
    assert torch.equal(scaled.returns_BT, plain.returns_BT)


def test_without_a_forward_pass_the_penalty_uses_the_behaviour_policy() -> None:
    _, inputs = make_inputs(1, drift=0.5)
    settings = msgspec.structs.replace(CENTRED, objective="grpo", kl_weight=0.3, kl_in="reward")

    def advantages(proximal_BT: torch.Tensor | None) -> torch.Tensor:
        return made_of(dataclasses.replace(inputs, proximal_logprobs_BT=proximal_BT), settings).advantages_B

    assert torch.equal(advantages(None), advantages(inputs.behavior_logprobs_BT))
    assert not torch.equal(advantages(None), advantages(inputs.proximal_logprobs_BT))


def test_what_the_settings_need_and_the_batch_has_not_is_refused() -> None:
    _, inputs = make_inputs(0, drift=0.1)
    bare = GrpoInputs(
        inputs.mask_BT,
        inputs.advantages_B,
        inputs.behavior_logprobs_BT,
        rewards_B=inputs.rewards_B,
        group_index_B=inputs.group_index_B,
    )
    with pytest.raises(ConfigError, match="no reference policy"):
        made_of(bare, GrpoSettings(objective="tba"))
    with pytest.raises(ConfigError, match="no value head"):
        made_of(bare, GrpoSettings(objective="ppo"))


def test_rows_are_taken_and_cut_in_every_tensor() -> None:
    logprobs_BT, inputs = make_inputs(2, drift=0.3, critic=True)
    weights_B = torch.arange(len(CHOSEN), dtype=torch.float64)
    whole = made_of(
        inputs,
        GrpoSettings(objective="ppo"),
        values_BT=logprobs_BT.detach(),
        version_gap_BT=inputs.version_gap_BT,
        weights_B=weights_B,
    )
    rows_B = torch.tensor([3, 1])
    part = whole.rows(rows_B, num_tokens=2)
    assert part.critic is not None
    assert whole.critic is not None
    assert part.rewards_B is not None
    assert whole.rewards_B is not None
    for of_part, of_whole in (
        (part.mask_BT, whole.mask_BT),
        (part.behavior_logprobs_BT, whole.behavior_logprobs_BT),
        (part.proximal_logprobs_BT, whole.proximal_logprobs_BT),
        (part.reference_logprobs_BT, whole.reference_logprobs_BT),
        (part.version_gap_BT, whole.version_gap_BT),
        (part.critic.values_BT, whole.critic.values_BT),
        (part.critic.advantages_BT, whole.critic.advantages_BT),
        (part.critic.returns_BT, whole.critic.returns_BT),
    ):
        assert of_part is not None
        assert of_whole is not None
        assert torch.equal(of_part, of_whole[[3, 1], :2])
    assert torch.equal(part.rewards_B, whole.rewards_B[[3, 1]])
    assert part.group_index_B is not None
    assert floats(part.group_index_B) == [1, 0]
    assert part.weights_B is not None
    assert floats(part.weights_B) == [3.0, 1.0]
