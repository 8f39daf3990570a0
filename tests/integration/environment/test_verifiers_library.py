"""An environment of `verifiers` as a run plays it: its problems, and its episodes through the gateway.

In processes that have either a fake of the library, or the library itself where this Python has it.
"""

import asyncio
import itertools
import json
import os
import signal
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from importlib.util import find_spec
from pathlib import Path

import msgspec
import pytest

from tests.integration.actor.gateway.harness import with_config
from tests.integration.actor.gateway.test_runner import agents, made_of, samples_of
from tests.support.service_harness import until
from tests.unit.actor.gateway.fakes import ScriptedEngine, group_task
from tests.unit.launch.test_run_file import TEXT
from tidegate.actor.gateway import workers
from tidegate.actor.gateway.runner import AgentRunner
from tidegate.actor.rollouts.outcomes import RefusedTask
from tidegate.core.errors import ConfigError, UnavailableError
from tidegate.core.ids import PromptId
from tidegate.core.records import Task
from tidegate.environment.libraries.names import library_task_of
from tidegate.environment.own_code.rows import RowsQuestion, write_rows
from tidegate.launch.play_check import play_run
from tidegate.launch.run_parsing import parse_plan
from tidegate.runtime.config import WorkloadConfig
from tidegate.runtime.own_code.references import OwnReference
from tidegate.runtime.prompt_sources import EnvShare

pytestmark = [pytest.mark.integration, pytest.mark.slow]

HERE = str(Path(__file__).parent)
FAKE = str(Path(__file__).parents[2] / "support" / "fake_verifiers")
WORKLOAD = WorkloadConfig(kind="text", env="verifiers:my-verse", env_kwargs={"num_rows": 40}, num_samples=2)
LIBRARIES = [
    pytest.param(FAKE, id="fake"),
    pytest.param(
        "",
        id="library",
        marks=[
            pytest.mark.extended,
            pytest.mark.skipif(find_spec("verifiers") is None, reason="needs the extra verifiers"),
        ],
    ),
]


def reference_of(workload: WorkloadConfig, monkeypatch: pytest.MonkeyPatch, library: str) -> OwnReference:
    """As the start of a run finds it."""
    if library:
        monkeypatch.setattr(sys, "path", [library, *sys.path])
    found = library_task_of(workload, folder=HERE)
    assert found is not None
    return found


def rows_of(reference: OwnReference, folder: Path, *, library: str) -> dict[str, list[dict[str, str]]]:
    question = RowsQuestion(reference, folder=str(folder), seed=0, num_demonstrations=8)
    write_rows(question, environ={**os.environ, "PYTHONPATH": library}, deadline_s=250.0)
    return {
        path.stem: [json.loads(line) for line in path.read_text().splitlines()]
        for path in folder.glob("*.jsonl")
    }


@asynccontextmanager
async def playing(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    *,
    library: str,
    reply: str = "",
    engine: ScriptedEngine | None = None,
    workload: WorkloadConfig = WORKLOAD,
    **fields: object,
) -> AsyncGenerator[AgentRunner]:
    """``reply``: to every call, where ``engine`` does not say more. ``fields``: of the gateway's section."""
    monkeypatch.setenv("PYTHONPATH", library)
    config = with_config(
        command=(),
        workers=1,
        pass_env=("PYTHONPATH",),
        sampling="override",
        unknown_fields="ignore",
        # On a busy machine a worker takes minutes to start.
        claim_deadline_s=250.0,
        idle_s=250.0,
        **fields,
    )
    engine = engine or ScriptedEngine(lambda context: reply)
    async with agents(engine, config, folder, num_samples=2, workload=workload, files_dir=HERE) as runner:
        keeping = asyncio.create_task(runner.keep_workers())
        try:
            yield runner
        finally:
            runner.stop()
            await keeping


@pytest.mark.parametrize("library", LIBRARIES)
def test_rows_of_the_dataset_are_the_problems_and_a_fifth_is_held_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, library: str
) -> None:
    rows = rows_of(reference_of(WORKLOAD, monkeypatch, library), tmp_path, library=library)
    assert len(rows["train"]) + len(rows["heldout"]) == 40
    assert 2 <= len(rows["heldout"]) <= 14
    assert rows["demonstrations"] == []
    row = next(each for each in rows["train"] if each["prompt_id"] == "train-0")
    assert json.loads(row["prompt"]) == [{"role": "user", "content": "say 0"}]
    assert row["answer"] == "0"


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize(("reply", "reward"), [("7", 1.0), ("eight", 0.0)])
async def test_an_episode_has_the_reward_of_the_environment_and_its_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, library: str, reply: str, reward: float
) -> None:
    task = group_task(num_samples=2, prompt_id=PromptId("train-7"), env_id=WORKLOAD.env)
    async with playing(tmp_path, monkeypatch, library=library, reply=reply) as runner:
        samples = samples_of(await made_of(runner, task))
    assert [each.reward for each in samples] == [reward, reward]
    assert samples[0].components["exact"] == reward
    assert samples[0].components["length"] == len(reply)


@pytest.mark.parametrize("library", LIBRARIES)
async def test_one_worker_plays_each_of_several_environments_by_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, library: str
) -> None:
    several = WorkloadConfig(
        kind="text",
        envs=(
            EnvShare(WORKLOAD.env, 2.0, "few", {"num_rows": 10}),
            EnvShare(WORKLOAD.env, 1.0, "many", {"num_rows": 40}),
        ),
        num_samples=1,
    )
    asked = {"few": "train-7", "many": "train-30"}
    async with playing(tmp_path, monkeypatch, library=library, reply="7", workload=several) as runner:
        found = {
            name: samples_of(
                await made_of(runner, group_task(name, prompt_id=PromptId(prompt_id), env_id=name))
            )[0]
            for name, prompt_id in asked.items()
        }
    assert found["few"].reward == 1.0
    # Its row 30 exists in this one alone: the other has ten.
    assert (found["many"].reward, found["many"].components["exact"]) == (0.0, 0.0)


def replies(*said: str) -> ScriptedEngine:
    """An engine that answers each call with the next of ``said``, and then begins again."""
    left = itertools.cycle(said)
    return ScriptedEngine(lambda _context: next(left))


def verses_task(task_id: str = "task-1", *, num_samples: int) -> Task:
    return group_task(
        task_id, num_samples=num_samples, prompt_id=PromptId("train-7"), env_id="verifiers:my-verses"
    )


def verses(*, num_samples: int, **arguments: object) -> WorkloadConfig:
    return WorkloadConfig(
        kind="text", env="verifiers:my-verses", env_kwargs=arguments, num_samples=num_samples
    )


def scoring_in(hold: Path) -> list[int]:
    """The processes that met the file ``hold`` when they scored a group."""
    path = Path(f"{hold}.pids")
    return [int(line) for line in path.read_text().splitlines()] if path.exists() else []


@pytest.mark.parametrize("library", LIBRARIES)
async def test_a_rubric_that_compares_episodes_scores_those_of_a_group_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, library: str
) -> None:
    said, workload = replies("7", "seven", "no"), verses(num_samples=3)
    async with playing(tmp_path, monkeypatch, library=library, engine=said, workload=workload) as runner:
        samples = samples_of(await made_of(runner, verses_task(num_samples=3)))
    assert {each.completion: each.reward for each in samples} == {"7": 1.0, "seven": 2.0, "no": 0.0}
    assert [each.components["compared"] for each in samples] == [3.0] * 3


async def test_a_rubric_that_compares_sees_the_episodes_that_ended_and_the_others_have_no_reward(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said, workload = replies("break", "error", "7"), verses(num_samples=3)
    async with playing(tmp_path, monkeypatch, library=FAKE, engine=said, workload=workload) as runner:
        samples = {
            each.completion: each for each in samples_of(await made_of(runner, verses_task(num_samples=3)))
        }
    assert {name: each.reward for name, each in samples.items()} == {"break": 0.0, "error": 0.0, "7": 1.0}
    # The library's rubrics see an episode of which the environment reports an error, as its own trainer's do.
    assert samples["7"].components["compared"] == 2.0
    assert "RuntimeError" in samples["break"].log
    assert "ToolError: no server" in samples["error"].log


async def test_a_worker_killed_in_the_middle_of_a_group_costs_an_attempt_and_no_reward(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hold = tmp_path / "hold"
    hold.touch()
    said, workload = replies("7", "no"), verses(num_samples=2, hold=str(hold))
    async with playing(tmp_path, monkeypatch, library=FAKE, engine=said, workload=workload) as runner:
        scoring = asyncio.create_task(made_of(runner, verses_task(num_samples=2)))
        await until(lambda: bool(scoring_in(hold)))
        os.kill(scoring_in(hold)[0], signal.SIGKILL)
        hold.unlink()
        [refused] = await scoring
        assert isinstance(refused, RefusedTask)
        assert isinstance(refused.error, UnavailableError)
        assert "ended before it scored" in str(refused.error)
        # As after its redelivery.
        samples = samples_of(await made_of(runner, verses_task(num_samples=2)))
        assert runner.num_open == 0
    assert sorted(each.reward or 0.0 for each in samples) == [1.0, 2.0]


async def test_a_group_that_is_larger_than_the_gateway_ends_its_workers_with_the_setting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workers, "EARLY_ENDS_MAX", 1)
    monkeypatch.setenv("PYTHONPATH", FAKE)
    config = with_config(command=(), workers=1, pass_env=("PYTHONPATH",), episodes_max=2)
    async with agents(
        replies("7"), config, tmp_path, workload=verses(num_samples=3), files_dir=HERE
    ) as runner:
        making = asyncio.create_task(made_of(runner, verses_task(num_samples=3)))
        with pytest.raises(UnavailableError, match=r"episodes_max is 2.*set it to 3"):
            await runner.keep_workers()
        making.cancel()
        await asyncio.gather(making, return_exceptions=True)


async def test_an_episode_in_which_the_environment_fails_has_no_reward(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = group_task(num_samples=1, prompt_id=PromptId("train-7"), env_id=WORKLOAD.env)
    async with playing(tmp_path, monkeypatch, library=FAKE, reply="raise") as runner:
        [sample] = samples_of(await made_of(runner, task))
    assert (sample.reward, sample.components) == (0.0, {})
    # With file and line of its own code.
    assert sample.log.startswith("no reward: its agent ended it: KeyError at ")
    assert "my_verse.py:" in sample.log


def test_an_environment_that_cannot_be_loaded_says_what_its_code_raised(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrong = msgspec.structs.replace(WORKLOAD, env_kwargs={"rows": 3})
    reference = reference_of(wrong, monkeypatch, FAKE)
    with pytest.raises(
        ConfigError, match=r"verifiers cannot load my-verse.*unexpected keyword argument 'rows'"
    ):
        rows_of(reference, tmp_path, library=FAKE)


def test_an_environment_that_is_not_installed_is_named_with_its_package(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    unknown = msgspec.structs.replace(WORKLOAD, env="verifiers:owner/no-such-env@1.0")
    with pytest.raises(ConfigError, match=r"no environment.*module no_such_env.*pip install no-such-env"):
        reference_of(unknown, monkeypatch, FAKE)


@pytest.mark.skipif(find_spec("verifiers") is not None, reason="verifiers is installed")
def test_a_library_that_is_not_installed_is_named_with_the_command_that_installs_it() -> None:
    with pytest.raises(ConfigError, match=r"pip install 'tidegate\[verifiers\]'"):
        library_task_of(WORKLOAD, folder=HERE)


def test_check_refuses_an_environment_that_never_calls_its_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    workload = verses(num_samples=1, silent=True)
    reference_of(workload, monkeypatch, FAKE)
    monkeypatch.setenv("PYTHONPATH", FAKE)
    raw = {
        **TEXT,
        "workload": {**TEXT["workload"], "env": workload.env, "env_kwargs": workload.env_kwargs},
        "actor": {"engine": "torch", "gateway": {"workers": 1}},
        "files_dir": HERE,
        "pass_env": ["PYTHONPATH"],
    }
    with pytest.raises(ConfigError, match="made no call of the policy"):
        asyncio.run(play_run(parse_plan(raw, source="test")))


def test_check_plays_one_episode_with_a_model_that_says_one_thing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reference_of(WORKLOAD, monkeypatch, FAKE)
    monkeypatch.setenv("PYTHONPATH", FAKE)
    raw = {
        **TEXT,
        "workload": {**TEXT["workload"], "env": WORKLOAD.env, "env_kwargs": WORKLOAD.env_kwargs},
        "actor": {"engine": "torch", "gateway": {"workers": 1}},
        "files_dir": HERE,
        "pass_env": ["PYTHONPATH"],
    }
    found = asyncio.run(play_run(parse_plan(raw, source="test")))
    assert isinstance(found, list)
    [played] = found
    assert json.loads(played.prompt)[0]["content"].startswith("say ")
    assert (played.reward, played.components) == (0.0, {"exact": 0.0, "length": 1.0})
    assert played.end == "max_turns_reached after 1 calls of the model"
