"""``tidegate replay`` of versions that it cannot compare."""

from pathlib import Path

import pytest

from tests.unit.cli.run_folder import write_accounting
from tidegate.cli.app import run


@pytest.mark.parametrize("option", ["--diff", "--from"])
@pytest.mark.parametrize("other", ["9-zzzz@1", "0-aaaa@3"])
def test_version_that_is_no_ancestor_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], option: str, other: str
) -> None:
    write_accounting(tmp_path)
    assert run(["replay", "0-aaaa@2", "--dir", str(tmp_path), option, other]) != 0
    said = capsys.readouterr().err
    assert f"0-aaaa@2 was not trained from {other}" in said
    assert "Name a version of 0-aaaa" in said
