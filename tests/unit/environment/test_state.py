"""Scores as values: the cache, whole groups, failed verifiers."""

import tracemalloc

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.core.errors import RecordError
from tidegate.core.ids import GroupId, LineageName, PolicyVersion, PromptId, RunId, TaskId, TrajectoryId
from tidegate.core.records import StageTiming, Trajectory, VersionSpan
from tidegate.environment.judgements import LOG_CHARS_MAX, VerifierFailed
from tidegate.environment.state import (
    AnsweredProblem,
    ScoreCache,
    answer_of,
    check_group,
    resolve_failure,
    scored,
)
from tidegate.environment.tasks.port import Problem, Score

ENV = "arithmetic"


def record(sample_index: int, *, group_size: int = 2, task: str = "task-1", env_id: str = ENV) -> Trajectory:
    version = PolicyVersion(LineageName("0-a"), 3)
    return Trajectory(
        trajectory_id=TrajectoryId(f"{task}.{sample_index}"),
        run_id=RunId("run"),
        task_id=TaskId(task),
        group_id=GroupId(task),
        group_size=group_size,
        spans=(VersionSpan(version, 0, 2),),
        tensors={"behavior_logprobs": np.zeros(2, np.float32)},
        num_steps=2,
        prompt_id=PromptId("1+1"),
        prompt="1+1=",
        answer="2",
        completion=str(sample_index),
        curriculum_bin="carries-0",
        env_id=env_id,
    )


def answer(text: str, *, expected: str = "2") -> AnsweredProblem:
    return AnsweredProblem(Problem("1+1", "1+1=", expected, "carries-0"), text)


def score(reward: float) -> Score:
    return Score(reward, {"exact": reward}, "")


@given(st.lists(st.integers(0, 9), max_size=60), st.integers(0, 5))
def test_cache_keeps_the_most_recently_used_like_a_slow_list(texts: list[int], num_max: int) -> None:
    cache = ScoreCache(num_max=num_max)
    recent: list[int] = []  # the slow twin: newest last
    for text in texts:
        found = cache.get(ENV, answer(str(text)))
        assert (found is not None) == (text in recent)
        if found is None:
            cache.put(ENV, answer(str(text)), score(text))
        else:
            assert found.reward == text
            recent.remove(text)
        recent = [*recent, text][-num_max:] if num_max else []
        assert len(cache) == len(recent) <= num_max


def test_cache_does_not_mix_environments_nor_problems_with_another_answer() -> None:
    cache = ScoreCache(num_max=8)
    cache.put(ENV, answer("3", expected="2"), score(0.0))
    assert cache.get(ENV, answer("3", expected="3")) is None
    assert cache.get("other", answer("3", expected="2")) is None


def test_cache_keeps_no_texts() -> None:
    cache = ScoreCache(num_max=64)
    tracemalloc.start()
    try:
        for number in range(64):
            cache.put(ENV, answer(f"{number}" * 100_000), score(1.0))
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(cache) == 64
    assert held < 100_000, "less than a single one of the texts"


def test_answer_holds_the_problem_of_the_record() -> None:
    assert answer_of(record(1)) == AnsweredProblem(Problem("1+1", "1+1=", "2", "carries-0"), "1")


def test_cut_completion_is_distinguished_from_one_that_ended() -> None:
    cut = msgspec.structs.replace(record(2), finish_reason="length")
    assert answer_of(cut).completion == "2\N{HORIZONTAL ELLIPSIS}"
    assert answer_of(msgspec.structs.replace(cut, finish_reason="stop")).completion == "2"


def test_whole_group_passes() -> None:
    check_group([record(0), record(1)], envs={ENV})


@pytest.mark.parametrize(
    ("records", "problem"),
    [
        ([record(0)], "came as 1 samples"),
        ([record(0), record(0)], "came as 1 samples in 2 records"),
        ([record(0), record(1), record(2)], "came as 3 samples"),
        ([record(0), record(1, task="task-2")], "mixes group"),
        ([record(0, env_id="maze"), record(1)], "belongs to environment 'maze'"),
        ([record(0), record(1, env_id="other")], "is of several environments"),
    ],
)
def test_group_that_is_not_whole_is_refused(records: list[Trajectory], problem: str) -> None:
    with pytest.raises(RecordError, match=problem):
        check_group(records, envs={ENV, "other"})


def test_failed_verifier_is_a_logged_zero_or_a_drop_as_configured() -> None:
    failed = VerifierFailed("it took 3 s")
    zero = resolve_failure(failed, on_error="zero")
    assert zero == Score(0.0, {}, "verifier failed: it took 3 s")
    assert resolve_failure(failed, on_error="drop") is None
    assert resolve_failure(score(1.0), on_error="drop") == score(1.0)


def test_scored_records_carry_reward_components_bounded_log_and_the_hop() -> None:
    stage = StageTiming("reward.score", "environment-0", 1.0, 2.0)
    long_log = Score(1.0, {"exact": 1.0}, "x" * (LOG_CHARS_MAX + 1))
    first, second = scored([record(0), record(1)], [long_log, score(0.0)], stage=stage)
    assert (first.reward, second.reward) == (1.0, 0.0)
    assert first.reward_components == {"exact": 1.0}
    assert len(first.verifier_log) == LOG_CHARS_MAX
    assert second.stages == (stage,)
    untouched = msgspec.structs.replace(second, reward=None, reward_components={}, verifier_log="", stages=())
    assert msgspec.structs.asdict(untouched) == msgspec.structs.asdict(record(1)) | {
        "tensors": second.tensors
    }
