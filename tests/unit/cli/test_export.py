"""A run's trajectories as a Parquet file, read back: every terminal one, once, with what the store still knows."""

from pathlib import Path
from typing import Any, cast

import numpy as np
import pyarrow.parquet
import pytest

from tests.unit.cli.run_folder import LINEAGE, START_S, write_run
from tidegate.cli.accounting import ledger_path
from tidegate.cli.app import run as run_command
from tidegate.cli.export import command
from tidegate.cli.export.table import COLUMNS, TENSOR_COLUMNS
from tidegate.core.conversations import CONVERSATIONS, conversations_array
from tidegate.core.ids import GroupId, PolicyVersion, PromptId, RunId, TaskId, TrajectoryId, trajectory_id
from tidegate.core.records import Sampler, StageTiming, ToolCall, Trajectory, VersionSpan
from tidegate.core.staleness import Fresh, Lineage, StalenessLimits
from tidegate.trajectory_store import exporting
from tidegate.trajectory_store.config import TrajectoryStoreConfig
from tidegate.trajectory_store.intake import ArrivedMessage
from tidegate.trajectory_store.store import Store
from tidegate.wire.clients.trajectory_store import Consumption, Dropped
from tidegate.wire.frame import encode_frame
from tidegate.wire.subjects import HEADER_TRAJECTORY_IDS

pq = cast("Any", pyarrow.parquet)  # ships without types

GROUP = 2
LIMITS = StalenessLimits(max_lag=4, max_age_s=1e6)


def sample(run: RunId, task: str, index: int, *, turns: int) -> Trajectory:
    """A completion of ``4 + index`` tokens under two versions; with two turns the middle one is a reply's."""
    num_tokens = 4 + index
    tensors: dict[str, Any] = {
        "prompt_tokens": np.arange(3, dtype=np.int32),
        "tokens": np.arange(num_tokens, dtype=np.int32) + 10,
        "behavior_logprobs": np.full(num_tokens, -0.5, np.float32),
    }
    if turns > 1:
        tensors["chosen"] = np.arange(num_tokens) != 2
        tensors["behavior_logprobs"][2] = 0
    if turns > 1 and index:
        tensors[CONVERSATIONS] = conversations_array([(1, 4), (2, num_tokens - 4)])
    return Trajectory(
        trajectory_id=trajectory_id(TaskId(task), sample_index=index),
        run_id=run,
        task_id=TaskId(task),
        group_id=GroupId(task),
        group_size=GROUP,
        spans=(
            VersionSpan(PolicyVersion(LINEAGE, 0), 0, 2),
            VersionSpan(PolicyVersion(LINEAGE, 1), 2, num_tokens),
        ),
        tensors=tensors,
        num_steps=num_tokens - (turns - 1),
        prompt_id=PromptId(f"p-{task}"),
        prompt="2+2=",
        answer="4",
        completion=f"é{index}",
        reward=0.5 * index,
        reward_components={"exact": 0.5 * index, "format": 1.0},
        verifier_log="solved",
        tool_calls=(ToolCall("python", "print(4)", "4", 1.0, 2.0),) if turns > 1 else (),
        sampler=Sampler(temperature=0.7, max_new_tokens=64),
        env_id="arithmetic",
        actor_id="actor-1",
        curriculum_bin="easy",
        length_tokens=num_tokens,
        finish_reason="stop",
        started_at_s=START_S,
        finished_at_s=START_S + 1,
        stages=(StageTiming("trajectory.generate", "actor-1", START_S, START_S + 1),),
    )


def ingest(store: Store, run: RunId, task: str, *, turns: int = 1) -> None:
    group = [sample(run, task, index, turns=turns) for index in range(GROUP)]
    ids = ",".join(each.trajectory_id for each in group)
    message = ArrivedMessage(encode_frame(group), {HEADER_TRAJECTORY_IDS: ids}, START_S + 2)
    store.ingest([message], now_s=START_S + 2)


def train(store: Store, *, step: int) -> None:
    version, now_s = PolicyVersion(LINEAGE, step), START_S + 10 + step
    batch = store.lease(version, batch_size=GROUP, limits=LIMITS, learner_id="learner-0", now_s=now_s)
    assert batch is not None
    consumptions = [Consumption(each, Fresh(lag=step, span=1, age_s=3.0)) for each in batch.trajectory_ids]
    store.commit(batch.batch_id, version=version, consumptions=consumptions, now_s=now_s + 0.5)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "run"


@pytest.fixture
def store(folder: Path) -> Store:
    """Three groups trained, at steps 1, 2 and 3; a sample settled before the second, one after; a group waits."""
    run = RunId(write_run(folder).run_id)
    ledger_path(folder).parent.mkdir(parents=True)
    store = Store(ledger_path(folder).parent, run_id=run, config=TrajectoryStoreConfig(), now_s=START_S)
    store.open_lineage(Lineage(name=LINEAGE), learner_id="learner-0", consumed=(), now_s=START_S)
    for step in range(1, 4):
        ingest(store, run, f"t{step:010d}", turns=2 if step == 3 else 1)
        train(store, step=step)
        if step != 2:
            dropped = Dropped(TrajectoryId(f"t{step + 10:010d}.0"), "failed", "gave up")
            store.drop_unarrived([dropped], now_s=START_S + 10.9 + step)
    ingest(store, run, "t0000000099")
    return store


def exported(folder: Path, to: Path, *options: str) -> list[dict[str, Any]]:
    assert run_command(["export", str(folder), "--to", str(to), *options]) == 0
    rows: list[dict[str, Any]] = pq.read_table(to).to_pylist()
    return rows


def test_each_terminal_trajectory_is_a_row_and_what_is_under_way_is_none(
    store: Store, folder: Path, tmp_path: Path
) -> None:
    rows = exported(folder, tmp_path / "a.parquet")  # the store is still open, as in a live run
    store.close()
    assert [(row["trajectory_id"], row["outcome"], row["trained_step"]) for row in rows] == [
        ("t0000000001.0", "trained", 1),
        ("t0000000001.1", "trained", 1),
        ("t0000000011.0", "dropped", None),
        ("t0000000002.0", "trained", 2),
        ("t0000000002.1", "trained", 2),
        ("t0000000003.0", "trained", 3),
        ("t0000000003.1", "trained", 3),
        ("t0000000013.0", "dropped", None),
    ]
    assert exported(folder, tmp_path / "b.parquet") == rows, "a stopped run exports the same"


def test_a_row_holds_what_the_record_and_the_ledger_know(store: Store, folder: Path, tmp_path: Path) -> None:
    store.close()
    row = exported(folder, tmp_path / "a.parquet")[6]
    assert row == {
        "trajectory_id": "t0000000003.1", "task_id": "t0000000003", "group_id": "t0000000003", "group_size": 2,
        "prompt_id": "p-t0000000003", "curriculum_bin": "easy", "env_id": "arithmetic", "actor_id": "actor-1",
        "attempt": 1, "outcome": "trained", "drop_reason": "", "drop_detail": "", "reward": 0.5,
        "reward_components": [("exact", 0.5), ("format", 1.0)], "verifier_log": "solved", "mean_return": None,
        "num_steps": 4, "length_tokens": 5, "finish_reason": "stop", "prompt": "2+2=", "answer": "4",
        "completion": "é1", "sampler": {"temperature": 0.7, "top_p": 1.0, "top_k": 0, "max_new_tokens": 64},
        "tool_calls": [{"name": "python", "arguments": "print(4)", "result": "4",
                        "started_at_s": 1.0, "finished_at_s": 2.0}],
        "spans": [{"lineage": LINEAGE, "step": 0, "start": 0, "stop": 2},
                  {"lineage": LINEAGE, "step": 1, "start": 2, "stop": 5}],
        "trained_at": f"{LINEAGE}@3", "trained_step": 3, "update_step": 4, "lag": 3, "span": 1, "age_s": 3.0,
        "started_at_s": START_S, "finished_at_s": START_S + 1, "received_at_s": START_S + 2,
        "accepted_at_s": START_S + 2, "leased_at_s": START_S + 13, "terminal_at_s": START_S + 13.5,
        "stages": [{"stage": "trajectory.generate", "worker": "actor-1",
                    "started_at_s": START_S, "finished_at_s": START_S + 1}],
        "trace_parent": "",
    }  # fmt: skip


def test_what_ended_before_it_arrived_has_an_outcome_and_no_record(
    store: Store, folder: Path, tmp_path: Path
) -> None:
    store.close()
    row = exported(folder, tmp_path / "a.parquet")[2]
    assert (row["drop_reason"], row["drop_detail"], row["terminal_at_s"]) == (
        "failed",
        "gave up",
        START_S + 11.9,
    )
    assert (row["prompt"], row["reward_components"], row["spans"], row["stages"]) == (None,) * 4


def test_since_a_step_is_what_was_trained_or_dropped_from_then_on(
    store: Store, folder: Path, tmp_path: Path
) -> None:
    store.close()
    ids = [row["trajectory_id"] for row in exported(folder, tmp_path / "a.parquet", "--since-step", "2")]
    assert ids == ["t0000000002.0", "t0000000002.1", "t0000000003.0", "t0000000003.1", "t0000000013.0"]
    assert exported(folder, tmp_path / "b.parquet", "--since-step", "9") == []


def test_tensors_come_when_asked_for(store: Store, folder: Path, tmp_path: Path) -> None:
    store.close()
    rows = exported(folder, tmp_path / "a.parquet", "--tensors")
    assert rows[1]["prompt_tokens"] == [0, 1, 2]
    assert rows[1]["tokens"] == [10, 11, 12, 13, 14]
    assert rows[1]["behavior_logprobs"] == [-0.5] * 5
    assert (rows[1]["chosen"], rows[6]["chosen"]) == (None, [True, True, False, True, True])
    assert rows[1]["conversations"] is None
    parts = [{"prompt_tokens": 1, "tokens": 4}, {"prompt_tokens": 2, "tokens": 1}]
    assert rows[6]["conversations"] == parts
    assert [row["tensors_held"] for row in rows] == [True, True, False, True, True, True, True, False]


@pytest.mark.parametrize("loss", ["gone", "cut", "changed"])
def test_outcomes_are_there_when_payloads_are_not(
    store: Store, folder: Path, tmp_path: Path, loss: str
) -> None:
    store.close()
    for path in (ledger_path(folder).parent / "segments").iterdir():
        data = path.read_bytes()
        match loss:
            case "gone":
                path.unlink()
            case "cut":
                path.write_bytes(data[: len(data) // 9])
            case _:
                path.write_bytes(bytes(len(data)))
    rows = exported(folder, tmp_path / "a.parquet", "--tensors")
    assert len(rows) == 8
    assert not any(row["tensors_held"] for row in rows)
    assert (rows[0]["tokens"], rows[0]["completion"], rows[0]["reward"]) == (None, "é0", 0.0)


def test_a_long_run_is_written_in_groups_of_rows(
    store: Store, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.close()
    whole = exported(folder, tmp_path / "a.parquet", "--tensors")
    monkeypatch.setattr(exporting, "PAGE_ROWS", 1)
    monkeypatch.setattr(command, "GROUP_ROWS", 3)
    assert exported(folder, tmp_path / "b.parquet", "--tensors") == whole
    assert pq.ParquetFile(tmp_path / "b.parquet").num_row_groups == 3
    monkeypatch.setattr(command, "GROUP_TOKENS", 5)
    assert exported(folder, tmp_path / "c.parquet", "--tensors") == whole
    assert pq.ParquetFile(tmp_path / "c.parquet").num_row_groups > 3


def test_the_file_says_what_its_columns_mean(store: Store, folder: Path, tmp_path: Path) -> None:
    store.close()
    exported(folder, tmp_path / "a.parquet", "--tensors")
    schema = pq.read_schema(tmp_path / "a.parquet")
    assert schema.names == [column.name for column in (*COLUMNS, *TENSOR_COLUMNS)]
    assert schema.field("lag").metadata == {b"meaning": b"versions behind when trained"}
    assert schema.metadata[b"tidegate.format"] == b"1"


def test_every_column_is_described_in_the_docs() -> None:
    text = (Path(__file__).parents[3] / "docs" / "data.md").read_text(encoding="utf-8")
    missing = [column.name for column in (*COLUMNS, *TENSOR_COLUMNS) if f"`{column.name}`" not in text]
    assert not missing


def test_a_run_without_books_and_a_file_that_cannot_be_written_are_named(
    store: Store, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store.close()
    assert run_command(["export", str(folder), "--to", str(tmp_path / "none" / "a.parquet")]) == 2
    assert "cannot be written" in capsys.readouterr().err
    write_run(tmp_path / "bare")
    assert run_command(["export", str(tmp_path / "bare"), "--to", str(tmp_path / "a.parquet")]) == 2
    assert "no ledger" in capsys.readouterr().err
    assert not (tmp_path / "a.parquet").exists()


def test_file_at_an_address_is_the_one_that_a_folder_gets(store: Store, folder: Path, tmp_path: Path) -> None:
    store.close()
    sent = tmp_path / "bucket" / "runs" / "all.parquet"
    assert run_command(["export", str(folder), "--to", sent.as_uri()]) == 0
    assert pq.read_table(sent).to_pylist() == exported(folder, tmp_path / "local.parquet")


def test_address_that_cannot_be_one_is_refused_before_the_run_is_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_command(["export", str(tmp_path / "no-run"), "--to", "ftp://host/all.parquet"]) == 2
    assert "--to: ftp://" in capsys.readouterr().err
