"""What the benchmark beside TRL counts."""

import msgspec
import pytest

from benchmarks.completion_counts import UpdateCompletions, count_completions, equal_share
from benchmarks.long_answers import LongAnswers
from benchmarks.trl import CASES, RUN_FILE, SOURCES, Side, Update
from benchmarks.trl_search import STAGES, TrlChoice, fastest, search
from tidegate.core.errors import UnavailableError
from tidegate.launch.run_file import read_run_file
from tidegate.learner.steps_log import StepLine


def test_a_group_of_equal_rewards_is_found_by_its_place() -> None:
    assert equal_share([1.0, 1.0, 0.0, 1.0], group_size=2) == 0.5
    assert equal_share([0.0, 1.0, 1.0, 0.0], group_size=2) == 0.0
    assert equal_share([0.3] * 6, group_size=3) == 1.0
    assert equal_share([], group_size=8) == 0.0
    with pytest.raises(ValueError, match="no whole groups"):
        equal_share([1.0, 0.0, 1.0], group_size=2)


def test_both_sides_are_counted_alike_where_both_compute_groups_of_equal_rewards() -> None:
    updates = [UpdateCompletions(64, 0.25), UpdateCompletions(64, 0.5)]
    alike = count_completions(updates, leaves_equal_out=False)
    assert (alike.generated, alike.trained, alike.taught) == (128, 128, 80)
    left_out = count_completions(updates, leaves_equal_out=True)
    assert (left_out.generated, left_out.trained, left_out.taught) == (128, 80, 80)


def test_completions_are_counted_from_the_end_of_the_first_update_as_seconds_are() -> None:
    updates = [
        Update(step, at_s=10.0 * step, mean_reward=0.5, samples=64, metrics={"zero_signal_fraction": 0.5})
        for step in (1, 2, 3)
    ]
    counts = Side(updates=updates, seconds=20.0, wall_s=30.0, cpu_s=30.0).counts()
    assert (counts.generated, counts.trained, counts.taught) == (128, 128, 64)


def test_a_line_of_the_learner_has_what_is_counted() -> None:
    line = StepLine(
        step=1, lineage="0-a", at_s=1.0, samples=64, env_steps=64, lag_mean=0.0, lag_max=0, by_lag={0: 64},
        age_mean_s=0.1, mean_return=None, mean_reward=0.5, loss=0.1, ess=1.0, clipped_fraction=0.0, wait_s=0.0,
        train_s=1.0, publish_s=0.0, metrics={"zero_signal_fraction": 0.375, "entropy": 1.0},
    )  # fmt: skip
    read = msgspec.json.decode(msgspec.json.encode(line), type=Update)
    assert read.completions() == UpdateCompletions(64, 0.375)


def test_peer_finds_the_task_and_the_counting() -> None:
    assert (SOURCES[0] / "tidegate" / "environment").is_dir()
    assert (SOURCES[1] / "benchmarks" / "completion_counts.py").is_file()


def test_the_platform_computes_groups_of_equal_rewards_as_trl_does() -> None:
    plan = read_run_file(RUN_FILE, ["learner.language_model.drop_zero_signal=false"])
    assert not plan.services["learner"].language_model.drop_zero_signal


def test_search_keeps_each_setting_that_makes_an_update_shorter() -> None:
    def seconds_of(choice: TrlChoice) -> float:
        if choice.paged:
            raise UnavailableError("continuous batching needs a GPU")
        slow = (
            10.0 * (choice.attention == "eager") + 20.0 * (choice.dtype == "float32") + 5.0 * choice.compiled
        )
        return 50.0 - (choice.micro_batch == 8) + slow

    tried = list(search(seconds_of))
    assert len(tried) == 1 + sum(len(values) for _, values in STAGES)
    assert fastest(tried).choice == TrlChoice(micro_batch=8, attention="sdpa")
    assert str(fastest(tried).choice) == "micro-batch 8, bfloat16, sdpa"
    assert [(each.seconds, each.problem) for each in tried if each.choice.paged] == [
        (None, "continuous batching needs a GPU.")
    ]


def test_cases_are_run_files_that_can_be_read() -> None:
    contexts = [read_run_file(RUN_FILE, list(case.overrides)).file.policy.context_length for case in CASES]
    assert contexts == [160, 192]


def test_long_answers_are_rewarded_for_different_words() -> None:
    task = LongAnswers()
    problem = task.problems("train", seed=0)[0]
    scores = [
        task.score(problem, text).reward for text in ("", "a a A a", "a b c", " ".join(map(str, range(200))))
    ]
    assert scores == [0.0, 1 / 90, 3 / 90, 1.0]
    ids = [each.prompt_id for split in ("train", "heldout") for each in task.problems(split, seed=0)]
    assert len(set(ids)) == len(ids) == 144
