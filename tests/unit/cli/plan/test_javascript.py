"""What the translator cannot translate is refused with its line, instead of computed differently."""

import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

import pytest

from tidegate.cli.plan.javascript import translate

SOURCE = """\
LIMIT = 3

def f(x, *, y=LIMIT):
    return x + y

def g(x):
    return f(y=1, x=x)

def other():
    pass
"""


def module(folder: Path, source: str) -> ModuleType:
    path = folder / "translated.py"
    path.write_text(source, encoding="utf-8")
    spec = spec_from_file_location(f"translated_{folder.name}", path)
    assert spec is not None
    loaded = module_from_spec(spec)
    sys.modules[spec.name] = loaded
    assert spec.loader is not None
    spec.loader.exec_module(loaded)
    return loaded


def test_only_what_the_roots_need_is_translated(tmp_path: Path) -> None:
    script = translate([module(tmp_path, SOURCE)], ["g"])
    assert "const LIMIT = 3;" in script
    assert "function f(x, y = LIMIT)" in script
    assert "return f(x, 1);" in script
    assert "other" not in script


@pytest.mark.parametrize(
    "line", ["return [x for y in x for z in y]", "while x: x -= 1", "return x[1:2]", "return x @ x"]
)
def test_what_is_not_translated_is_refused_with_its_line(tmp_path: Path, line: str) -> None:
    with pytest.raises(NotImplementedError, match="is not translated: line 2"):
        translate([module(tmp_path, f"def f(x):\n    {line}\n")], ["f"])
