"""Rewards of several verifiers: weighted, kept by name, retries, and the effect of a failure."""

import asyncio

import pytest
import structlog

from tidegate.catalogue import environment as statistics
from tidegate.core.errors import RecordError, TidegateError, UnavailableError
from tidegate.environment.config import EnvironmentConfig
from tidegate.environment.failures import FailureReports
from tidegate.environment.judgements import VerifierFailed
from tidegate.environment.rewards import Rewards
from tidegate.environment.scoring import Scorer
from tidegate.environment.session_envs import SessionVerdict
from tidegate.environment.state import AnsweredProblem, ScoreCache
from tidegate.environment.tasks.port import Problem, Score
from tidegate.environment.tasks.registry import get_task
from tidegate.environment.verifiers.port import VerifierBusyError
from tidegate.environment.verifiers.settings import ClassifierSettings
from tidegate.runtime.clock import SystemClock
from tidegate.runtime.stats_board import StatsBoard

PROBLEM = Problem("47+38", "47+38=", "085", "carries-1")
BOARDS: dict[Rewards, StatsBoard] = {}
RIGHT, WRONG = AnsweredProblem(PROBLEM, "085"), AnsweredProblem(PROBLEM, "084")


class Scripted:
    """A verifier that follows a script; a number is a score."""

    def __init__(self, *script: float | Exception) -> None:
        self.script = list(script)
        self.asked: list[str] = []

    async def start(self) -> None:
        """Ready."""

    async def score(self, problem: Problem, completion: str) -> Score:
        self.asked.append(completion)
        match self.script.pop(0):
            case Exception() as error:
                raise error
            case reward:
                return Score(reward, {"raw": 10 * reward}, f"{reward}")

    async def close(self) -> None:
        """Nothing is held."""


def rewards(weights: dict[str, float], verifiers: dict[str, Scripted], **fields: object) -> Rewards:
    sections = {name: ClassifierSettings(path="unused") for name in verifiers}
    config = EnvironmentConfig(rewards=weights, verifiers=dict(sections), **fields)  # pyright: ignore[reportArgumentType]
    scorer = Scorer(get_task, ScoreCache(num_max=16), SystemClock(), deadline_s=5.0)
    stats = StatsBoard(service="environment", instance="environment-0", started_at_s=0.0)
    reports = FailureReports(stats, structlog.get_logger("test"), on_error=config.on_error)
    made = Rewards(scorer, verifiers, config, reports, seed=0)
    BOARDS[made] = stats
    return made


def failures_of(made: Rewards) -> float:
    return BOARDS[made].value(statistics.VERIFIER_FAILURES)


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The waits between attempts and for injected latency, which end at once."""
    noted: list[float] = []

    async def sleep(delay_s: float) -> None:
        noted.append(delay_s)

    monkeypatch.setattr(asyncio, "sleep", sleep)
    return noted


async def test_reward_is_the_weighted_sum_and_every_part_is_kept() -> None:
    judge, safe = Scripted(0.5), Scripted(0.25)
    made = rewards({"task": 1.0, "judge": 0.4, "safe": 0.0}, {"judge": judge, "safe": safe})
    [score] = await made.judge("arithmetic", [RIGHT])
    assert isinstance(score, Score)
    assert score.reward == pytest.approx(1.2)
    assert score.components == {
        "exact": 1.0, "digits": 1.0, "task": 1.0, "judge": 0.5, "judge.raw": 5.0, "safe": 0.25, "safe.raw": 2.5,
    }  # fmt: skip
    assert score.log == "task: solved | judge: 0.5 | safe: 0.25"


async def test_task_without_a_weight_is_not_scored() -> None:
    [score] = await rewards({"judge": 2.0}, {"judge": Scripted(0.5)}).judge("nowhere", [RIGHT])
    assert isinstance(score, Score)
    assert (score.reward, score.components) == (1.0, {"judge": 0.5, "judge.raw": 5.0})


async def test_equal_answers_are_scored_once_and_cached_ones_never_again() -> None:
    judge = Scripted(0.5, 0.7)
    made = rewards({"judge": 1.0}, {"judge": judge})
    first = await made.judge("arithmetic", [RIGHT, WRONG, RIGHT])
    assert [score.reward for score in first if isinstance(score, Score)] == [0.5, 0.7, 0.5]
    assert await made.judge("arithmetic", [WRONG, RIGHT]) == [first[1], first[0]]
    assert judge.asked == ["085", "084"]
    assert made.cache_hits_total == 2


async def test_transient_failure_is_retried_with_growing_waits(waits: list[float]) -> None:
    busy = VerifierBusyError("busy", retry_after_s=7.0)
    judge = Scripted(UnavailableError("away"), busy, UnavailableError("away"), 0.5)
    made = rewards({"judge": 1.0}, {"judge": judge}, score_attempts=4)
    [score] = await made.judge("arithmetic", [RIGHT])
    assert isinstance(score, Score)
    for waited_s, least_s, most_s in zip(waits, (0.15, 7.3, 0.6), (0.3, 7.6, 1.2), strict=True):
        assert least_s <= waited_s <= most_s
    assert failures_of(made) == 0


@pytest.mark.parametrize("error", [RecordError("no grade"), ValueError("a defect")])
async def test_permanent_failure_is_not_retried(error: Exception, waits: list[float]) -> None:
    judge = Scripted(error, 0.5)
    [failed] = await rewards({"judge": 1.0}, {"judge": judge}).judge("arithmetic", [RIGHT])
    assert isinstance(failed, VerifierFailed)
    assert (len(judge.asked), waits) == (1, [])


async def test_attempts_are_bounded_also_with_a_busy_verifier(waits: list[float]) -> None:
    judge = Scripted(*[VerifierBusyError("busy", retry_after_s=9_999.0)] * 5)
    [failed] = await rewards({"judge": 1.0}, {"judge": judge}, score_attempts=3).judge("arithmetic", [RIGHT])
    assert isinstance(failed, VerifierFailed)
    assert "busy" in failed.why
    assert (len(judge.asked), len(waits)) == (3, 2)
    assert all(60.0 <= waited_s <= 60.6 for waited_s in waits)


@pytest.mark.parametrize("on_error", ["zero", "drop"])
async def test_failed_part_fails_the_whole_unless_partial_credit_is_declared(on_error: str) -> None:
    made = rewards(
        {"task": 1.0, "judge": 1.0}, {"judge": Scripted(RecordError("no grade"), 0.5)}, on_error=on_error
    )
    [failed] = await made.judge("arithmetic", [RIGHT])
    assert isinstance(failed, VerifierFailed)
    assert failed.why == "judge: no grade."
    assert failures_of(made) == 1
    [score] = await made.judge("arithmetic", [RIGHT])
    assert isinstance(score, Score), "a failure is not kept"


async def test_failed_part_counts_as_the_declared_credit_and_the_others_as_they_are() -> None:
    judge, safe = Scripted(RecordError("no grade")), Scripted(0.5)
    made = rewards(
        {"task": 1.0, "judge": 0.5, "safe": 1.0},
        {"judge": judge, "safe": safe},
        on_error="partial",
        partial_credit=0.3,
    )
    [score] = await made.judge("arithmetic", [RIGHT])
    assert isinstance(score, Score)
    assert score.reward == pytest.approx(1.0 + 0.5 * 0.3 + 0.5)
    assert score.components["judge"] == 0.3
    assert "judge: failed and counts as 0.3: no grade." in score.log


async def test_failed_task_alone_counts_as_the_declared_credit() -> None:
    made = rewards({}, {}, on_error="partial", partial_credit=0.25)
    [score] = await made.judge("arithmetic", [AnsweredProblem(Problem("p", "", "1", "b"), "2")])
    assert isinstance(score, Score)
    assert score.reward == 0.0, "a wrong answer is no failure"
    [score] = await made.judge("sums", [RIGHT])
    assert isinstance(score, Score)
    [failed] = await made.judge("countdown", [AnsweredProblem(Problem("p", "", "no expression", "b"), "2")])
    assert isinstance(failed, Score)
    assert (failed.reward, failed.components) == (0.25, {"task": 0.25})


async def test_episode_is_rewarded_by_its_task_and_by_verifiers_that_read_all_of_it() -> None:
    judge = Scripted(0.5)
    made = rewards({"task": 1.0, "judge": 1.0}, {"judge": judge})
    verdict = SessionVerdict(AnsweredProblem(PROBLEM, "[4+3]\n7\n085"), Score(0.8, {"exact": 0.0}, "nearly"))
    score = await made.of_episode(verdict)
    assert score.reward == pytest.approx(1.3)
    assert score.components["exact"] == 0.0
    assert judge.asked == ["[4+3]\n7\n085"]


async def test_failed_episode_is_zero_or_an_error_as_declared() -> None:
    verdict = SessionVerdict(RIGHT, Score(1.0, {}, ""))

    def made(on_error: str) -> Rewards:
        return rewards(
            {"task": 1.0, "judge": 1.0}, {"judge": Scripted(RecordError("no grade"))}, on_error=on_error
        )

    score = await made("zero").of_episode(verdict)
    assert (score.reward, "no grade" in score.log) == (0.0, True)
    with pytest.raises(TidegateError, match="on_error is drop"):
        await made("drop").of_episode(verdict)


async def test_injected_latency_is_the_same_for_the_same_key_and_longer_for_more_samples(
    waits: list[float],
) -> None:
    def made() -> Rewards:
        return rewards({}, {}, score_latency="lognormal:1:2")

    keys = [f"task-{number}" for number in range(200)]
    delays = [made().delay_s(key, num=1) for key in keys[:20]]
    assert delays == [made().delay_s(key, num=1) for key in keys[:20]]
    slow = made()
    assert all(slow.delay_s(key, num=8) > slow.delay_s(key, num=1) for key in keys)
    mean_s = sum(slow.delay_s(key, num=1) for key in keys) / len(keys)
    assert 0.5 < mean_s < 2.0
    await slow.of_episode(SessionVerdict(RIGHT, Score(1.0, {}, "")))
    assert waits == [slow.delay_s(PROBLEM.prompt_id, "085", num=1)]
    assert rewards({}, {}).delay_s("any", num=8) == 0.0
