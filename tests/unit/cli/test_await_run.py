"""Conditions of `tidegate await`, the message about a missing one, and the wait for the end of a run."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import grpc
import msgspec
import pytest
from rich.console import Console

from tests.unit.cli.run_folder import write_run
from tidegate.cli import await_run
from tidegate.cli.app import run
from tidegate.cli.await_run import check_growth, check_target_reached, wait_for_end
from tidegate.core.errors import PermissionDeniedError, TidegateError, UnauthenticatedError, UnavailableError
from tidegate.core.targets import parse_target
from tidegate.launch.run_record import RunRecord
from tidegate.wire.clients.admission import AdmissionClient, CompletionReport

BEFORE = {"admitted_total": 10.0, "trained_total": 8.0, "version_step": 4.0}


def test_target_is_done_when_it_holds_and_else_shows_what_there_is() -> None:
    target = parse_target("mean_return>=475")
    assert check_target_reached(target, {"mean_return": 480.0}) == (True, "mean_return>=475 holds")
    done, message = check_target_reached(target, {"mean_return": 12.0})
    assert not done
    assert "12.0" in message


def test_a_gradient_is_seen_when_all_three_counts_have_grown() -> None:
    after = {"admitted_total": 12.0, "trained_total": 10.0, "version_step": 5.0}
    done, message = check_growth(BEFORE, after)
    assert done
    assert "version_step 4 -> 5" in message


def test_what_did_not_grow_is_named() -> None:
    assert check_growth(BEFORE, BEFORE | {"admitted_total": 12.0}) == (
        False,
        "no growth of trained_total, version_step",
    )


def test_what_nobody_reported_yet_is_named() -> None:
    assert check_growth({}, {"admitted_total": 1.0}) == (
        False,
        "no statistics yet of trained_total, version_step",
    )


@pytest.fixture
def record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunRecord:
    """Of a run in a cluster, whose admission answers what the test says."""

    @asynccontextmanager
    async def channel_to(_record: RunRecord, _service: str) -> AsyncGenerator[grpc.aio.Channel]:
        async with grpc.aio.insecure_channel("127.0.0.1:9") as channel:
            yield channel

    monkeypatch.setattr(await_run, "COMPLETION_POLL_S", 0.0)
    monkeypatch.setattr(await_run, "channel_to", channel_to)
    return msgspec.structs.replace(write_run(tmp_path), cluster=True)


def answer(monkeypatch: pytest.MonkeyPatch, *answers: TidegateError | CompletionReport) -> None:
    given = iter(answers)

    async def completion(_client: AdmissionClient) -> CompletionReport:
        found = next(given)
        if isinstance(found, TidegateError):
            raise found
        return found

    monkeypatch.setattr(AdmissionClient, "completion", completion)


ENDED = CompletionReport(["version_step>=200"], reached="version_step>=200", complete=True)


async def test_wait_for_the_end_outlasts_a_restart_and_a_rotated_credential(
    record: RunRecord, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer(monkeypatch, UnavailableError("it restarts"), UnauthenticatedError("rotated"), ENDED)
    await wait_for_end(record, timeout_s=60.0, console=Console(quiet=True))


async def test_wait_for_the_end_gives_up_where_it_may_not_ask(
    record: RunRecord, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer(monkeypatch, PermissionDeniedError("not for this role"), ENDED)
    with pytest.raises(PermissionDeniedError):
        await wait_for_end(record, timeout_s=60.0, console=Console(quiet=True))


def test_run_that_is_over_is_named_as_what_was_waited_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_run(tmp_path)
    assert run(["await", "--timeout", "0.1s", "--dir", str(tmp_path)]) == 1
    assert f"No platform runs in {tmp_path}" in capsys.readouterr().err


def test_run_that_another_command_is_starting_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "run"

    def start(_seconds: float) -> None:
        folder.mkdir()
        write_run(folder)

    monkeypatch.setattr(await_run.time, "sleep", start)
    assert run(["await", "--timeout", "0.3s", "--dir", str(folder)]) == 1
    assert f"No platform runs in {folder}" in capsys.readouterr().err


def test_folder_that_no_run_begins_in_is_named_after_the_timeout(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["await", "--timeout", "0.1s", "--dir", str(tmp_path / "nothing")]) == 2
    assert "nothing is no run folder" in capsys.readouterr().err
