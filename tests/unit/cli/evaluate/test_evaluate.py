"""A version of a language model answers problems, by the model and the generation of actors."""

import itertools
import json
from functools import partial
from pathlib import Path

import msgspec
import pytest
import torch

from tests.unit.cli.policy.folders import write_policies
from tests.unit.cli.run_folder import ARITHMETIC, LINEAGE, START_S
from tidegate.actor.rollouts.heldout import read_problems
from tidegate.cli.evaluate.answering import Answering
from tidegate.cli.evaluate.asked import Asked
from tidegate.cli.evaluate.command import evaluate
from tidegate.cli.evaluate.passing import figures_of, pass_at
from tidegate.core.cut_off import as_judged
from tidegate.core.errors import ConfigError
from tidegate.core.ids import PolicyVersion, RunId
from tidegate.core.staleness import Lineage
from tidegate.environment.tasks.registry import get_task
from tidegate.launch.forking import CHECKPOINTS
from tidegate.launch.preparation import write_datasets
from tidegate.launch.run_file import read_run_file
from tidegate.launch.run_folder import new_record, write_record
from tidegate.launch.stored_policy import StoredPolicy, read_stored_policy
from tidegate.learner.checkpoint import Checkpoint, CheckpointFolder
from tidegate.learner.optim.port import TrainerState
from tidegate.learner.state import TrainingProgress
from tidegate.models.char_lm import CharLm, CharLmSpec
from tidegate.models.char_tokenizer import decode, encode_prompt
from tidegate.models.sampling import generate

SPEC = CharLmSpec(d_model=16, num_layers=1, num_heads=2, context_length=16)


def model(context_length: int = SPEC.context_length) -> CharLm:
    spec = msgspec.structs.replace(SPEC, context_length=context_length)
    return CharLm(spec, generator=torch.Generator().manual_seed(3))


def write_run_of_text(
    folder: Path, *, run_file: Path = ARITHMETIC, sets: tuple[str, ...] = ()
) -> StoredPolicy:
    """A run with its problems and one checkpoint of a small model."""
    sizes = ("policy.d_model=16", "policy.num_layers=1", "policy.num_heads=2")
    plan = read_run_file(run_file, [*sizes, *sets])
    record = new_record(plan)
    write_record(folder, record)
    write_datasets(plan, folder / "data")
    CheckpointFolder(folder / CHECKPOINTS, keep=1).write(
        Checkpoint(
            run=RunId(record.run_id),
            policy_kind="char_lm",
            progress=TrainingProgress(version=PolicyVersion(LINEAGE, 3)),
            lineages=(Lineage(name=LINEAGE),),
            consumed=(),
            policy=model(plan.file.policy.context_length).to_arrays(),
            trainer=TrainerState(tensors={}, values={}),
            written_at_s=START_S,
        )
    )
    return read_stored_policy(folder, None)


@pytest.mark.parametrize(("count", "solved"), [(1, 0), (1, 1), (5, 0), (5, 2), (5, 5), (8, 3)])
def test_pass_at_k_is_the_share_of_choices_with_a_solution(count: int, solved: int) -> None:
    """The slow twin tries every choice of k answers."""
    answers = [index < solved for index in range(count)]
    for k in range(1, count + 1):
        choices = list(itertools.combinations(answers, k))
        expected = sum(any(choice) for choice in choices) / len(choices)
        assert pass_at(k, num_samples=count, num_solved=solved) == pytest.approx(expected)


def test_figures_count_answers_and_problems() -> None:
    found = figures_of([[1.0, 0.0], [0.5, 0.5]], solved_at=1.0, ks=[1, 2, 4])
    assert (found.num_problems, found.num_samples) == (2, 2)
    assert (found.solved_share, found.mean_reward) == (0.25, 0.5)
    assert found.pass_at == {1: 0.25, 2: 0.5}, "four answers were not given"


@pytest.mark.slow
def test_greedy_answers_are_those_of_the_actors_engine(tmp_path: Path) -> None:
    stored = write_run_of_text(tmp_path)
    asked = read_problems(tmp_path / "data" / "heldout.jsonl", num_max=6)
    finished: list[int] = []
    found = Answering(stored).answers(
        [Asked("arithmetic", each, 0.0, 0) for each in asked], on_progress=finished.append
    )
    assert sum(finished) == len(asked)
    completions = generate(
        model(),
        [encode_prompt(each.prompt) for each in asked],
        num_samples=1,
        max_new_tokens=stored.file.workload.sampler.max_new_tokens,
        temperature=0.0,
        generator=torch.Generator(),
    )
    assert found == [
        as_judged(decode(completion.tokens), finish_reason=completion.finish_reason)
        for completion in completions
    ]


@pytest.mark.slow
def test_several_sets_are_answered_and_scored_by_the_runs_task(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stored = write_run_of_text(tmp_path / "run")
    (tmp_path / "mine.jsonl").write_bytes(
        msgspec.json.encode({"prompt_id": "a", "prompt": "12+34=", "answer": "046"}) + b"\n"
    )
    held_out = stored.folder / "data" / "heldout.jsonl"
    answer_both = partial(
        evaluate, stored.folder, data=[held_out, tmp_path / "mine.jsonl"], samples=4, problems=3, json=True
    )
    answer_both()
    first = capsys.readouterr().out
    found = json.loads(first)
    assert found["version"] == f"{LINEAGE}@3"
    assert [(each["name"], each["greedy"]["num_problems"]) for each in found["sets"]] == [
        ("heldout", 3),
        ("mine", 1),
    ]
    for each in found["sets"]:
        assert each["sampled"]["num_samples"] == 4
        assert set(each["sampled"]["pass_at"]) == {"1", "2", "4"}
        assert each["sampled"]["pass_at"]["1"] == pytest.approx(each["sampled"]["solved_share"])
    answer_both()
    assert capsys.readouterr().out == first, "the same seed gives the same answers"


@pytest.mark.slow
def test_each_of_several_environments_is_a_set_by_its_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    several = (
        "workload.envs=[{env: arithmetic, weight: 3}, {env: arithmetic, name: carries, bins: [carries-2]}]"
    )
    stored = write_run_of_text(tmp_path / "run", sets=("workload.env=''", several))
    evaluate(stored.folder, samples=1, problems=3, json=True)
    found = json.loads(capsys.readouterr().out)
    assert [(each["name"], each["greedy"]["num_problems"]) for each in found["sets"]] == [
        ("arithmetic", 3),
        ("carries", 3),
    ]
    own = tmp_path / "own.jsonl"
    own.write_bytes(msgspec.json.encode({"prompt_id": "a", "prompt": "12+34=", "answer": "046"}) + b"\n")
    with pytest.raises(ConfigError, match="Problem a names the environment ''"):
        evaluate(stored.folder, data=[own])


def test_a_solved_problem_counts_as_solved() -> None:
    task = get_task("arithmetic")
    problem = task.problems("heldout", seed=0)[0]
    rewards = [[task.score(problem, answer).reward for answer in (problem.answer, "x")]]
    assert figures_of(rewards, solved_at=1.0, ks=[1]).solved_share == 0.5


OWN = """
class Sums:
    def problems(self):
        return [(f"{number}+1=", str(number + 1)) for number in range(20)]

    def score(self, problem, completion):
        if problem.prompt.startswith("3"):
            raise ValueError("three is a bug")
        return 1.0 if problem.prompt.startswith("5") else 0.25


def short(prompt, completion, answer):
    return 0.5
"""


@pytest.mark.slow
def test_task_of_ones_own_scores_with_the_verifiers_of_the_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "my_task.py").write_text(OWN)
    sets = (
        f"files_dir={tmp_path}",
        "workload.env=my_task.py:Sums",
        "workload.bins=[]",
        "environment.verifiers={short: {kind: python, path: my_task.py, function: short}}",
        "environment.rewards={task: 1.0, short: 1.0}",
    )
    stored = write_run_of_text(tmp_path / "run", sets=sets)
    data = tmp_path / "mine.jsonl"
    data.write_bytes(
        b"".join(
            msgspec.json.encode({"prompt_id": prompt, "prompt": prompt, "answer": ""}) + b"\n"
            for prompt in ("5+1=", "7+1=", "3+1=")
        )
    )
    evaluate(stored.folder, data=[data], samples=2, json=True)
    [found] = json.loads(capsys.readouterr().out)["sets"]
    assert found["greedy"]["mean_reward"] == pytest.approx((1.5 + 0.75 + 0.0) / 3)
    assert found["greedy"]["solved_share"] == pytest.approx(1 / 3)
    assert len(found["sampled"]["failures"]) == 2
    assert "three is a bug" in found["sampled"]["failures"][0]
    evaluate(stored.folder, data=[data], samples=2)
    assert "mine: 3 answers could not be scored and count as 0." in " ".join(capsys.readouterr().out.split())


TWICE = """
class Twice:
    def problems(self):
        return [(f"{number}+1=", str(number + 1)) for number in range(20)]

    def begin(self, problem, seed):
        return Talk(problem)


class Talk:
    def __init__(self, problem):
        self.opening = problem.prompt
        self.turns = []

    def reply(self, text):
        if self.opening.startswith("3"):
            raise ValueError("three is a bug")
        self.turns.append(text)
        if len(self.turns) < 2:
            return "7"
        return 0.5 + 0.5 * self.opening.startswith("5")
"""


@pytest.mark.slow
def test_episodes_of_several_turns_are_played_to_their_end_and_rewarded(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "my_talk.py").write_text(TWICE)
    sets = (
        f"files_dir={tmp_path}",
        "workload.env=my_talk.py:Twice",
        "workload.bins=[]",
        "workload.turns_max=3",
        "workload.sampler.max_new_tokens=400",
        "policy.context_length=512",
    )
    stored = write_run_of_text(tmp_path / "run", sets=sets)
    data = tmp_path / "mine.jsonl"
    data.write_bytes(
        b"".join(
            msgspec.json.encode({"prompt_id": prompt, "prompt": prompt, "answer": ""}) + b"\n"
            for prompt in ("5+1=", "7+1=", "3+1=")
        )
    )
    evaluate(stored.folder, data=[data], samples=3, json=True)
    first = capsys.readouterr().out
    [found] = json.loads(first)["sets"]
    # What reads the reply and writes again has a reward; greedily this untrained model ends no turn.
    assert found["sampled"]["mean_reward"] == pytest.approx((1.0 + 0.5 + 0.0) / 3)
    assert found["sampled"]["solved_share"] == pytest.approx(1 / 3)
    assert found["greedy"]["mean_reward"] == 0.0
    assert len(found["greedy"]["failures"]) == 1
    assert len(found["sampled"]["failures"]) == 3
    assert "three is a bug" in found["sampled"]["failures"][0]
    evaluate(stored.folder, data=[data], samples=3, json=True)
    assert capsys.readouterr().out == first, "the same seed gives the same turns"


@pytest.mark.slow
def test_conversations_of_this_package_are_played(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sets = ("workload.env=calculator", "workload.bins=[signs-1]", "workload.turns_max=3")
    stored = write_run_of_text(tmp_path / "run", sets=(*sets, "policy.context_length=64"))
    evaluate(stored.folder, samples=2, problems=4, json=True)
    [found] = json.loads(capsys.readouterr().out)["sets"]
    assert (found["name"], found["greedy"]["num_problems"]) == ("held out", 4)
    assert found["greedy"]["failures"] == found["sampled"]["failures"] == []


@pytest.mark.slow
def test_what_is_scored_elsewhere_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="Only language models"):
        evaluate(write_policies(tmp_path / "classic"))
    agents = ARITHMETIC.with_name("calculator-agent.yaml")
    write_run_of_text(tmp_path / "agents", run_file=agents)
    with pytest.raises(ConfigError, match="an agent plays the episodes of calculator"):
        evaluate(tmp_path / "agents")
