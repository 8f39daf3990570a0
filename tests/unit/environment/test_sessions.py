"""The table of sessions: bounded, swept, and isolated from failures of environments."""

import asyncio
import threading
import time

import pytest

from tests.support.clocks import HeldClock
from tidegate.core.errors import (
    BackpressureError,
    ConflictError,
    DeadlineError,
    NotFoundError,
    RecordError,
    TidegateError,
)
from tidegate.environment.conversations.port import ToolUse
from tidegate.environment.session_envs import SessionVerdict, StepOutcome
from tidegate.environment.sessions import SessionLimits, SessionTable
from tidegate.environment.state import AnsweredProblem
from tidegate.environment.tasks.port import Problem, Score

PROBLEM = Problem("p", "", "", "all")


class FakeEnv:
    """Counts its steps; the action controls its behaviour."""

    def __init__(self, env_id: str) -> None:
        if env_id == "unknown":
            raise NotFoundError("no such environment")
        self.num_steps = 0
        self.closed = False
        self.release = threading.Event()
        self.started = threading.Event()
        self.deterministic = env_id != "chancy"
        self.problem = PROBLEM
        self._starts_late = env_id == "late"

    def reset(self, *, seed: int, problem: Problem | None) -> str:
        if self._starts_late:
            self.started.set()
            assert self.release.wait(60)
        self.problem = problem or PROBLEM
        return f"{seed}{self.problem.prompt}"

    def step(self, action: str) -> StepOutcome:
        match action:
            case "bad":
                raise RecordError("no action")
            case "crash":
                raise ValueError("a defect")
            case "tool":
                self.started.set()
                return StepOutcome(
                    "4",
                    0.0,
                    terminated=False,
                    truncated=False,
                    tools=(ToolUse("add", "2+2", "4"),),
                    delay_s=7.0,
                )
            case "judge":
                verdict = SessionVerdict(
                    AnsweredProblem(self.problem, "all of it"), Score(0.5, {"exact": 0.5}, "half")
                )
                return StepOutcome("", 0.5, terminated=True, truncated=False, verdict=verdict)
            case "hang":
                self.started.set()
                assert self.release.wait(60)
            case _:
                pass
        self.num_steps += 1
        return StepOutcome(str(self.num_steps), 1.0, terminated=action == "end", truncated=action == "cut")

    def close(self) -> None:
        self.closed = True


class Table:
    """A session table over fake environments, with the clock and the environments at hand."""

    def __init__(self, *, max_sessions: int = 2, deadline_s: float = 60.0) -> None:
        self.clock = HeldClock()
        self.envs: list[FakeEnv] = []
        limits = SessionLimits(max_sessions=max_sessions, idle_s=60.0, deadline_s=deadline_s)
        self.sessions = SessionTable(self.make, limits, self.clock)

    def make(self, env_id: str) -> FakeEnv:
        env = FakeEnv(env_id)
        self.envs.append(env)
        return env


async def test_sessions_are_stepped_independently() -> None:
    table = Table()
    (first, observation), (second, _) = (
        await table.sessions.open("a", seed=5),
        await table.sessions.open("a", seed=6),
    )
    assert observation == "5"
    assert first != second
    await table.sessions.step(first, action="go")
    assert (await table.sessions.step(first, action="go")).observation == "2"
    assert (await table.sessions.step(second, action="go")).observation == "1"


async def test_full_table_refuses_until_a_session_closes() -> None:
    table = Table(max_sessions=1)
    session_id, _ = await table.sessions.open("a", seed=0)
    with pytest.raises(BackpressureError, match="All 1 sessions are taken"):
        await table.sessions.open("a", seed=1)
    await table.sessions.close(session_id)
    await table.sessions.close(session_id)
    assert table.envs[0].closed
    await table.sessions.open("a", seed=1)
    assert table.sessions.refused_total == 1


@pytest.mark.parametrize("last", ["end", "cut"])
async def test_episode_that_ends_frees_its_slot(last: str) -> None:
    table = Table(max_sessions=1)
    session_id, _ = await table.sessions.open("a", seed=0)
    outcome = await table.sessions.step(session_id, action=last)
    assert outcome.terminated or outcome.truncated
    assert table.sessions.num_open == 0
    with pytest.raises(NotFoundError, match="no session"):
        await table.sessions.step(session_id, action="go")


async def test_idle_session_is_swept_and_a_used_one_stays() -> None:
    table = Table()
    idle, _ = await table.sessions.open("a", seed=0)
    used, _ = await table.sessions.open("a", seed=0)
    table.clock.now += 59.0
    await table.sessions.step(used, action="go")
    table.clock.now += 2.0
    assert await table.sessions.sweep() == 1
    assert await table.sessions.sweep() == 0
    assert [env.closed for env in table.envs] == [True, False]
    with pytest.raises(NotFoundError, match="it was idle for too long"):
        await table.sessions.step(idle, action="go")
    await table.sessions.step(used, action="go")


async def test_unknown_environment_takes_no_slot() -> None:
    table = Table(max_sessions=1)
    with pytest.raises(NotFoundError, match="no such environment"):
        await table.sessions.open("unknown", seed=0)
    await table.sessions.open("a", seed=0)


async def test_malformed_action_leaves_the_session_as_it_was() -> None:
    table = Table()
    session_id, _ = await table.sessions.open("a", seed=0)
    with pytest.raises(RecordError):
        await table.sessions.step(session_id, action="bad")
    assert (await table.sessions.step(session_id, action="go")).observation == "1"


async def test_environment_that_crashes_ends_only_its_session() -> None:
    table = Table()
    crashing, _ = await table.sessions.open("a", seed=0)
    other, _ = await table.sessions.open("a", seed=0)
    with pytest.raises(TidegateError, match="a defect"):
        await table.sessions.step(crashing, action="crash")
    assert table.sessions.num_open == 1
    await table.sessions.step(other, action="go")


async def test_step_that_hangs_ends_at_its_deadline_and_frees_its_slot() -> None:
    # Long enough for the reset on a loaded machine.
    table = Table(deadline_s=2.0)
    session_id, _ = await table.sessions.open("a", seed=0)
    with pytest.raises(DeadlineError, match="within 2 s"):
        await table.sessions.step(session_id, action="hang")
    assert table.sessions.num_open == 0
    table.envs[0].release.set()


async def test_calls_of_one_session_take_turns() -> None:
    table = Table()
    session_id, _ = await table.sessions.open("a", seed=0)
    outcomes = await asyncio.gather(*(table.sessions.step(session_id, action="go") for _ in range(8)))
    assert sorted(int(outcome.observation) for outcome in outcomes) == list(range(1, 9))


async def test_stopping_closes_every_environment() -> None:
    table = Table()
    await table.sessions.open("a", seed=0)
    await table.sessions.open("a", seed=0)
    await table.sessions.close_all()
    assert all(env.closed for env in table.envs)
    assert table.sessions.num_open == 0


async def test_replay_leads_to_the_same_episode_and_waits_for_no_tool(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    waits = no_waiting(monkeypatch)
    table = Table()
    problem = Problem("q", " asked", "", "all")
    session_id, observation = await table.sessions.open("a", seed=5, problem=problem, actions=["go", "tool"])
    assert observation == "4"
    assert (await table.sessions.step(session_id, action="go")).observation == "2"
    assert waits == [0.0]
    _, opening = await table.sessions.open("a", seed=5, problem=problem)
    assert opening == "5 asked"


async def test_tools_take_their_injected_latency_and_their_calls_are_reported(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    waits = no_waiting(monkeypatch)
    table = Table()
    session_id, _ = await table.sessions.open("a", seed=5)
    step = await table.sessions.step(session_id, action="tool")
    assert waits == [7.0]
    [call] = step.tool_calls
    assert (call.name, call.arguments, call.result) == ("add", "2+2", "4")


@pytest.mark.parametrize("last", ["end", "cut"])
async def test_replay_that_ends_the_episode_is_refused_and_holds_no_slot(last: str) -> None:
    table = Table(max_sessions=1)
    with pytest.raises(ConflictError, match="Action 1 of the replay ended the episode"):
        await table.sessions.open("a", seed=0, actions=["go", last, "go"])
    assert table.sessions.num_open == 0
    assert table.envs[0].closed


@pytest.mark.parametrize(("env_id", "reported"), [("a", False), ("chancy", True)])
async def test_log_reports_a_replay_with_nondeterministic_tools(env_id: str, reported: bool) -> None:
    table = Table()
    fresh, _ = await table.sessions.open(env_id, seed=0)
    again, _ = await table.sessions.open(env_id, seed=0, actions=["go"])
    assert "replayed" not in (await table.sessions.step(fresh, action="judge")).log
    assert (
        "first 1 turns were replayed" in (await table.sessions.step(again, action="judge")).log
    ) == reported


async def test_reward_of_a_text_episode_is_what_the_verifiers_make_of_its_verdict() -> None:
    table = Table()
    asked: list[SessionVerdict] = []

    async def judged(verdict: SessionVerdict) -> Score:
        asked.append(verdict)
        return Score(0.9, {"exact": 0.5, "judge": 1.0}, "liked")

    sessions = SessionTable(
        table.make, SessionLimits(max_sessions=1, idle_s=60.0, deadline_s=60.0), table.clock, reward=judged
    )
    session_id, _ = await sessions.open("a", seed=0)
    step = await sessions.step(session_id, action="judge")
    assert (step.reward, step.components, step.log) == (0.9, {"exact": 0.5, "judge": 1.0}, "liked")
    assert asked[0].answer.completion == "all of it"


async def test_session_ends_when_its_caller_disconnects_in_a_step() -> None:
    table = Table()
    session_id, _ = await table.sessions.open("a", seed=0)
    step = asyncio.create_task(table.sessions.step(session_id, action="hang"))
    assert await asyncio.to_thread(table.envs[0].started.wait, 60)
    step.cancel()
    with pytest.raises(asyncio.CancelledError):
        await step
    assert table.sessions.num_open == 0
    assert not table.envs[0].closed, "its step goes on"
    table.envs[0].release.set()
    await until_closed(table.envs[0])


async def test_environment_that_started_for_a_caller_who_had_gone_is_closed() -> None:
    table = Table()
    opening = asyncio.create_task(table.sessions.open("late", seed=0))
    while not table.envs:
        await asyncio.sleep(0.01)
    assert await asyncio.to_thread(table.envs[0].started.wait, 60)
    opening.cancel()
    with pytest.raises(asyncio.CancelledError):
        await opening
    assert table.sessions.num_open == 0
    table.envs[0].release.set()
    await until_closed(table.envs[0])


async def test_environment_whose_tools_are_waited_for_is_closed_when_its_caller_goes() -> None:
    table = Table()
    session_id, _ = await table.sessions.open("a", seed=0)
    step = asyncio.create_task(table.sessions.step(session_id, action="tool"))
    while not table.envs[0].started.is_set():
        await asyncio.sleep(0.01)
    step.cancel()
    with pytest.raises(asyncio.CancelledError):
        await step
    await until_closed(table.envs[0])


@pytest.mark.parametrize("num_turns", range(4))
async def test_caller_who_goes_at_the_moment_of_the_answer_ends_the_session_as_well(num_turns: int) -> None:
    table = Table()
    session_id, _ = await table.sessions.open("a", seed=0)
    step = asyncio.create_task(table.sessions.step(session_id, action="tool"))
    await asyncio.sleep(0)
    assert table.envs[0].started.wait(60)
    # The loop stops here, so that the answer is there and was not read yet; a slow thread makes the test weaker.
    time.sleep(0.05)  # noqa: ASYNC251
    for _ in range(num_turns):
        await asyncio.sleep(0)
    step.cancel()
    with pytest.raises(asyncio.CancelledError):
        await step
    assert table.sessions.num_open == 0
    await until_closed(table.envs[0])


async def until_closed(env: FakeEnv) -> None:
    async with asyncio.timeout(60):
        while not env.closed:
            await asyncio.sleep(0.01)


def no_waiting(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The waits for tools, which end at once."""
    waits: list[float] = []

    async def sleep(delay_s: float) -> None:
        waits.append(delay_s)

    monkeypatch.setattr("tidegate.environment.sessions.asyncio.sleep", sleep)
    return waits
