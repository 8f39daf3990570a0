"""The defaults learn: CartPole-v1 to a mean return of 475 over 100 episodes, actor and learner in one process."""

from collections import deque

import gymnasium
import numpy as np
import pytest
import torch
from torch import Tensor

from tests.support.environments import CARTPOLE
from tidegate.algorithms.objectives import (
    ActorCriticSettings,
    Steps,
    actor_critic_loss,
    learning_rate_at,
    minibatch_indices,
    prepare_update,
)
from tidegate.algorithms.segment_batch import SegmentBatch, stack_segments
from tidegate.algorithms.segments import check_segment, segment_tensors
from tidegate.core.records import Array
from tidegate.models.policies import build_policy
from tidegate.runtime.config import PolicyConfig

TARGET_RETURN = 475.0
STEPS_MAX = 100_000
NUM_ENVS, UNROLL_LENGTH = 16, 64
SETTINGS = ActorCriticSettings()
POLICY = build_policy(CARTPOLE, PolicyConfig(kind="mlp", hidden=(64, 64), input_scale=(1.0, 1.0, 5.0, 1.0)))


class Actor:
    """Steps environments under the parameters it is given, and records segments."""

    def __init__(self, seed: int) -> None:
        self.envs = gymnasium.make_vec(
            "CartPole-v1", num_envs=NUM_ENVS, vectorization_mode="vector_entry_point"
        )
        self.rng = np.random.default_rng(seed)
        self.observation, _ = self.envs.reset(seed=seed)
        self.ended = np.zeros(NUM_ENVS, dtype=bool)
        self.running_returns = np.zeros(NUM_ENVS)
        self.returns: deque[float] = deque(maxlen=100)

    def segment(self, params: dict[str, Array]) -> dict[str, Array]:
        rows: list[dict[str, Array]] = []
        for _ in range(UNROLL_LENGTH):
            actions, logprobs = POLICY.actions.sample(
                POLICY.action_outputs(params, {"observations": self.observation}, np), self.rng
            )
            row: dict[str, Array] = {
                "observations": self.observation,
                "actions": actions,
                "behavior_logprobs": logprobs,
                "valid": ~self.ended,
            }
            self.observation, rewards, row["terminated"], row["truncated"], _ = self.envs.step(actions)
            row["rewards"] = rewards
            self.running_returns += rewards
            self.ended = row["terminated"] | row["truncated"]
            self.returns.extend(self.running_returns[self.ended].tolist())
            self.running_returns[self.ended] = 0.0
            rows.append(row)
        segment = {name: np.stack([row[name] for row in rows]) for name in rows[0]}
        segment["observations"] = np.concatenate([segment["observations"], self.observation[None]])
        return segment


class Learner:
    """Makes one version of each batch."""

    def __init__(self, seed: int) -> None:
        arrays = POLICY.init_params(np.random.default_rng(seed))
        self.params: dict[str, Tensor] = {name: torch.tensor(array) for name, array in arrays.items()}
        self.trained = [tensor.requires_grad_() for tensor in POLICY.trainable(self.params).values()]
        self.optimizer = torch.optim.Adam(
            self.trained, lr=SETTINGS.learning_rate, eps=SETTINGS.adam_epsilon, fused=True
        )
        self.generator = torch.Generator().manual_seed(seed)

    def published(self) -> dict[str, Array]:
        return {name: tensor.detach().numpy().copy() for name, tensor in self.params.items()}

    def update(self, batch: SegmentBatch, *, number: int) -> None:
        with torch.no_grad():
            outputs_SNP, values_SN = POLICY.outputs_and_values(self.params, batch.observations, torch)
            logprobs_TN = POLICY.actions.logprobs(outputs_SNP[:-1], batch.actions_TN, torch)
        prepared = prepare_update(batch, logprobs_TN=logprobs_TN, values_SN=values_SN, settings=SETTINGS)
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate_at(SETTINGS, update=number)
        for _ in range(SETTINGS.epochs):
            self.epoch(prepared.steps)

    def epoch(self, all_steps: Steps) -> None:
        for index_B in minibatch_indices(len(all_steps), SETTINGS, generator=self.generator):
            steps = all_steps.rows(index_B)
            outputs_BP, values_B = POLICY.outputs_and_values(self.params, steps.observations, torch)
            logprobs_B, entropy_B = POLICY.actions.logprobs_and_entropy(outputs_BP, steps.actions_B, torch)
            loss = actor_critic_loss(logprobs_B, entropy_B, values_B, steps, SETTINGS)
            self.optimizer.zero_grad()
            loss.total.backward()  # pyright: ignore[reportUnknownMemberType] (torch leaves its types open)
            torch.nn.utils.clip_grad_norm_(self.trained, SETTINGS.max_grad_norm)
            self.optimizer.step()  # pyright: ignore[reportUnknownMemberType] (torch leaves its types open)


def steps_to_target(*, seed: int, lag: int) -> int | None:
    """Environment steps until the target, always acting ``lag`` versions behind; None past the budget."""
    actor, learner = Actor(seed), Learner(seed)
    policies = deque([learner.published()], maxlen=lag + 1)
    num_steps = num_updates = 0
    while num_steps < STEPS_MAX:
        segment = actor.segment(policies[0])
        check_segment(segment, segment_tensors(POLICY.description), name="segment")
        batch = stack_segments([segment], device=torch.device("cpu"))
        num_steps += batch.num_steps()
        if len(actor.returns) == 100 and float(np.mean(actor.returns)) >= TARGET_RETURN:
            return num_steps
        num_updates += 1
        learner.update(batch, number=num_updates)
        policies.append(learner.published())
    return None


@pytest.mark.slow
def test_the_defaults_solve_cartpole_within_their_budget() -> None:
    torch.set_num_threads(1)
    assert steps_to_target(seed=0, lag=1) is not None
