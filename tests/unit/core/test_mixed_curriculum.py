"""Several environments in one run: their shares follow the weights, whatever happens within each."""

from collections import Counter

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.core.curriculum import Curriculum, CurriculumState, Strategy
from tidegate.core.mixed_curriculum import MixedCurriculum

BINS = ["a/easy"] * 7 + ["b/all"] * 3 + ["a/hard"] * 5 + ["c/all"] * 4
ENV_OF = {"a/easy": "a", "a/hard": "a", "b/all": "b", "c/all": "c"}
STRATEGIES: tuple[Strategy, ...] = ("uniform", "learnable")

weights = st.tuples(
    st.permutations("abc"), st.floats(0.01, 100.0), st.floats(0.0, 100.0), st.floats(0.0, 100.0)
).map(lambda drawn: dict(sorted(zip(drawn[0], drawn[1:], strict=True))))


def mixed(
    weights: dict[str, float] | None = None, *, seed: int = 0, strategy: Strategy = "uniform"
) -> MixedCurriculum:
    chosen = weights or {"a": 3.0, "b": 1.0, "c": 2.0}
    return MixedCurriculum(BINS, env_of=ENV_OF, weights=chosen, seed=seed, strategy=strategy)


def envs_of(indices: list[int]) -> list[str]:
    return [ENV_OF[BINS[index]] for index in indices]


@pytest.mark.slow
@given(weights, st.integers(0, 2**31 - 1), st.integers(0, 1500), st.sampled_from(STRATEGIES))
def test_shares_converge_to_the_weights_from_any_point_on(
    weights: dict[str, float], seed: int, start: int, strategy: Strategy
) -> None:
    count = 120
    curriculum = mixed(weights, seed=seed, strategy=strategy)
    indices, _ = curriculum.draw(CurriculumState(num_drawn=start), count=count)
    drawn, total = Counter(envs_of(indices)), sum(weights.values())
    for name, weight in weights.items():
        # 2.73 is the largest error of any share of any 120 consecutive prompts; independent draws exceed it by chance.
        assert abs(drawn[name] - count * weight / total) < 3.0
        assert weight > 0.0 or not drawn[name]


@pytest.mark.slow
@given(weights, st.integers(0, 60), st.integers(0, 60), st.sampled_from(STRATEGIES))
def test_queue_that_restarts_goes_on_with_the_very_prompts(
    weights: dict[str, float], first: int, second: int, strategy: Strategy
) -> None:
    curriculum = mixed(weights, strategy=strategy)
    whole, end = curriculum.draw(CurriculumState(), count=first + second)
    head, between = curriculum.draw(CurriculumState(), count=first)
    kept = msgspec.json.decode(msgspec.json.encode(between), type=CurriculumState)
    tail, after = mixed(weights, strategy=strategy).draw(kept, count=second)
    assert head + tail == whole
    assert after == end


@given(st.lists(st.tuples(st.sampled_from(list(ENV_OF)), st.floats(0.0, 1.0)), max_size=60))
def test_rewards_move_no_share(rewards: list[tuple[str, float]]) -> None:
    curriculum = mixed(strategy="learnable")
    state = CurriculumState()
    for bin_name, reward in rewards:
        state = curriculum.observe(state, bin_name=bin_name, reward=reward)
    rewarded, _ = curriculum.draw(state, count=60)
    untouched, _ = curriculum.draw(CurriculumState(), count=60)
    assert envs_of(rewarded) == envs_of(untouched)


def test_each_environment_is_read_as_if_it_were_alone() -> None:
    indices, _ = mixed().draw(CurriculumState(), count=240)
    of_b = [index for index in indices if BINS[index] == "b/all"]
    epochs = [of_b[start : start + 3] for start in range(0, len(of_b) - 2, 3)]
    assert len(epochs) > 10
    assert all(sorted(epoch) == [7, 8, 9] for epoch in epochs)
    of_a = [index for index in indices if ENV_OF[BINS[index]] == "a"]
    assert sorted(of_a[:12]) == [*range(7), *range(10, 15)]


def test_learnable_prefers_bins_within_an_environment_alone() -> None:
    curriculum = mixed({"a": 1.0, "b": 1.0, "c": 0.0}, strategy="learnable")
    state = CurriculumState()
    for _ in range(400):
        state = curriculum.observe(state, bin_name="a/easy", reward=1.0)
        state = curriculum.observe(state, bin_name="a/hard", reward=0.5)
    indices, _ = curriculum.draw(state, count=400)
    drawn = Counter(BINS[index] for index in indices)
    assert drawn["a/hard"] > 4 * drawn["a/easy"] > 0
    assert drawn["b/all"] == pytest.approx(200, abs=25)


def test_weights_of_a_user_s_curriculum_choose_within_each_environment() -> None:
    curriculum = mixed({"a": 1.0, "b": 1.0, "c": 1.0}, strategy="own")
    assert curriculum.names == ["a/easy", "a/hard", "b/all", "c/all"]
    assert [each.name for each in curriculum.bins_of(CurriculumState())] == curriculum.names
    # All bins of b and c weigh 0: their environments are drawn all the same, as their own weights say.
    state = CurriculumState(weights={"a/easy": 0.0, "a/hard": 1.0, "b/all": 0.0, "c/all": 0.0})
    indices, after = curriculum.draw(state, count=90)
    drawn = Counter(BINS[index] for index in indices)
    assert drawn["a/easy"] == 0
    assert all(drawn[name] == pytest.approx(30, abs=10) for name in ("a/hard", "b/all", "c/all"))
    assert after.weights == state.weights
    assert sum(each.num_drawn for each in after.envs.values()) == after.num_drawn == 90


def test_environment_of_weight_0_is_never_drawn_and_learns_nothing() -> None:
    curriculum = mixed({"a": 1.0, "b": 0.0, "c": 1.0}, strategy="learnable")
    state = curriculum.observe(CurriculumState(), bin_name="b/all", reward=1.0)
    assert state == CurriculumState()
    assert "b" not in envs_of(curriculum.draw(state, count=100)[0])


def test_bin_that_the_dataset_does_not_have_changes_nothing() -> None:
    assert mixed().observe(CurriculumState(), bin_name="x", reward=1.0) == CurriculumState()


def test_one_environment_alone_is_drawn_always() -> None:
    indices, state = MixedCurriculum(["all"] * 5, env_of={"all": "a"}, weights={"a": 0.1}, seed=3).draw(
        CurriculumState(), count=10
    )
    assert sorted(indices[:5]) == sorted(indices[5:]) == list(range(5))
    assert Curriculum(["all"] * 5, seed=3).position(state) == (2, 0)
