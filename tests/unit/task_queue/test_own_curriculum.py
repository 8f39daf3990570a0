"""A user's curriculum: what it may be and return, and what the queue makes of an answer or of none."""

import asyncio
import itertools
import random
from collections.abc import Iterator, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import structlog
from structlog.testing import capture_logs

from tidegate.catalogue import task_queue as statistics
from tidegate.core.curriculum import BinState, Curriculum, CurriculumState
from tidegate.core.errors import ConfigError
from tidegate.core.own_weights import CurriculumBin
from tidegate.runtime.drain import Drain
from tidegate.runtime.own_code.references import OwnReference
from tidegate.runtime.stats_board import StatsBoard
from tidegate.task_queue.config import TaskQueueConfig
from tidegate.task_queue.own_curriculum import loop
from tidegate.task_queue.own_curriculum.code import OwnCurriculum, numbers_of
from tidegate.task_queue.own_curriculum.loop import WeightsLoop
from tidegate.task_queue.own_curriculum.messages import Weighed, WeightsFailed, WeightsQuestion
from tidegate.task_queue.own_curriculum.trial import TrialQuestion, tried

REFERENCE = OwnReference("my_curriculum.py:Hardest", "/somewhere/my_curriculum.py", "Hardest")
BINS = (CurriculumBin("easy", 4, 8, 0.9), CurriculumBin("hard", 2))


def hardest(bins: Sequence[CurriculumBin], step: int, rng: random.Random) -> list[float]:
    return [1.0 - (each.success_rate or 0.0) for each in bins]


def by_chance(bins: Sequence[CurriculumBin], step: int, rng: random.Random) -> list[float]:
    return [rng.random() for _ in bins]


class Hardest:
    def weights(self, bins: Sequence[CurriculumBin], step: int, rng: random.Random) -> list[float]:
        return hardest(bins, step, rng)


def question(step: int = 0, seed: int = 1) -> WeightsQuestion:
    return WeightsQuestion(BINS, step, seed)


@pytest.mark.parametrize("found", [hardest, Hardest, Hardest()])
def test_function_class_and_object_are_curricula(found: Any) -> None:
    answer = OwnCurriculum(found, REFERENCE).answer(question())
    assert isinstance(answer, Weighed)
    assert answer.weights == pytest.approx([0.1, 1.0])


def test_what_cannot_be_called_with_bins_step_and_rng_is_refused_with_its_form() -> None:
    with pytest.raises(ConfigError, match=r"cannot be called as \(bins, step, rng\).*def weights"):
        OwnCurriculum(len, REFERENCE)
    with pytest.raises(ConfigError, match="cannot be called"):
        OwnCurriculum(3, REFERENCE)


def test_random_generator_is_the_same_for_the_same_question() -> None:
    drawn = OwnCurriculum(by_chance, REFERENCE)
    assert drawn.answer(question()) == drawn.answer(question())
    assert drawn.answer(question()) != drawn.answer(question(seed=2))


@pytest.mark.parametrize(
    ("value", "weights"),
    [
        ((1, 0.5), [1.0, 0.5]),
        (np.array([0.25, 1.0], dtype=np.float32), [0.25, 1.0]),
        ([Fraction(1, 4), np.float64(2.0)], [0.25, 2.0]),
        ({"hard": 2}, [0.0, 2.0]),
        ((each for each in (3.0, 1.0)), [3.0, 1.0]),
        (itertools.count(1), [1.0, 2.0, 3.0]),  # its length is refused by the queue
    ],
)
def test_numbers_of_any_library_become_weights(value: Any, weights: list[float]) -> None:
    assert numbers_of(value, BINS) == weights


def raises(bins: Any, step: int, rng: random.Random) -> Any:
    raise ValueError("no bins today")


def exits(bins: Any, step: int, rng: random.Random) -> Any:
    raise SystemExit(3)


@pytest.mark.parametrize(
    ("value", "kind", "said"),
    [
        (None, "NoneType", "in returns: it returned None"),
        ("11", "str", "it returned str"),
        (1.0, "float", "it returned float"),
        (["1", 1], "str", "a weight is a number"),
        ([None, 1], "NoneType", "a weight is a number"),
        ([True, 1], "bool", "a weight is a number"),
        ([1j, 1], "complex", "a weight is a number"),
        ([10**400, 1], "int", "a weight is a number"),
        ({"medium": 1.0}, "name", "weight of 'medium', which is no bin"),
    ],
)
def test_what_are_no_weights_is_named_with_its_type(value: Any, kind: str, said: str) -> None:
    def returns(bins: Any, step: int, rng: random.Random) -> Any:
        return value

    answer = OwnCurriculum(returns, REFERENCE).answer(question())
    assert isinstance(answer, WeightsFailed)
    assert answer.kind == kind
    assert said in answer.why


@pytest.mark.parametrize(("function", "said"), [(raises, "in raises: no bins today"), (exits, "in exits: 3")])
def test_what_the_code_raises_is_named_with_its_place(function: Any, said: str) -> None:
    answer = OwnCurriculum(function, REFERENCE).answer(question())
    assert isinstance(answer, WeightsFailed)
    assert answer.kind in ("ValueError", "SystemExit")
    assert said in answer.why
    assert answer.traceback


class Stage:
    """A loop over a curriculum with two bins, whose code answers what the test says."""

    def __init__(self) -> None:
        self.drain = Drain()
        self.stats = StatsBoard(service="task_queue", instance="task_queue", started_at_s=0.0)
        self.state = CurriculumState()
        self.asked: list[WeightsQuestion] = []
        self.answers: Iterator[Weighed | WeightsFailed] = iter(())
        self.loop = WeightsLoop(
            Curriculum(["easy", "hard"], seed=0, strategy="own"),
            drain=self.drain,
            stats=self.stats,
            log=structlog.get_logger("task_queue"),
            seed=0,
            weigh=self.weigh,
            state=lambda: self.state,
            step=lambda: 7,
            keep=self.keep,
        )

    def keep(self, weights: dict[str, float]) -> None:
        self.state = CurriculumState(self.state.num_drawn, self.state.bins, weights)

    async def weigh(self, asked: WeightsQuestion) -> Weighed | WeightsFailed:
        self.asked.append(asked)
        answer = next(self.answers, None)
        if answer is None:
            self.drain.request()
            await asyncio.sleep(600.0)
            raise AssertionError
        return answer

    @property
    def failures(self) -> float:
        return self.stats.value(statistics.CURRICULUM_FAILURES)


@pytest.fixture
def stage(monkeypatch: pytest.MonkeyPatch) -> Stage:
    monkeypatch.setattr(loop, "PERIOD_S", 0.001)
    return Stage()


def test_failure_takes_the_weights_away_and_the_next_answer_brings_others(stage: Stage) -> None:
    assert stage.loop.take(Weighed([1.0, 4.0]))
    assert stage.state.weights == {"easy": 0.25, "hard": 1.0}
    assert not stage.loop.take(WeightsFailed("ValueError", "no bins today"))
    assert stage.state.weights == {}
    assert stage.loop.take(Weighed([1.0, 0.0]))
    assert stage.state.weights == {"easy": 1.0, "hard": 0.0}
    assert stage.failures == 1


def test_each_kind_of_failure_is_logged_once_and_all_are_counted(stage: Stage) -> None:
    with capture_logs() as logs:
        for _ in range(3):
            stage.loop.take(Weighed([float("nan"), 1.0]))
            stage.loop.take(Weighed([0.0, 0.0]))
            stage.loop.take(
                WeightsFailed(
                    "ValueError", "ValueError at my.py:3 in weights: x", "my.py:3 in weights", "trace"
                )
            )
    assert [each["error"] for each in logs] == [
        "its weight of bin easy is nan, and a weight is finite",
        "all of its weights are 0, so no bin can be drawn",
        "ValueError at my.py:3 in weights: x",
    ]
    assert stage.failures == 9
    label = stage.stats.snapshot(at_s=0.0).labels[statistics.CURRICULUM_FAILURE]
    assert label == "ValueError at my.py:3 in weights: x"


async def test_same_bins_are_asked_about_again_only_after_a_failure(stage: Stage) -> None:
    stage.answers = iter([WeightsFailed("deadline", "late"), Weighed([1.0, 1.0])])
    running = asyncio.create_task(stage.loop.run())
    while len(stage.asked) < 2:
        await asyncio.sleep(0.001)
    for _ in range(20):
        await asyncio.sleep(0.001)
    stage.drain.request()
    await running
    assert len(stage.asked) == 2
    assert {each.step for each in stage.asked} == {7}


async def test_bins_that_changed_are_asked_about_again(stage: Stage) -> None:
    stage.answers = iter([Weighed([1.0, 1.0]), Weighed([0.0, 1.0])])
    running = asyncio.create_task(stage.loop.run())
    while len(stage.asked) < 1:
        await asyncio.sleep(0.001)
    stage.state = CurriculumState(8, {"easy": BinState(8, 1.0)}, stage.state.weights)
    while len(stage.asked) < 2:
        await asyncio.sleep(0.001)
    stage.drain.request()
    await running
    assert stage.asked[1].bins[0] == CurriculumBin("easy", 1, 8, 1.0)
    assert stage.asked[0].seed != stage.asked[1].seed


async def test_admission_waits_for_the_first_answer_and_not_for_one_that_never_comes(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop, "FIRST_DEADLINE_S", 0.01)
    await stage.loop.first_answer()
    assert stage.state.weights == {}
    monkeypatch.setattr(loop, "FIRST_DEADLINE_S", 600.0)
    stage.answers = iter([Weighed([1.0, 1.0])])
    running = asyncio.create_task(stage.loop.run())
    await stage.loop.first_answer()
    stage.drain.request()
    await running
    assert stage.state.weights == {"easy": 1.0, "hard": 1.0}


def test_run_file_names_code_by_its_file_and_a_misspelt_name_is_refused(tmp_path: Path) -> None:
    (tmp_path / "my_curriculum.py").write_text("class Hardest: pass\n")
    own = TaskQueueConfig(curriculum="my_curriculum.py:Hardest").own_curriculum(folder=str(tmp_path))
    assert own is not None
    assert own.attribute == "Hardest"
    assert TaskQueueConfig(curriculum="learnable").own_curriculum(folder="") is None
    with pytest.raises(ConfigError, match=r"no 'learnabel' among the curricula.* name one of: learnable"):
        TaskQueueConfig(curriculum="learnabel").own_curriculum(folder="")


@pytest.mark.parametrize(
    ("code", "said"),
    [
        (
            "def weights(bins, step, rng): return [0.0 for _ in bins]",
            "gives no weights before the first reward",
        ),
        (
            "def weights(bins, step, rng): return [each.success_rate or 1 for each in bins][: 1 if step else 2]",
            r"gives no weights once there are rewards.*it returned 1 weights, and there are 2 bins",
        ),
        ("import no_such_module\nweights = 1", r"cannot be loaded.*ModuleNotFoundError at \S*own\.py:1"),
    ],
)
def test_trial_refuses_what_the_queue_could_not_draw_by(tmp_path: Path, code: str, said: str) -> None:
    (tmp_path / "own.py").write_text(code)
    reference = OwnReference("own.py:weights", str(tmp_path / "own.py"), "weights", str(tmp_path))
    with pytest.raises(ConfigError, match=said):
        tried(TrialQuestion(reference, BINS, 0))


def test_trial_accepts_a_curriculum_that_weighs_by_rates(tmp_path: Path) -> None:
    (tmp_path / "own_rates.py").write_text(
        "def weights(bins, step, rng): return {each.name: 1 - (each.success_rate or 0) for each in bins}"
    )
    reference = OwnReference("own_rates.py:weights", str(tmp_path / "own_rates.py"), "weights", str(tmp_path))
    tried(TrialQuestion(reference, BINS, 0))
