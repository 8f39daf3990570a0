"""The sources stay small enough to read."""

from pathlib import Path

ROOT = Path(__file__).parents[2]
LINES_MAX = 500  # past this a file holds more than one thing; modules aim at 200


def test_source_files_are_short_enough_to_read() -> None:
    sources = [
        path
        for folder in ("services", "tests", "tools")
        for path in (ROOT / folder).rglob("*.py")
        if "v1" not in path.parts  # generated
    ]
    assert sources
    num_lines = {path: len(path.read_text(encoding="utf-8").splitlines()) for path in sources}
    assert {str(path.relative_to(ROOT)): num for path, num in num_lines.items() if num > LINES_MAX} == {}
