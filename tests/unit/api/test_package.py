import ast
import subprocess
import sys
from pathlib import Path

import pytest

import tidegate

PACKAGE = Path(tidegate.__file__ or "").parent


def test_import_loads_nothing_until_a_name_is_used() -> None:
    program = (
        "import sys, tidegate\n"
        "assert not [name for name in sys.modules if name.startswith('tidegate.')]\n"
        "assert tidegate.Run.__name__ == 'Run'\n"
        "assert 'matplotlib' not in sys.modules and 'torch' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_type_checkers_see_the_names_that_there_are() -> None:
    stub = ast.parse((PACKAGE / "__init__.pyi").read_text())
    declared = {
        alias.asname: node.module
        for node in stub.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert declared == vars(tidegate)["_HOMES"]
    for name in declared:
        assert getattr(tidegate, str(name)) is not None


def test_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="'fit'"):
        getattr(tidegate, "fit")  # noqa: B009 (a type checker knows that it is not there)
