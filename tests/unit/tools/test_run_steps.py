import asyncio
import os
from pathlib import Path

import pytest

from tools import run_steps
from tools.run_steps import TIMED_OUT, main, run

MAKEFILE = """
quiet:
\t@echo first; echo second
loud:
\t@echo as it comes
endless:
	@sleep 1000 & echo $$! > sleeper; sleep 1000
broken:
\t@echo why >&2; exit 3
"""


@pytest.fixture(autouse=True)
def makefile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "Makefile").write_text(MAKEFILE, encoding="utf-8")
    monkeypatch.chdir(tmp_path)


def test_each_target_is_printed_whole_with_its_outcome(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["--stream", "loud", "quiet", "loud"]) == 0
    printed = capfd.readouterr().out
    assert "first\nsecond\n== quiet: passed in" in printed
    assert "as it comes\n" in printed
    assert "== all passed: quiet, loud" in printed


def test_failing_target_shows_why_and_fails_the_whole(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["broken", "quiet"]) == 1
    printed = capfd.readouterr().out
    assert "why\n" in printed
    assert "== broken: FAILED" in printed
    assert "== quiet: passed" in printed, "the others run to their end"
    assert "== FAILED: broken (" in printed


@pytest.mark.parametrize("streams", [True, False])
async def test_target_without_an_end_is_ended_with_its_processes(
    streams: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_steps, "GRACE_S", 0.2)  # the shell's own children ignore the interrupt
    finished = await run("endless", streams=streams, limit_s=1.0)
    assert finished.exit_code == TIMED_OUT
    assert "ended with its processes after 1 s" in finished.output
    sleeper = int((tmp_path / "sleeper").read_text(encoding="utf-8"))
    async with asyncio.timeout(30.0):
        while is_running(sleeper):
            await asyncio.sleep(0.05)


def is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
