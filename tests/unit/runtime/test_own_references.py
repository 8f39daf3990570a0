"""Names of own code: where each form leads, what is said of one that leads nowhere, and where code failed."""

import json
from importlib import metadata
from pathlib import Path

import pytest

from tidegate.core.errors import ConfigError
from tidegate.runtime.own_code.loading import load_object, load_own, place_of
from tidegate.runtime.own_code.references import OwnReference, defined_names, find_path, resolve


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a task beside its run file; the working directory is another one."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    beside = tmp_path / "project"
    beside.mkdir()
    (beside / "my_task.py").write_text("import helper\n\nclass Reverse:\n    word = helper.WORD\n")
    (beside / "helper.py").write_text("WORD = 'help'\n")
    return beside


def test_file_beside_the_run_file_is_found_from_any_working_directory(folder: Path) -> None:
    reference = resolve("my_task.py:Reverse", kind="tasks", folder=str(folder))
    assert reference.source == str(folder / "my_task.py")
    assert load_object(reference).word == "help", "modules beside the file can be imported by it"


def test_file_in_the_working_directory_is_found_second(folder: Path) -> None:
    Path("other.py").write_text("def score(prompt, completion, answer): return 1\n")
    assert resolve("other.py:score", kind="tasks", folder=str(folder)).source == str(
        Path("other.py").absolute()
    )


def test_module_beside_the_run_file_is_found_by_its_name(folder: Path) -> None:
    reference = resolve("helper:WORD", kind="tasks", folder=str(folder))
    assert load_object(reference) == "help"


def test_name_that_a_package_registered_is_found(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    registered = [("words", "helper:WORD"), ("twice", "helper:WORD"), ("twice", "other.tasks:WORD")]
    points = metadata.EntryPoints(
        [metadata.EntryPoint(name, value, "tidegate.tasks") for name, value in registered]
    )

    def entry_points(*, group: str) -> metadata.EntryPoints:
        return points.select(group=group)

    monkeypatch.setattr(metadata, "entry_points", entry_points)
    assert load_object(resolve("words", kind="tasks", folder=str(folder))) == "help"
    with pytest.raises(ConfigError, match=r"several\..*helper:WORD and as other\.tasks:WORD"):
        resolve("twice", kind="tasks", folder=str(folder))
    with pytest.raises(ConfigError, match="There is no 'words' among the objectives"):
        resolve("words", kind="objectives", folder=str(folder))


@pytest.mark.parametrize(
    ("name", "said"),
    [
        (
            "my_tsak.py:Reverse",
            r"no file my_tsak\.py\. it was looked for at \S*project/my_tsak\.py and at .*: my_task\.py",
        ),
        ("my_task.py:Revers", r"my_task\.py defines no 'Revers'\. name one of: Reverse"),
        ("my_task.py", r"There is no 'my_task\.py' among the tasks"),
        ("no_such_module:Task", r"names the module no_such_module, which there is not"),
        ("sumz", r"group tidegate\.tasks\. name one of: sums, or name a file"),
        (":Task", "names no code"),
        ("my_task.py:1x", "names no code"),
    ],
)
def test_name_that_leads_nowhere_is_refused_with_what_is_there(folder: Path, name: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        resolve(name, kind="tasks", folder=str(folder), known=["arithmetic", "sums"])


def test_files_are_not_run_to_be_found(folder: Path) -> None:
    (folder / "loud.py").write_text("def score(p, c, a): return 1\nraise SystemExit('it was run')\n")
    resolve("loud.py:score", kind="tasks", folder=str(folder))


def test_names_are_those_that_a_module_binds_at_its_top(tmp_path: Path) -> None:
    path = tmp_path / "names.py"
    path.write_text(
        "from a import b as c\nimport d.e\nx, y = 1, 2\nz: int = 3\n"
        "if x:\n    def inner(): pass\nclass K:\n    no = 1\n"
    )
    assert defined_names(path) == ["c", "d", "x", "y", "z", "inner", "K"]


def test_line_that_is_no_python_is_named(folder: Path) -> None:
    (folder / "broken.py").write_text("x = 1\ndef score(:\n")
    with pytest.raises(ConfigError, match=r"SyntaxError at \S*broken\.py:2"):
        resolve("broken.py:score", kind="tasks", folder=str(folder))


def test_code_that_fails_while_it_is_loaded_is_named_with_its_line(folder: Path) -> None:
    (folder / "failing.py").write_text("def score(p, c, a): return 1\n\n1 / 0\n")
    reference = resolve("failing.py:score", kind="tasks", folder=str(folder))
    with pytest.raises(
        ConfigError, match=r"cannot be loaded\. ZeroDivisionError at \S*failing\.py:3 in <module>"
    ):
        load_own(reference)


def test_dataset_beside_the_run_file_comes_before_one_in_the_working_directory(folder: Path) -> None:
    Path("rows.jsonl").touch()
    assert find_path("rows.jsonl", folder=str(folder)) == Path("rows.jsonl")
    (folder / "rows.jsonl").touch()
    assert find_path("rows.jsonl", folder=str(folder)) == folder / "rows.jsonl"


def raised_by(reference: OwnReference) -> BaseException:
    try:
        load_object(reference)()
    except Exception as error:  # what the code raises is under test
        return error
    raise AssertionError("it raised nothing")


def test_a_failure_is_placed_at_the_innermost_line_of_own_code(folder: Path) -> None:
    (folder / "deep.py").write_text("import json\n\n\ndef parse(text):\n    return json.loads(text)\n")
    (folder / "failing.py").write_text("import deep\n\n\ndef score():\n    return deep.parse('no JSON')\n")
    file = str(folder / "failing.py")
    error = raised_by(resolve("failing.py:score", kind="tasks", folder=str(folder)))
    assert place_of(error, file=file).endswith("deep.py:5 in parse"), (
        "not the library's line, nor the caller's"
    )
    assert place_of(error, file="failing").endswith("deep.py:5 in parse"), "by the name of a module as well"


def test_packages_installed_below_a_project_are_not_its_own_code(folder: Path) -> None:
    package = folder / ".venv" / "lib" / "site-packages"
    package.mkdir(parents=True)
    (package / "installed_below.py").write_text("def fail():\n    raise ValueError('inside')\n")
    (folder / "calling.py").write_text(
        f"import sys\nsys.path.insert(0, {str(package)!r})\nimport installed_below\n\n"
        "def score():\n    installed_below.fail()\n"
    )
    error = raised_by(resolve("calling.py:score", kind="tasks", folder=str(folder)))
    assert place_of(error, file=str(folder / "calling.py")).endswith("calling.py:6 in score")


def test_a_failure_outside_of_own_code_is_placed_where_it_was_raised() -> None:
    with pytest.raises(ValueError, match="Expecting value") as raised:
        json.loads("no JSON")
    # The test itself is no own code of that folder.
    assert " in raw_decode" in place_of(raised.value, file="/elsewhere/my_task.py")
