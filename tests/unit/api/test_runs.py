import asyncio
from pathlib import Path

import pytest

import tidegate
from tests.unit.cli.run_folder import (
    LINEAGE,
    id_of,
    write_accounting,
    write_checkpoint,
    write_run,
    write_samples,
    write_text_run,
)
from tests.unit.cli.ui.completions import LOGPROBS, TOKENS, write_completions
from tests.unit.launch.backup.folders import back_up
from tidegate.core.errors import ConfigError, NotFoundError
from tidegate.core.ids import PolicyVersion, RunId
from tidegate.launch.run_folder import read_plan, read_record
from tidegate.launch.stored_policy import StoredPolicy
from tidegate.trajectory_store import reading


def test_updates_and_metrics_are_the_step_log(tmp_path: Path) -> None:
    write_accounting(tmp_path)
    run = tidegate.Run(tmp_path)
    assert [update["step"] for update in run.updates()] == [1, 2, 3]
    metrics = run.metrics()
    assert metrics.column("mean_return").to_pylist() == [0.0, 100.0, 200.0]
    assert metrics.column("by_lag").to_pylist() == ['{"0":2}', '{"1":2}', '{"2":2}']
    assert metrics.column("mean_reward").null_count == 3
    assert str(metrics.schema.field("mean_reward").type) == "double", "a number of other runs"


def test_metric_of_an_own_objective_takes_the_place_of_no_fact(tmp_path: Path) -> None:
    write_text_run(tmp_path, updates=2, metrics={"step": 7.0})
    assert tidegate.Run(tmp_path).metrics().column("step").to_pylist() == [1, 2]


def test_trajectories_are_those_that_ended_and_the_ledger_all(tmp_path: Path) -> None:
    write_accounting(tmp_path)
    run = tidegate.Run(str(tmp_path))
    ended = run.trajectories()
    assert sorted(ended.column("outcome").to_pylist()) == ["dropped"] + ["trained"] * 6
    assert run.trajectories(since_step=2).num_rows == 3, (
        "two of the last update, and what was dropped after it"
    )
    ledger = run.ledger()
    rows = list(reading.rows(tmp_path / "trajectory_store" / "ledger.sqlite"))
    assert ledger.column("trajectory_id").to_pylist() == [row.trajectory_id for row in rows]
    assert ledger.column("trained_at").to_pylist()[:3] == ["0-aaaa@0", "0-aaaa@0", "0-aaaa@1"]
    types = {name: str(ledger.schema.field(name).type) for name in ("reward", "span", "trained_at")}
    assert types == {"reward": "double", "span": "int64", "trained_at": "string"}, "no row has a reward"


def test_tokens_come_with_the_table_where_they_are_asked_for(tmp_path: Path) -> None:
    write_completions(tmp_path)
    run = tidegate.Run(tmp_path)
    assert run.trajectories(tensors=True).num_rows == 0, "both completions wait for a batch"
    assert "tokens" in run.trajectories(tensors=True).column_names
    assert "tokens" not in run.trajectories().column_names
    assert len(TOKENS) == len(LOGPROBS)


def test_audit_and_explanations_are_those_of_the_commands(tmp_path: Path) -> None:
    write_accounting(tmp_path)
    write_samples(tmp_path)
    run = tidegate.Run(tmp_path)
    assert run.audit().balanced
    assert not run.is_running
    assert run.summary is None
    assert "Fix: add an actor" in run.explain()
    assert "was trained at 0-aaaa@1" in run.explain(id_of(3))


def test_language_model_does_not_act_here(tmp_path: Path) -> None:
    write_completions(tmp_path)
    with pytest.raises(NotFoundError, match="holds no policy"):
        tidegate.Run(tmp_path).policy()
    record, plan = read_plan(tmp_path)
    version = PolicyVersion(LINEAGE, 0)
    stored = StoredPolicy(tmp_path, RunId(record.run_id), version, tensors={}, file=plan.file, base_digest="")
    with pytest.raises(ConfigError, match="trains a language model"):
        tidegate.Policy(stored)


def test_folder_without_a_run_and_a_wrong_version_are_refused(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="no run folder"):
        tidegate.Run(tmp_path)
    write_run(tmp_path)
    with pytest.raises(ConfigError, match="no version"):
        tidegate.Run(tmp_path).policy("latest")


@pytest.mark.slow
def test_address_of_backups_is_a_run_as_well(tmp_path: Path) -> None:
    folder, bucket = tmp_path / "run", tmp_path / "bucket"
    write_accounting(folder, batches=2)
    write_checkpoint(folder, read_record(folder), step=2)
    back_up(folder, bucket)

    async def opened() -> tidegate.Run:
        return tidegate.Run(bucket.as_uri())

    run = asyncio.run(opened())  # as in a notebook, beside an event loop
    assert run.folder != folder
    assert run.id == tidegate.Run(folder).id
    assert run.audit() == tidegate.Run(folder).audit()
    copy = run.folder
    del run
    assert not copy.exists(), "it ends with the object"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("url", "said"), [("file:///nowhere/at/all", "cannot be opened as a run"), ("ftp://host/x", "begin the")]
)
def test_address_without_a_backup_is_refused(url: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        tidegate.Run(url)
