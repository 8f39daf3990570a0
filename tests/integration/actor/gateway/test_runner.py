"""Agents' programs as processes: one trajectory an episode, and the results of programs that misbehave."""

import asyncio
import dataclasses
import json
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeAlias, cast

import msgspec
import numpy as np
import pytest
from aiohttp import ClientSession

from tests.integration.actor.gateway.harness import with_config
from tests.support.broker import free_port
from tests.support.clocks import SkippingClock
from tests.support.processes import is_alive
from tests.support.service_harness import make_context, until
from tests.support.settings import make_settings
from tests.unit.actor.gateway.fakes import ScriptedEngine, group_task, version
from tidegate.actor.engines.port import EngineControl, Rollouts, Sample
from tidegate.actor.engines.token_port import Continuation
from tidegate.actor.gateway.config import HOST_VARIABLE, OPERATOR_KEY_VARIABLE, GatewayConfig
from tidegate.actor.gateway.runner import AgentRunner
from tidegate.actor.rollouts.heldout import HeldOutProblem
from tidegate.actor.rollouts.outcomes import DroppedTask, RefusedTask, RolloutResult
from tidegate.actor.rollouts.served_policy import ServedPolicy
from tidegate.actor.rollouts.time_accounting import TimeAccounting
from tidegate.catalogue import gateway as gateway_stats
from tidegate.core.conversations import conversations_of
from tidegate.core.errors import RecordError
from tidegate.core.records import Task
from tidegate.runtime.bus import Bus
from tidegate.runtime.clock import Clock
from tidegate.runtime.config import WorkloadConfig
from tidegate.runtime.stats_board import StatsBoard

pytestmark = pytest.mark.integration

EXAMPLES = Path(__file__).parents[4] / "examples"
HARNESS, WORKER = EXAMPLES / "calculator_harness.py", EXAMPLES / "calculator_worker.py"
QUESTION = "12*(3+45)-7="
STEPS = ["3+45", "12*48", "576-7"]


def calculator_policy(context: str) -> str:
    """Calls the tool for each step, one per turn, then answers with the last result."""
    num_done = context.count("<|im_start|>tool")
    if num_done < len(STEPS):
        return f'<tool_call>{{"name": "calculator", "arguments": {{"expression": "{STEPS[num_done]}"}}}}</tool_call>'
    return context.rsplit("<|im_start|>tool\n", 1)[1].partition("<|im_end|>")[0]


def question(*, num_samples: int = 1, answer: str = "569") -> Task:
    return group_task(num_samples=num_samples, prompt=QUESTION, answer=answer)


def python(code: str) -> tuple[str, ...]:
    return (sys.executable, "-c", code)


# One call by hand, for programs that need no client.
CALL_ONCE = """
import json, os, sys, time, urllib.request
body = json.dumps({"messages": [{"role": "user", "content": "hi"}]}).encode()
headers = {"Authorization": "Bearer " + os.environ["OPENAI_API_KEY"]}
url = os.environ["OPENAI_BASE_URL"] + "/chat/completions"
urllib.request.urlopen(urllib.request.Request(url, body, headers)).read()
"""


@asynccontextmanager
async def agents(
    engine: ScriptedEngine,
    config: GatewayConfig,
    folder: Path,
    *,
    num_samples: int = 1,
    stats: StatsBoard | None = None,
    clock: Clock | None = None,
    listen: str = "",
    index: int = 0,
    workload: WorkloadConfig | None = None,
    files_dir: str = "",
) -> AsyncGenerator[AgentRunner]:
    settings = msgspec.structs.replace(
        make_settings(folder, broker_url=""),
        workload=workload or WorkloadConfig(kind="text", env="calculator", num_samples=num_samples),
        files_dir=files_dir,
        listen=listen,
    )
    control = EngineControl()
    context = make_context("actor", settings, bus=cast("Bus", None), index=index)
    context = dataclasses.replace(context, stats=stats or context.stats, clock=clock or context.clock)
    runner = AgentRunner(
        context,
        config,
        engine=engine,
        control=control,
        served_policy=ServedPolicy(control, asyncio.Event()),
        time_accounting=TimeAccounting(context),
    )
    serving = asyncio.create_task(runner.serve())
    try:
        yield runner
    finally:
        runner.stop()
        runner.close()
        await serving


async def made_of(runner: AgentRunner, task: Task) -> list[RolloutResult]:
    return [made async for made in runner.run([task])]


def samples_of(made: list[RolloutResult]) -> tuple[Sample, ...]:
    [rollouts] = made
    assert isinstance(rollouts, Rollouts), rollouts
    return rollouts.samples


@pytest.fixture
def engine() -> ScriptedEngine:
    return ScriptedEngine(calculator_policy)


Told: TypeAlias = tuple[list[int], list[tuple[int, float, int]]]


def happened(engine: ScriptedEngine) -> list[Told]:
    """Each episode as the engine knows it: all of its tokens, and (position, logprob, version) of those it wrote."""
    episodes: dict[str, Told] = {}
    for request, written in engine.seen:
        versions = [span.version.step for span in written.spans() for _ in range(span.start, span.stop)]
        start = len(request.context)
        _, before = episodes.get(request.request_id.partition(".")[0], ([], []))
        chosen = [
            (start + index, float(np.float32(logprob)), versions[index])
            for index, logprob in enumerate(written.logprobs)
        ]
        everything = [*request.context, *written.tokens]
        episodes[request.request_id.partition(".")[0]] = (everything, [*before, *chosen])
    return list(episodes.values())


def told(sample: Sample) -> Told:
    """The same from its record."""
    tensors = sample.tensors
    prompt, logprobs = tensors["prompt_tokens"].tolist(), tensors["behavior_logprobs"].tolist()
    versions = [span.version.step for span in sample.spans for _ in range(span.start, span.stop)]
    positions: list[int] = np.flatnonzero(tensors["chosen"]).tolist()
    assert sample.num_steps == len(positions)
    assert not tensors["behavior_logprobs"][~tensors["chosen"]].any()
    chosen = [(len(prompt) + index, logprobs[index], versions[index]) for index in positions]
    return [*prompt, *tensors["tokens"].tolist()], chosen


async def test_unmodified_program_gives_one_trajectory_an_episode_over_a_policy_swap(
    engine: ScriptedEngine, tmp_path: Path
) -> None:
    """The first turns are written by version 3, from a fourth token on, some turns later, version 4 writes."""
    engine.version = version(3)

    def swap(written: Continuation) -> None:
        if len(engine.seen) >= 4 and len(written.tokens) == 4:
            engine.version = version(4)

    engine.wrote = swap
    config = with_config(command=("python", str(HARNESS)), reward="posted")
    async with agents(engine, config, tmp_path, num_samples=2) as runner:
        samples = samples_of(await made_of(runner, question(num_samples=2)))
    assert len(samples) == 2
    assert len(engine.seen) == 8, "two episodes of four turns"
    assert sorted(map(told, samples)) == sorted(happened(engine))
    steps = {span.version.step for sample in samples for span in sample.spans}
    assert steps == {3, 4}, "the swap fell into these episodes"
    for sample in samples:
        assert (sample.reward, sample.components) == (1.0, {"exact": 1.0})
        assert [(call.name, call.result) for call in sample.tool_calls] == [
            ("calculator", "48"),
            ("calculator", "576"),
            ("calculator", "569"),
        ]
        assert sample.completion.endswith("569")


async def test_harness_posts_no_reward_for_another_answer(engine: ScriptedEngine, tmp_path: Path) -> None:
    config = with_config(command=("python", str(HARNESS)))
    async with agents(engine, config, tmp_path) as runner:
        [sample] = samples_of(await made_of(runner, question(answer="570")))
    assert sample.reward == 0.0


async def test_program_sees_its_keys_and_little_else(
    engine: ScriptedEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BROKER_TOKEN", "secret")
    monkeypatch.setenv("AGENT_SETTING", "wanted")
    monkeypatch.setenv(OPERATOR_KEY_VARIABLE, "operator")
    seen = tmp_path / "seen.json"
    code = f"{CALL_ONCE}\nopen({str(seen)!r}, 'w').write(json.dumps([dict(os.environ), sys.argv[1:]]))"
    config = with_config(command=(*python(code), "{prompt}"), pass_env=("AGENT_SETTING",))
    async with agents(engine, config, tmp_path) as runner:
        await made_of(runner, question())
    variables, arguments = json.loads(seen.read_text())
    task, reward = json.loads(variables["TIDEGATE_TASK"]), json.loads(variables["TIDEGATE_REWARD"])
    assert task["prompt"] == QUESTION
    assert "569" not in variables["TIDEGATE_TASK"]
    assert reward["answer"] == "569"
    assert reward["key"] != variables["OPENAI_API_KEY"]
    assert variables["AGENT_SETTING"] == "wanted"
    assert arguments == [QUESTION]
    assert not {"BROKER_TOKEN", OPERATOR_KEY_VARIABLE} & variables.keys()


@pytest.mark.parametrize("ending", ["deadline", "stop", "stop while it starts"])
async def test_program_is_killed_with_its_children(
    engine: ScriptedEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ending: str
) -> None:
    """One child in the program's session, one in a session of its own, both deaf to SIGTERM."""
    pids, has_children, has_started = tmp_path / "pids", asyncio.Event(), asyncio.Event()
    start = asyncio.create_subprocess_exec

    async def started(*arguments: str, **options: Any) -> asyncio.subprocess.Process:
        """The deadline counts from here: on a loaded machine a program takes seconds to start others."""
        process = await start(*arguments, **options)
        await until(pids.exists)
        has_children.set()
        if ending == "stop while it starts":
            await asyncio.sleep(0.1)
        has_started.set()
        return process

    monkeypatch.setattr(asyncio, "create_subprocess_exec", started)
    deaf = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"
    code = f"""{CALL_ONCE}
import subprocess, signal
signal.signal(signal.SIGTERM, signal.SIG_IGN)
children = [subprocess.Popen([sys.executable, "-c", {deaf!r}], start_new_session=own) for own in (False, True)]
open({str(pids)!r} + ".part", "w").write(" ".join(str(pid) for pid in (os.getpid(), *(c.pid for c in children))))
os.rename({str(pids)!r} + ".part", {str(pids)!r})
time.sleep(600)"""
    config = with_config(
        command=python(code), episode_deadline_s=0.2 if ending == "deadline" else 600.0, kill_grace_s=0.2
    )
    async with agents(engine, config, tmp_path) as runner:
        running = asyncio.create_task(made_of(runner, question()))
        await (has_started if ending == "stop" else has_children).wait()
        if ending != "deadline":
            runner.stop()
        made = await running
    # The kernel ends a process some moments after its SIGKILL, and the runner cannot wait for these two.
    for pid in pids.read_text().split():
        await until(lambda pid=int(pid): not is_alive(pid))
    if ending != "deadline":
        assert made == [], "the task is for another actor"
    else:
        [sample] = samples_of(made)
        assert sample.reward == 0.0
        assert "killed" in sample.log


async def test_group_with_an_episode_without_reward_is_dropped_where_set(
    engine: ScriptedEngine, tmp_path: Path
) -> None:
    config = with_config(command=python(f"{CALL_ONCE}\nraise SystemExit('gave up')"), without_reward="drop")
    async with agents(engine, config, tmp_path, num_samples=2) as runner:
        [made] = await made_of(runner, question(num_samples=2))
    assert isinstance(made, DroppedTask)
    assert (made.by, made.reason) == ("failed", "failed")
    assert "gave up" in made.detail
    assert made.length > 0


async def test_task_whose_program_never_calls_is_refused_after_its_attempts(
    engine: ScriptedEngine, tmp_path: Path
) -> None:
    marks = tmp_path / "marks"
    config = with_config(
        command=python(f"open({str(marks)!r}, 'a').write('x'); raise SystemExit('no idea')"), attempts=3
    )
    async with agents(engine, config, tmp_path) as runner:
        [made] = await made_of(runner, question())
    assert isinstance(made, RefusedTask)
    assert "no idea" in str(made.error)
    assert marks.read_text() == "xxx"


async def test_task_that_the_engine_refuses_starts_no_program(engine: ScriptedEngine, tmp_path: Path) -> None:
    engine.error = RecordError("too long")
    async with agents(engine, with_config(command=("/does/not/exist",)), tmp_path) as runner:
        [made] = await made_of(runner, question())
    assert isinstance(made, RefusedTask)
    assert made.error is engine.error


async def test_question_to_an_agent_may_be_longer_than_the_models_context(
    engine: ScriptedEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def check(task: Task) -> None:
        if len(task.prompt) > 100:
            raise RecordError("too long")

    monkeypatch.setattr(engine, "check_task", check)
    long = msgspec.structs.replace(question(), prompt="x" * 1000)
    async with agents(engine, with_config(command=("/does/not/exist",)), tmp_path) as runner:
        [made] = await made_of(runner, long)
    assert isinstance(made, RefusedTask)
    assert "actor.gateway.command" in str(made.error), "its program was to be started"


async def test_missing_program_is_reported(engine: ScriptedEngine, tmp_path: Path) -> None:
    async with agents(engine, with_config(command=("/does/not/exist",)), tmp_path) as runner:
        [made] = await made_of(runner, question())
    assert isinstance(made, RefusedTask)
    assert "actor.gateway.command" in str(made.error)


@pytest.mark.parametrize("branches", ["longest", "fail"])
async def test_branches_are_dropped_with_a_count_or_cost_the_reward(tmp_path: Path, branches: Any) -> None:
    engine = ScriptedEngine(lambda context: "long reply" if "other" in context else "short")
    twice = CALL_ONCE + CALL_ONCE.replace('"hi"', '"other"')
    post = """
reward = json.loads(os.environ["TIDEGATE_REWARD"])
headers = {"Authorization": "Bearer " + reward["key"]}
urllib.request.urlopen(urllib.request.Request(reward["url"], b'{"reward": 1.0}', headers)).read()
"""
    config = with_config(command=python(twice + post), branches=branches)
    stats = StatsBoard(service="actor", instance="actor-0", started_at_s=0.0)
    async with agents(engine, config, tmp_path, stats=stats) as runner:
        [sample] = samples_of(await made_of(runner, question()))
    assert sample.completion == "long reply"
    assert sample.reward == (1.0 if branches == "longest" else 0.0)
    assert stats.value(gateway_stats.BRANCHES_DROPPED) == 1


@pytest.mark.parametrize(("most", "num_trained"), [(16, 3), (2, 2), (1, 1)])
async def test_all_branches_are_one_sample_whose_conversations_are_what_the_engine_saw(
    tmp_path: Path, most: int, num_trained: int
) -> None:
    replies = {"hi": "short", "other": "long reply", "third": "middling"}
    engine = ScriptedEngine(lambda context: next(text for word, text in replies.items() if word in context))
    calls = "".join(CALL_ONCE.replace('"hi"', f'"{word}"') for word in replies)
    config = with_config(command=python(calls), branches="all", conversations_max=most)
    stats = StatsBoard(service="actor", instance="actor-0", started_at_s=0.0)
    async with agents(engine, config, tmp_path, stats=stats) as runner:
        [sample] = samples_of(await made_of(runner, question()))
    assert sample.completion == "long reply"
    assert stats.value(gateway_stats.BRANCHES_TRAINED) == num_trained - 1
    assert stats.value(gateway_stats.BRANCHES_DROPPED) == 3 - num_trained
    seen = [([*request.context], [*written.tokens], [*written.logprobs]) for request, written in engine.seen]
    longest = sorted(seen, key=lambda call: -len(call[1]))[:num_trained]
    found = [
        (
            sample.tensors["prompt_tokens"][part.prompt].tolist(),
            sample.tensors["tokens"][part.tokens].tolist(),
            sample.tensors["behavior_logprobs"][part.tokens].tolist(),
        )
        for part in conversations_of(sample.tensors)
    ]
    assert [call[:2] for call in found] == [call[:2] for call in longest]
    np.testing.assert_allclose(
        np.concatenate([call[2] for call in found]), np.concatenate([call[2] for call in longest])
    )
    assert sample.num_steps == sum(len(tokens) for _, tokens, _ in longest)


async def test_agents_over_http_claim_tasks_and_end_them(
    engine: ScriptedEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(OPERATOR_KEY_VARIABLE, "operator")
    config = with_config(command=(), port=free_port(), idle_s=600.0, episode_deadline_s=6000.0)
    clock = SkippingClock()
    async with (
        agents(engine, config, tmp_path, num_samples=2, clock=clock) as runner,
        ClientSession() as session,
    ):
        running = asyncio.create_task(made_of(runner, question(num_samples=2)))
        await until(lambda: bool(runner.server.address) and runner.num_open == 2)
        base = f"http://{runner.server.address}"

        async def post(url: str, key: str, body: Any = None) -> Any:
            async with session.post(url, json=body, headers={"Authorization": f"Bearer {key}"}) as response:
                assert response.status == 200, await response.text()
                return await response.json()

        given = [await post(f"{base}/tidegate/episodes", "operator") for _ in range(2)]
        assert given[0]["episode_id"] != given[1]["episode_id"]
        assert given[0]["task"]["seed"] != given[1]["task"]["seed"]
        hello = {"messages": [{"role": "user", "content": "hello"}]}
        for one in given:
            await post(f"{one['base_url']}/chat/completions", one["api_key"], hello)
        # One gets a reward, the other's agent stays silent.
        await post(given[0]["reward_url"], given[0]["reward_key"], {"reward": 0.5, "log": "half"})
        clock.skipped_s += 601.0
        samples = samples_of(await running)
    assert sorted((sample.reward or 0.0, "idle" in sample.log) for sample in samples) == [
        (0.0, True),
        (0.5, False),
    ]


async def test_agent_in_a_cluster_is_sent_to_the_actor_that_has_its_episode(
    engine: ScriptedEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(OPERATOR_KEY_VARIABLE, "operator")
    monkeypatch.setenv(HOST_VARIABLE, "127.0.0.1")  # a pod's address
    port = free_port()
    config = with_config(command=(), host="0.0.0.0", port=port)
    async with (
        agents(engine, config, tmp_path, listen="0.0.0.0:7700", index=1_850_000_000) as runner,
        ClientSession() as session,
    ):
        running = asyncio.create_task(made_of(runner, question()))
        await until(lambda: bool(runner.server.address) and runner.num_open == 1)
        # Asked for by the name of all actors, as a Service has one.
        headers = {"Authorization": "Bearer operator", "Host": f"t-gateway:{port}"}
        async with session.post(f"http://127.0.0.1:{port}/tidegate/episodes", headers=headers) as response:
            given = await response.json()
        assert given["base_url"] == f"http://127.0.0.1:{port}/v1"
        assert given["reward_url"].startswith(f"http://127.0.0.1:{port}/tidegate/episodes/")
        async with session.delete(
            given["reward_url"].removesuffix("/reward"),
            headers={"Authorization": f"Bearer {given['reward_key']}"},
        ) as response:
            assert response.status == 200
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def test_worker_holds_many_episodes_over_http(
    engine: ScriptedEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(OPERATOR_KEY_VARIABLE, "operator")
    port = free_port()
    worker = await asyncio.create_subprocess_exec(
        sys.executable, str(WORKER), f"http://127.0.0.1:{port}", "2", stderr=asyncio.subprocess.DEVNULL
    )
    try:
        async with agents(engine, with_config(command=(), port=port), tmp_path, num_samples=3) as runner:
            samples = samples_of(await made_of(runner, question(num_samples=3)))
    finally:
        worker.kill()
        await worker.wait()
    assert [sample.reward for sample in samples] == [1.0] * 3
    assert [len(sample.tool_calls) for sample in samples] == [3] * 3


async def test_task_that_no_agent_claims_is_refused(engine: ScriptedEngine, tmp_path: Path) -> None:
    config = with_config(command=(), port=free_port(), claim_deadline_s=0.05)
    async with agents(engine, config, tmp_path) as runner:
        [made] = await made_of(runner, question())
    assert isinstance(made, RefusedTask)
    assert "No agent came" in str(made.error)
    assert runner.num_open == 0


async def test_evaluation_is_answered_by_agents_under_one_policy(
    engine: ScriptedEngine, tmp_path: Path
) -> None:
    problems = [HeldOutProblem("a", QUESTION, "569"), HeldOutProblem("b", QUESTION, "570")]
    async with agents(engine, with_config(command=("python", str(HARNESS))), tmp_path) as runner:
        completed = await runner.complete(question(), problems)
    assert completed.rewards == [1.0, 0.0]
    assert completed.version == version(0)
