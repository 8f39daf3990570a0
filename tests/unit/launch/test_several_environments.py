"""Several environments in a run file: what is refused with a sentence, and the one dataset that they become."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.unit.launch.test_run_file import TEXT
from tidegate.core.errors import ConfigError
from tidegate.launch.own_code import own_code_of
from tidegate.launch.preparation import write_datasets
from tidegate.launch.run_parsing import parse_plan
from tidegate.launch.run_plan import RunPlan

TASK = """
from tidegate.environment.tasks.port import Problem, Score


class Echo:
    def problems(self):
        return [Problem(f"{number}", f"say {number}", f"{number}", "words") for number in range(20)]

    def score(self, problem, completion):
        return Score(float(completion == problem.answer), {}, problem.bin)
"""


def plan(*envs: Any, more: dict[str, Any] | None = None, **workload: Any) -> RunPlan:
    text = {name: value for name, value in TEXT["workload"].items() if name != "env"}
    return parse_plan(
        {**TEXT, "workload": {**text, "envs": list(envs), **workload}, **(more or {})}, source="test"
    )


def refusal(*envs: Any, more: dict[str, Any] | None = None, **workload: Any) -> str:
    with pytest.raises(ConfigError) as raised:
        plan(*envs, more=more, **workload)
    return str(raised.value)


def rows(path: Path) -> list[dict[str, str]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def share(env: str, weight: float, **more: Any) -> dict[str, Any]:
    return {"env": env, "weight": weight, **more}


@pytest.mark.parametrize(
    ("envs", "sentence"),
    [
        ((share("arithmetic", 0), share("sums", 0)), "all weights are 0. no prompt could be drawn"),
        ((share("arithmetic", -1), share("sums", 2)), "the weight of arithmetic is -1"),
        (
            (share("arithmetic", float("nan")), share("sums", 2)),
            "workload.envs.0.weight is not a finite number",
        ),
        (
            (share("arithmetic", float("inf")), share("sums", 2)),
            "workload.envs.0.weight is not a finite number",
        ),
        ((share("arithmetic", 1e308), share("sums", 1e308)), "the sum of the weights is too large"),
        ((share("sums", 1), share("sums", 2)), "two environments with the name sums"),
        ((share("sums", 1, name="a\nb"),), r"the name 'a\nb' has characters that no table shows"),
        ((share("sums", 1), share("arithmetic", 2, name="sums")), "two environments with the name sums"),
        ((share("sums", 1, env_kwargs={"x": 1}),), "workload.envs, sums: workload.env_kwargs is set"),
        ((share("sums", 1, wieght=2),), "wieght"),
        ((share("verifiers:verse", 1),), "workload.env verifiers:verse needs actor.gateway"),
        ((share("openenv:http://127.0.0.1:1", 1),), "workload.turns_max is 1 with an OpenEnv server"),
    ],
)
def test_environments_that_cannot_be_mixed_are_refused_with_a_sentence(
    envs: tuple[dict[str, Any], ...], sentence: str
) -> None:
    assert sentence in refusal(*envs)


@pytest.mark.parametrize(
    ("workload", "sentence"),
    [
        ({"env": "arithmetic"}, "workload has both `env` and `envs`"),
        ({"dataset": "mine.jsonl"}, "workload has both `dataset` and `envs`"),
        ({"bins": ["easy"]}, "workload has both `bins` and `envs`"),
        ({"env_kwargs": {"x": 1}}, "workload has both `env_kwargs` and `envs`"),
    ],
)
def test_what_belongs_to_one_environment_is_refused_beside_several(
    workload: dict[str, Any], sentence: str
) -> None:
    assert sentence in refusal("sums", "arithmetic", **workload)


def test_environments_of_verifiers_mix_with_all_others_and_an_agent_plays_any() -> None:
    gateway: dict[str, Any] = {"engine": "torch", "gateway": {"workers": 1}}
    policy = {"policy": {"kind": "char_lm", "context_length": 64}}
    verses = [share("verifiers:verse", 1), share("verifiers:verse", 2, name="long", env_kwargs={"lines": 9})]
    assert len(plan(*verses, more={"actor": gateway, **policy}).file.workload.by_name()) == 2
    assert len(plan(*verses, "sums", more={"actor": gateway, **policy}).file.workload.by_name()) == 3
    server = share("openenv:http://127.0.0.1:1", 1)
    several_turns = {"actor": gateway, "environment": {"score_deadline_s": 15}, **policy}
    assert plan(*verses, server, more=several_turns, turns_max=4).file.workload.of_verifiers() == {
        "verifiers:verse",
        "long",
    }
    own_worker: dict[str, Any] = {"engine": "torch", "gateway": {"workers": 1, "command": ["mine"]}}
    assert "has sums beside long of verifiers, and an agent of your own" in refusal(
        *verses, "sums", more={"actor": own_worker, **policy}
    )
    assert "actor.gateway.workers is set without a command" in refusal(
        "sums", "arithmetic", more={"actor": gateway, **policy}
    )
    agent = {"engine": "torch", "gateway": {"port": 8123}}
    assert plan("sums", "arithmetic", more={"actor": agent, **policy}).services["actor"].gateway is not None


def test_segments_have_one_environment_and_no_run_has_none() -> None:
    segments: dict[str, Any] = {
        "run": "r",
        "workload": {"kind": "segments", "envs": ["CartPole-v1", "Acrobot-v1"]},
        "policy": {"kind": "mlp"},
        "batch_size": 1,
        "max_running": 1,
    }
    with pytest.raises(ConfigError, match=r"workload\.envs is set with workload\.kind segments"):
        parse_plan(segments, source="test")
    for workload in ({"kind": "segments"}, {"kind": "text"}):
        with pytest.raises(ConfigError, match=r"`workload\.env` is missing"):
            parse_plan({**segments, "workload": workload}, source="test")


def test_document_with_every_default_reads_back_as_the_same_plan() -> None:
    several = plan("sums", share("arithmetic", 2.0, name="plus", bins=["digits_1"]))
    assert parse_plan(several.document(), source="run.json") == several


@pytest.mark.slow
def test_rows_of_each_environment_become_one_dataset(tmp_path: Path) -> None:
    several = plan(share("sums", 3.0), share("arithmetic", 1.0, name="plus"), share("countdown", 0.0))
    write_datasets(several, tmp_path)
    trained, held_out = rows(tmp_path / "train.jsonl"), rows(tmp_path / "heldout.jsonl")
    assert {row["env"] for row in trained} == {"sums", "plus"}
    assert [row["env"] for row in held_out[:6]] == ["sums", "plus", "countdown"] * 2
    assert all(row["bin"].startswith(f"{row['env']}/") for row in (*trained, *held_out))
    alone = tmp_path / "alone"
    write_datasets(parse_plan(TEXT, source="test"), alone)
    plain = [
        (row["prompt_id"], row["prompt"], row["answer"], row["bin"]) for row in rows(alone / "train.jsonl")
    ]
    assert [
        (row["prompt_id"], row["prompt"], row["answer"], row["bin"].removeprefix("plus/"))
        for row in trained
        if row["env"] == "plus"
    ] == plain
    shown = rows(tmp_path / "demonstrations.jsonl")
    prompts = {env: {row["prompt"] for row in trained if row["env"] == env} for env in ("sums", "plus")}
    of_plus = sum(row["prompt"] in prompts["plus"] - prompts["sums"] for row in shown)
    assert len(shown) <= 8193
    assert 0.2 < of_plus / len(shown) < 0.3


def test_rows_that_are_there_stay(tmp_path: Path) -> None:
    several = plan("sums", "arithmetic")
    write_datasets(several, tmp_path)
    before = (tmp_path / "heldout.jsonl").read_bytes()
    (tmp_path / "train.jsonl").write_text('{"prompt_id": "1", "prompt": "x", "env": "sums"}\n')
    write_datasets(several, tmp_path)
    assert len(rows(tmp_path / "train.jsonl")) == 1
    assert (tmp_path / "heldout.jsonl").read_bytes() == before


def test_mistake_in_one_environment_names_it(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"workload\.envs, plus: workload\.bins: This task has no bin 'x'"):
        write_datasets(plan("sums", {"env": "arithmetic", "name": "plus", "bins": ["x"]}), tmp_path)


def test_own_code_of_each_environment_is_recorded_by_its_name(tmp_path: Path) -> None:
    (tmp_path / "my_task.py").write_text(TASK)
    several = plan("sums", {"env": "my_task.py:Echo"}, more={"files_dir": str(tmp_path)})
    assert set(own_code_of(several)) == {"workload.envs.my_task.py:Echo"}


@pytest.mark.slow
def test_own_task_beside_one_of_this_package(tmp_path: Path) -> None:
    (tmp_path / "my_task.py").write_text(TASK)
    more = {"files_dir": str(tmp_path)}
    write_datasets(plan("sums", share("my_task.py:Echo", 1.0, name="echo"), more=more), tmp_path / "data")
    own = [row for row in rows(tmp_path / "data" / "train.jsonl") if row["env"] == "echo"]
    assert {row["bin"] for row in own} == {"echo/words"}
    with pytest.raises(ConfigError, match=r"my_task\.py:Echo has no episodes of several turns"):
        write_datasets(
            plan("calculator", share("my_task.py:Echo", 1.0), more=more, turns_max=3), tmp_path / "x"
        )
