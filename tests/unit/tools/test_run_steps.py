from pathlib import Path

import pytest

from tools.run_steps import main

MAKEFILE = """
quiet:
\t@echo first; echo second
loud:
\t@echo as it comes
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
