"""The queue's part in a run of several environments: rows, shares and the journal's state together."""

from collections import Counter
from pathlib import Path

import pytest

from tidegate.core.admission import Limits
from tidegate.core.errors import ConfigError
from tidegate.core.ids import LineageName, PolicyVersion, RunId, trajectory_at
from tidegate.core.mixed_curriculum import MixedCurriculum
from tidegate.core.records import Sampler, Task
from tidegate.runtime.config import WorkloadConfig
from tidegate.runtime.prompt_sources import EnvShare
from tidegate.task_queue.dataset import open_dataset
from tidegate.task_queue.journal import open_journal
from tidegate.task_queue.loops import TaskSource
from tidegate.task_queue.main import check_held_out
from tidegate.task_queue.state import Counts, Snapshot, Workload, plan_tasks
from tidegate.wire.clients.trajectory_store import Outcome

GROUPS = Workload(RunId("r"), "group", "mixture", 2, 0, Sampler(), 7)
WEIGHTS = {"plus": 3.0, "mine": 1.0}
SNAPSHOT = Snapshot(
    limits=Limits(max_lag=4, batch_size=4, max_running=1 << 20),
    counts=Counts(),
    head=PolicyVersion(LineageName("0-a"), 0),
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Where the queue has its rows; ids are of each environment's own."""
    rows = (
        f'{{"prompt_id": "{n}", "prompt": "{env}{n}", "bin": "{env}/all", "env": "{env}"}}\n'
        for env in WEIGHTS
        for n in range(5)
    )
    (tmp_path / "train.jsonl").write_text("".join(rows))
    return tmp_path


def life(folder: Path, *, turns: int) -> list[Task]:
    """The tasks that one life of the queue admits, with a reward for each of them in between."""
    journal = open_journal(folder / "journal.sqlite", run_id=RunId("r"))
    dataset = open_dataset(folder / "train.jsonl")
    curriculum = MixedCurriculum(
        dataset.bins, env_of=dataset.env_of, weights=WEIGHTS, seed=7, strategy="learnable"
    )
    source = TaskSource(dataset, curriculum)
    admitted: list[Task] = []
    for _ in range(turns):
        prompts, state = source.take(journal.curriculum, count=5)
        outcomes = [
            Outcome(
                trajectory_id=trajectory_at(1, 0), state="accepted", curriculum_bin=prompt.bin, reward=1.0
            )
            for prompt in prompts
        ]
        tasks = plan_tasks(
            SNAPSHOT, GROUPS, first_seq=journal.next_seq, prompts=prompts, trace_parents=[""] * 5, now_s=0.0
        )
        journal.admit(tasks, curriculum=source.learn(state, outcomes))
        admitted += tasks
    journal.close()
    dataset.close()
    return admitted


def test_queue_that_is_started_again_keeps_shares_and_the_order_within_each_environment(folder: Path) -> None:
    tasks = [task for turns in (3, 1, 8, 4) for task in life(folder, turns=turns)]
    assert [task.task_id for task in tasks] == sorted({task.task_id for task in tasks})
    drawn = Counter(task.env_id for task in tasks)
    assert drawn["plus"] == pytest.approx(60, abs=3)
    assert drawn["plus"] + drawn["mine"] == 80
    for env in WEIGHTS:
        of_env = [task for task in tasks if task.env_id == env]
        assert {task.curriculum_bin for task in of_env} == {f"{env}/all"}
        assert all(task.prompt == f"{env}{task.prompt_id}" for task in of_env)
        epochs = [of_env[start : start + 5] for start in range(0, len(of_env) - 4, 5)]
        assert all(len({task.prompt_id for task in epoch}) == 5 for epoch in epochs)


@pytest.mark.parametrize(
    "row", ['{"prompt_id": "1", "prompt": "x"}', '{"prompt_id": "1", "prompt": "x", "env": "other"}']
)
def test_held_out_rows_of_no_environment_of_the_run_are_refused_at_the_start(
    tmp_path: Path, row: str
) -> None:
    path = tmp_path / "heldout.jsonl"
    workload = WorkloadConfig(kind="text", envs=(EnvShare("plus"), EnvShare("mine")))
    path.write_text('{"prompt_id": "0", "prompt": "x", "bin": "plus/all", "env": "plus"}\n')
    check_held_out(path, workload)
    path.write_text(f"{row}\n")
    with pytest.raises(ConfigError, match=r"heldout\.jsonl of the run has prompts of '(other)?'"):
        check_held_out(path, workload)
