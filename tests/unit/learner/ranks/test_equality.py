"""However many ranks share the updates, and however unevenly, they are those that one rank makes."""

from collections.abc import Callable, Generator, Sequence
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support.environments import CARTPOLE
from tests.unit.learner.ranks.threads import together
from tests.unit.learner.trajectories import group, segment, segment_tensors, version
from tidegate.algorithms.actor_critic_settings import ActorCriticSettings
from tidegate.algorithms.grpo_settings import GrpoSettings
from tidegate.algorithms.sac_settings import SacSettings
from tidegate.core.records import Trajectory
from tidegate.core.response import Response
from tidegate.core.spaces import BoxSpace
from tidegate.learner.optim.actor_critic import ActorCriticTrainer
from tidegate.learner.optim.language_model import LanguageModelTrainer
from tidegate.learner.optim.replay_port import ReplayUnits, priorities_of
from tidegate.learner.optim.sac import SacTrainer
from tidegate.learner.ranks.port import ALONE, Ranks, SharedTrainer
from tidegate.models.char_lm import CharLm, CharLmSpec
from tidegate.models.policies import build_policy
from tidegate.models.policy_port import FeaturePolicy
from tidegate.runtime.config import PolicyConfig
from tidegate.runtime.environment_settings import RewardConfig

CPU = torch.device("cpu")
# Ranks add in another order, in float32, and Adam enlarges the rounding of small gradients: 1.3e-6 was seen in two
# updates. A share that is missing or counted twice moves parameters by a part of the learning rate, 1e-4 and more.
TOLERANCE = 1e-5
COUNTS = st.integers(2, 4)
PUSH = BoxSpace((2,), "float32", (-2.0,), (2.0,))


def actor_critic(ranks: Ranks, **changes: Any) -> ActorCriticTrainer:
    """With running statistics of observations and of returns, and a separate rate of the value."""
    chosen = ActorCriticSettings(epochs=2, minibatches=3, value_learning_rate=5e-3, target_kl=0.05, **changes)
    config = PolicyConfig(kind="mlp", hidden=(8, 8), normalise_observations=True)
    policy = build_policy(CARTPOLE, config)
    reward = RewardConfig(normalise=True)
    return ActorCriticTrainer(policy, chosen, seed=3, device=CPU, reward=reward, ranks=ranks)


MEMORY = PolicyConfig(kind="mlp", hidden=(8,), memory="lstm", memory_units=4)


def recurrent(ranks: Ranks, **changes: Any) -> ActorCriticTrainer:
    """With memory: minibatches of whole environments."""
    chosen = ActorCriticSettings(epochs=2, minibatches=2, **changes)
    return ActorCriticTrainer(build_policy(CARTPOLE, MEMORY), chosen, seed=3, device=CPU, ranks=ranks)


def with_memory(records: list[Trajectory]) -> list[Trajectory]:
    """The records with a state before their first rows."""
    made: list[Trajectory] = []
    for index, record in enumerate(records):
        num_envs = record.tensors["rewards"].shape[1]
        state = np.random.default_rng(index).normal(0.0, 0.5, (num_envs, 8)).astype(np.float32)
        made.append(msgspec.structs.replace(record, tensors={**record.tensors, "memory": state}))
    return made


def language_model(ranks: Ranks, **changes: Any) -> LanguageModelTrainer:
    spec = CharLmSpec(d_model=8, num_heads=2, num_layers=1, context_length=16)
    chosen = GrpoSettings(minibatches=2, warmup_versions=0, **changes)
    model = CharLm(spec, generator=torch.Generator().manual_seed(3))
    return LanguageModelTrainer(model, chosen, seed=3, device=CPU, ranks=ranks)


def segments(seed: int, *, num_segments: int) -> list[Trajectory]:
    """Segments with episodes that end in them, so that not every row is a step."""
    made: list[Trajectory] = []
    for index in range(num_segments):
        tensors = segment_tensors(100 * seed + index, num_steps=6, num_envs=3)
        rng = np.random.default_rng(100 * seed + index)
        tensors["terminated"] = (rng.random((6, 3)) < 0.15).astype(np.uint8)
        tensors["valid"] = np.ones((6, 3), dtype=np.uint8)
        tensors["valid"][1:][tensors["terminated"][:-1] == 1] = 0
        tensors["rewards"] = rng.random((6, 3)).astype(np.float32)
        made.append(segment(f"s{seed}-{index}", at=version(0), tensors=tensors))
    return made


def groups(seed: int, *, num_groups: int) -> list[Trajectory]:
    """Groups of completions of unlike lengths; some groups' rewards are all the same."""
    rng = np.random.default_rng(seed)
    made: list[Trajectory] = []
    for index in range(num_groups):
        answers = [("7" * int(rng.integers(1, 5)), float(rng.integers(0, 2))) for _ in range(3)]
        made += group(f"g{seed}-{index}", f"{index}+{seed % 10}=", answers, at=version(0))
    return made


def sac(ranks: Ranks) -> SacTrainer:
    """With running statistics of observations."""
    config = PolicyConfig(kind="squashed_mlp", hidden=(8, 8), normalise_observations=True)
    policy = build_policy(msgspec.structs.replace(CARTPOLE, action_space=PUSH), config)
    assert isinstance(policy, FeaturePolicy)
    return SacTrainer(policy, SacSettings(max_grad_norm=1.0), seed=3, device=CPU, hidden=(8, 8), ranks=ranks)


def sac_on_images(ranks: Ranks) -> SacTrainer:
    """With convolutions, which the critics train."""
    seen = BoxSpace((1, 36, 36), "uint8", (0.0,), (255.0,))
    description = msgspec.structs.replace(CARTPOLE, observation_space=seen, action_space=PUSH)
    policy = build_policy(description, PolicyConfig(kind="squashed_cnn", features=8))
    assert isinstance(policy, FeaturePolicy)
    return SacTrainer(policy, SacSettings(max_grad_norm=1.0), seed=3, device=CPU, hidden=(8,), ranks=ranks)


def transitions(seed: int, *, num_units: int) -> ReplayUnits:
    """Drawn with unlike probabilities; some end their episode."""
    rng = np.random.default_rng(seed)
    return ReplayUnits(
        ids_B=np.arange(num_units, dtype=np.int64),
        probabilities_B=rng.uniform(0.01, 0.1, num_units),
        num_open=num_units,
        lags_B=np.zeros(num_units, np.int64),
        tensors={
            "observations": rng.normal(size=(num_units, 4)).astype(np.float32),
            "next.observations": rng.normal(size=(num_units, 4)).astype(np.float32),
            "actions": rng.uniform(-1.0, 1.0, (num_units, 2)).astype(np.float32),
            "rewards": rng.normal(size=(num_units, 1)).astype(np.float32),
            "lengths": np.ones(num_units, np.int32),
            "terminated": rng.random(num_units) < 0.3,
        },
    )


def image_transitions(seed: int, *, num_units: int) -> ReplayUnits:
    rng = np.random.default_rng(seed)
    units = transitions(seed, num_units=num_units)
    images = {
        name: rng.integers(0, 256, (num_units, 1, 36, 36)).astype(np.uint8)
        for name in ("observations", "next.observations")
    }
    return msgspec.structs.replace(units, tensors={**units.tensors, **images})


def updated(
    make: Callable[[Ranks], SharedTrainer],
    batches: Sequence[Any],
    *,
    count: int,
    response: Response,
) -> tuple[SharedTrainer, list[dict[str, float]], list[SharedTrainer], list[dict[str, float]]]:
    """One rank's trainer and metrics, and those of ``count`` ranks, after an update from each of ``batches``."""

    def train(ranks: Ranks) -> tuple[SharedTrainer, list[dict[str, float]]]:
        made = make(ranks)
        return made, [
            made.update(made.prepare(batch), number=number, response=response)
            for number, batch in enumerate(batches, start=1)
        ]

    alone, measured = train(ALONE)
    ranks = together(count, train)
    return alone, measured, [made for made, _ in ranks], ranks[0][1]


def check_equal(
    alone: SharedTrainer,
    measured: list[dict[str, float]],
    ranks: list[SharedTrainer],
    measured_together: list[dict[str, float]],
) -> None:
    expected, first = alone.live(), ranks[0].live()
    for name, tensor in first.items():
        torch.testing.assert_close(tensor, expected[name], rtol=0, atol=TOLERANCE)
    for other in ranks[1:]:
        for name, tensor in other.live().items():
            assert torch.equal(tensor, first[name]), f"{name} is not the same on all ranks"
    for one, many in zip(measured, measured_together, strict=True):
        assert many == pytest.approx(one, rel=1e-4, abs=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("objective", ["vtrace", "ppo", "none"])
@given(count=COUNTS, num_segments=st.integers(1, 4), seed=st.integers(0, 50), weighted=st.booleans())
@settings(max_examples=8)
def test_ranks_update_an_actor_critic_as_one_does(
    objective: str, count: int, num_segments: int, seed: int, weighted: bool
) -> None:
    weights = tuple(np.linspace(0.5, 1.5, num_segments).tolist()) if weighted else ()
    check_equal(
        *updated(
            lambda ranks: actor_critic(ranks, objective=objective),
            [segments(seed + number, num_segments=num_segments) for number in range(2)],
            count=count,
            response=Response(tier=6, weights=weights),
        )
    )


@pytest.mark.slow
@given(count=COUNTS, num_units=st.integers(1, 9), seed=st.integers(0, 50), weighted=st.booleans())
@settings(max_examples=8)
def test_ranks_update_a_soft_actor_critic_as_one_does(
    count: int, num_units: int, seed: int, weighted: bool
) -> None:
    weights = tuple(np.linspace(0.5, 1.5, num_units).tolist()) if weighted else ()
    alone, measured, ranks, together_measured = updated(
        sac,
        [transitions(seed + number, num_units=num_units) for number in range(2)],
        count=count,
        response=Response(tier=6, weights=weights),
    )
    check_equal(alone, measured, ranks, together_measured)
    expected = priorities_of(alone)
    assert expected is not None
    for made in ranks:
        assert priorities_of(made) == pytest.approx(expected, rel=1e-4, abs=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("count", [2, 3])
def test_ranks_update_a_soft_actor_critic_on_images_as_one_does(count: int) -> None:
    check_equal(
        *updated(
            sac_on_images,
            [image_transitions(number, num_units=5) for number in range(2)],
            count=count,
            response=Response(),
        )
    )


@pytest.mark.slow
@given(count=COUNTS, num_segments=st.integers(1, 3), seed=st.integers(0, 50))
@settings(max_examples=8)
def test_ranks_update_a_policy_with_memory_as_one_does(count: int, num_segments: int, seed: int) -> None:
    check_equal(
        *updated(
            recurrent,
            [with_memory(segments(seed + number, num_segments=num_segments)) for number in range(2)],
            count=count,
            response=Response(),
        )
    )


@pytest.fixture
def double_precision() -> Generator[None]:
    """Float64, in which rounding is far below Adam's epsilon.

    Adam divides by a gradient's own size. Where that is nothing but rounding (attention ignores the biases of its keys)
    the sign of the rounding would decide, and no two ways to add up the same numbers agree.
    """
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


@pytest.mark.slow
@pytest.mark.usefixtures("double_precision")
@pytest.mark.parametrize("objective", ["grpo", "tis", "decoupled_ppo", "gspo", "none"])
@given(
    count=COUNTS,
    num_groups=st.integers(1, 6),
    seed=st.integers(0, 50),
    token_mean=st.booleans(),
    kl_weight=st.sampled_from([0.0, 0.1]),
)
@settings(max_examples=8, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_ranks_update_a_language_model_as_one_does(
    objective: str, count: int, num_groups: int, seed: int, token_mean: bool, kl_weight: float
) -> None:
    check_equal(
        *updated(
            lambda ranks: language_model(
                ranks, objective=objective, token_mean=token_mean, kl_weight=kl_weight
            ),
            [groups(seed + number, num_groups=num_groups) for number in range(2)],
            count=count,
            response=Response(),
        )
    )


@pytest.mark.slow
@pytest.mark.usefixtures("double_precision")
def test_more_ranks_than_there_is_work_for_change_nothing() -> None:
    batch = groups(1, num_groups=1)
    alone, measured, ranks, together_measured = updated(language_model, [batch], count=4, response=Response())
    assert measured[0]["grad_norm"] > 0.0
    check_equal(alone, measured, ranks, together_measured)


@pytest.mark.parametrize(
    ("make", "batch"),
    [
        (actor_critic, segments(1, num_segments=2)),
        (recurrent, with_memory(segments(1, num_segments=2))),
        (language_model, groups(1, num_groups=2)),
    ],
)
def test_a_packed_batch_trains_like_the_one_it_was_made_of(
    make: Callable[[Ranks], SharedTrainer], batch: list[Trajectory]
) -> None:
    given_whole, given_packed = make(ALONE), make(ALONE)
    given_whole.update(given_whole.prepare(batch), number=1)
    given_packed.update(given_packed.unpack(given_packed.pack(given_packed.prepare(batch))), number=1)
    for name, tensor in given_whole.live().items():
        assert torch.equal(tensor, given_packed.live()[name])
