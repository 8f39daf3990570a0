import os
from pathlib import Path

import pytest

from tests.unit.cli.run_folder import CARTPOLE, write_run
from tidegate.core.errors import ConfigError, NotFoundError, StaleFolderError
from tidegate.launch.run_file import read_run_file
from tidegate.launch.run_folder import (
    PROCESSES_JSON,
    RUN_JSON,
    find_folder,
    is_running,
    lock,
    new_record,
    read_plan,
    read_record,
    resumed_record,
    write_record,
)


def test_run_id_is_the_name_with_a_suffix_of_its_own() -> None:
    plan = read_run_file(CARTPOLE, [])
    first, second = new_record(plan), new_record(plan)
    assert first.run_id.startswith("cartpole-")
    assert first.run_id != second.run_id
    assert first.broker.token != second.broker.token


def test_every_instance_gets_an_address_of_its_own() -> None:
    record = new_record(read_run_file(CARTPOLE, ["actor.replicas=3"]))
    addresses = [address for each in record.addresses.values() for address in each]
    assert len(record.addresses["actor"]) == 3
    assert len({*addresses, f"127.0.0.1:{record.broker.port}"}) == len(addresses) + 1


def test_record_holds_the_token_and_is_for_this_user_only(tmp_path: Path) -> None:
    write_run(tmp_path)
    assert (tmp_path / RUN_JSON).stat().st_mode & 0o077 == 0


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


def test_widest_budget_of_a_folder_is_what_the_audit_holds_it_to(tmp_path: Path) -> None:
    write_record(tmp_path, new_record(read_run_file(CARTPOLE, ["staleness.max_lag=9"])))
    assert resumed_record(tmp_path, read_run_file(CARTPOLE, ["staleness.max_lag=1"])).max_lag_ever == 9


def test_folder_of_another_run_is_refused_with_what_to_do(tmp_path: Path) -> None:
    write_run(tmp_path)
    with pytest.raises(StaleFolderError, match="choose another --dir"):
        resumed_record(tmp_path, read_run_file(CARTPOLE, ["run=other"]))


def test_folder_made_for_another_policy_is_refused(tmp_path: Path) -> None:
    write_run(tmp_path)
    with pytest.raises(StaleFolderError, match="another `policy`"):
        resumed_record(tmp_path, read_run_file(CARTPOLE, ["policy.hidden=[8]"]))


@pytest.mark.parametrize("content", [b"{", b"[]", b'{"format": 1}', b"\xff\xfe"])
def test_damaged_record_is_a_stale_folder_and_no_traceback(tmp_path: Path, content: bytes) -> None:
    (tmp_path / RUN_JSON).write_bytes(content)
    with pytest.raises(StaleFolderError, match="use a new folder"):
        read_record(tmp_path)


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
