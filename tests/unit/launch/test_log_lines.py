"""A line for each event; in a cluster a JSON object with its origin and its trace."""

import contextlib
import json
from collections.abc import Iterator

import pytest
import structlog

from tests.support.disks import FULL
from tidegate.launch.log_lines import log_json_lines, log_plain_lines
from tidegate.runtime.rpc import trace_context


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    before = structlog.get_config()
    yield
    structlog.configure(**before)


def test_plain_lines_begin_with_when_how_bad_and_what(capsys: pytest.CaptureFixture[str]) -> None:
    log_plain_lines()
    structlog.get_logger("x").info("service_ready", address="here")
    line = capsys.readouterr().out
    assert line.startswith("timestamp=")
    assert "level=info event=service_ready address=here" in line


def test_json_lines_say_who_speaks_and_in_which_trace(capsys: pytest.CaptureFixture[str]) -> None:
    log_json_lines(service="actor", instance="rl-actor-1", run="cartpole-rl")
    token = trace_context.set("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")
    structlog.get_logger("x").warning("policy_late", lag=3)
    trace_context.reset(token)
    structlog.get_logger("x").info("service_ready")
    first, second = map(json.loads, capsys.readouterr().out.splitlines())
    assert (first["event"], first["level"], first["lag"]) == ("policy_late", "warning", 3)
    assert (first["service"], first["instance"], first["run"]) == (
        "tidegate-actor",
        "rl-actor-1",
        "cartpole-rl",
    )
    assert first["trace_id"] == "0af7651916cd43dd8448eb211c80319c"
    assert "trace_id" not in second


@pytest.mark.skipif(not FULL.exists(), reason="the system has no /dev/full")
def test_line_that_a_full_disk_refuses_is_lost_and_raises_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    with FULL.open("w") as full:
        with pytest.raises(OSError, match="No space"):
            print("x", file=full, flush=True)
        monkeypatch.setattr("sys.stdout", full)
        log_plain_lines()
        for number in range(10_000):  # more than any buffer
            structlog.get_logger("x").info("step_made", number=number)
        monkeypatch.undo()
        with contextlib.suppress(OSError):
            full.close()
