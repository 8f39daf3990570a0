import os
from pathlib import Path

import pytest

from tests.unit.cli.run_folder import CARTPOLE, write_accounting, write_run
from tidegate.core.errors import ConfigError, CorruptionError, NotFoundError, StaleFolderError
from tidegate.launch.run_file import read_run_file
from tidegate.launch.run_folder import (
    PASSWORDS_JSON,
    PROCESSES_JSON,
    RUN_JSON,
    as_user,
    find_folder,
    is_running,
    lock,
    new_record,
    read_plan,
    read_processes,
    read_record,
    resumed_record,
    write_passwords,
    write_record,
)


def test_run_id_is_the_name_with_a_suffix_of_its_own() -> None:
    plan = read_run_file(CARTPOLE, [])
    first, second = new_record(plan), new_record(plan)
    assert first.run_id.startswith("cartpole-")
    assert first.run_id != second.run_id


def test_every_instance_gets_an_address_of_its_own() -> None:
    record = new_record(read_run_file(CARTPOLE, ["actor.replicas=3"]))
    addresses = [address for each in record.addresses.values() for address in each]
    assert len(record.addresses["actor"]) == 3
    assert len({*addresses, f"127.0.0.1:{record.broker.port}"}) == len(addresses) + 1


def test_record_is_for_this_account_only_and_holds_no_credentials(tmp_path: Path) -> None:
    record = as_user(write_run(tmp_path), "actor", {"actor": "p4ss"})
    write_record(tmp_path, record)
    assert (tmp_path / RUN_JSON).stat().st_mode & 0o077 == 0
    assert "p4ss" not in (tmp_path / RUN_JSON).read_text()


def test_each_reader_of_a_folder_is_its_own_user_at_the_broker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_run(tmp_path)
    assert read_record(tmp_path).broker.password == "", "before the first start there is no broker"
    write_passwords(tmp_path, {"operator": "o", "actor": "a", "learner": "l"})
    assert (tmp_path / PASSWORDS_JSON).stat().st_mode & 0o077 == 0
    for user, password in (("operator", "o"), ("actor", "a")):
        broker = read_record(tmp_path, user=user).broker
        assert (broker.user, broker.password) == (user, password)
    assert read_record(tmp_path).broker.user == "operator", "a command of a person"
    monkeypatch.setenv("TIDEGATE_BROKER_USER", "actor")
    monkeypatch.setenv("TIDEGATE_BROKER_PASSWORD", "given by the supervisor")
    assert read_record(tmp_path, user="actor").broker.password == "given by the supervisor"


def test_plan_is_read_back_as_it_was(tmp_path: Path) -> None:
    plan = read_run_file(CARTPOLE, ["staleness.max_lag=7"])
    write_record(tmp_path, new_record(plan))
    assert read_plan(tmp_path)[1] == plan


def test_resumed_folder_keeps_its_run_id_token_aside(tmp_path: Path) -> None:
    old = write_run(tmp_path)
    record = resumed_record(tmp_path, read_run_file(CARTPOLE, ["staleness.max_lag=1"]))
    assert record.run_id == old.run_id
    assert record.created_at_s == old.created_at_s
    assert record.run_file["staleness"]["max_lag"] == 1


def test_folder_of_another_run_is_refused_with_what_to_do(tmp_path: Path) -> None:
    write_run(tmp_path)
    with pytest.raises(StaleFolderError, match="choose another --dir"):
        resumed_record(tmp_path, read_run_file(CARTPOLE, ["run=other"]))


def test_folder_made_for_another_policy_is_refused(tmp_path: Path) -> None:
    write_run(tmp_path)
    with pytest.raises(StaleFolderError, match="another `policy`"):
        resumed_record(tmp_path, read_run_file(CARTPOLE, ["policy.hidden=[8]"]))


@pytest.mark.parametrize("content", [b"", b"{", b"\xff\xfe"])
def test_damaged_record_is_named_with_a_way_back(tmp_path: Path, content: bytes) -> None:
    (tmp_path / RUN_JSON).write_bytes(content)
    with pytest.raises(CorruptionError, match=r"run\.json.*from a copy"):
        read_record(tmp_path)


@pytest.mark.parametrize("content", [b"[]", b'{"format": 1}'])
def test_record_that_is_none_is_a_stale_folder_and_no_traceback(tmp_path: Path, content: bytes) -> None:
    (tmp_path / RUN_JSON).write_bytes(content)
    with pytest.raises(StaleFolderError, match="from a copy"):
        read_record(tmp_path)


@pytest.mark.parametrize("name", [PROCESSES_JSON, PASSWORDS_JSON])
def test_damaged_file_that_each_start_writes_is_named_and_the_folder_resumed(
    tmp_path: Path, name: str
) -> None:
    write_run(tmp_path)
    (tmp_path / name).write_bytes(b"{")
    with pytest.raises(CorruptionError, match=f"{name}.*remove the file"):
        read_processes(tmp_path) if name == PROCESSES_JSON else read_record(tmp_path)
    resumed_record(tmp_path, read_run_file(CARTPOLE, []))


def test_record_of_another_format_is_refused(tmp_path: Path) -> None:
    write_run(tmp_path)
    path = tmp_path / RUN_JSON
    path.write_bytes(path.read_bytes().replace(b'"format": 1', b'"format": 2'))
    with pytest.raises(StaleFolderError, match="format 2"):
        read_record(tmp_path)


def test_folder_that_holds_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match=r"run\.json"):
        find_folder(tmp_path)


def test_newest_run_is_the_default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(NotFoundError, match="tidegate up"):
        find_folder(None)
    for number, name in enumerate(("b-1", "a-2")):
        folder = tmp_path / ".tidegate" / "runs" / name
        write_run(folder)
        os.utime(folder / RUN_JSON, (number, number))
    assert find_folder(None).name == "a-2"


def test_folder_can_be_started_only_once_at_a_time(tmp_path: Path) -> None:
    held = lock(tmp_path)
    with pytest.raises(ConfigError, match="in use by another"):
        lock(tmp_path)
    os.close(held)
    os.close(lock(tmp_path))


def test_folder_whose_supervisor_was_killed_is_not_running(tmp_path: Path) -> None:
    write_run(tmp_path)
    record = b'{"supervisor_pid": %d, "started_at_s": 1.0, "ended": false, "processes": {}}' % os.getpid()
    (tmp_path / PROCESSES_JSON).write_bytes(record)
    # The process id exists (it is this test's), and no process holds the lock of the folder.
    assert not is_running(tmp_path)
    held = lock(tmp_path)
    assert is_running(tmp_path)
    os.close(held)


@pytest.mark.parametrize("name", ["trajectory_store/ledger.sqlite", "task_queue/journal.sqlite"])
def test_folder_that_trained_and_lost_its_ledger_or_journal_is_not_resumed(tmp_path: Path, name: str) -> None:
    write_accounting(tmp_path)
    plan = read_run_file(CARTPOLE, [])
    resumed_record(tmp_path, plan)
    lost = tmp_path / name
    copy = lost.read_bytes()
    lost.write_bytes(b"")  # SQLite takes it for a new database
    with pytest.raises(CorruptionError, match=r"is gone.*tidegate fork"):
        resumed_record(tmp_path, plan)
    lost.unlink()
    with pytest.raises(CorruptionError, match=r"is gone.*tidegate fork"):
        resumed_record(tmp_path, plan)
    lost.write_bytes(copy)
    resumed_record(tmp_path, plan)
    lost.unlink()
    (tmp_path / "learner" / "steps.jsonl").unlink()
    resumed_record(tmp_path, plan)  # killed before it trained: its services make the file
