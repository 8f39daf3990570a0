"""Callbacks of a run file: what they may be, what their mistakes cost, and the processes that call them."""

import os
import time
from pathlib import Path

import msgspec
import pytest

from tests.unit.cli.run_folder import CARTPOLE, write_text_run
from tidegate.cli.callbacks.events import EndOfRun, RunEvaluation
from tidegate.cli.callbacks.own_callback import GuardedCallback, check_callback, load_callback, told
from tidegate.cli.callbacks.watch import watch
from tidegate.core.errors import ConfigError
from tidegate.launch.companions import Companion, companions_beside, companions_of
from tidegate.launch.own_code import own_code_of, read_own_code, record_own_code
from tidegate.launch.own_code_loading import load_callbacks
from tidegate.launch.processes import log_of
from tidegate.launch.run_file import read_run_file
from tidegate.launch.run_folder import lock
from tidegate.launch.run_plan import RunPlan
from tidegate.runtime.own_code.references import OwnReference

EVALUATION = RunEvaluation("0-a@1", 1, 5.0, {"solved_share": 0.5})
END = EndOfRun("target", succeeded=True, at_s=6.0, summary={})

NOTIFY = """
from pathlib import Path


class Notify:
    def __init__(self):
        self.told = Path(__file__).with_name("told.txt")

    def on_update(self, update):
        with self.told.open("a") as file:
            file.write(f"update {update.step} {update['loss']}\\n")
        if update.step == 2:
            raise ValueError("the chat is away")

    def on_end(self, end):
        with self.told.open("a") as file:
            file.write(f"end {end.ended_by or 'killed'}\\n")
"""


def reference_to(folder: Path, code: str, name: str = "Notify") -> OwnReference:
    folder.mkdir(exist_ok=True)
    path = folder / "my_callbacks.py"
    path.write_text(code)
    return OwnReference(f"my_callbacks.py:{name}", str(path), name, str(folder))


def plan_with(folder: Path, code: str, callbacks: str = "[my_callbacks.py:Notify]") -> RunPlan:
    reference_to(folder, code)
    return read_run_file(CARTPOLE, [f"callbacks={callbacks}", f"files_dir={folder}"])


class Counts:
    def __init__(self) -> None:
        self.evaluations = 0

    def on_evaluation(self, evaluation: RunEvaluation) -> None:
        self.evaluations += 1


def test_only_the_methods_that_a_callback_has_are_called() -> None:
    counts = Counts()
    check_callback(counts, written="counts")
    told(counts, EVALUATION)
    told(counts, END)
    assert counts.evaluations == 1


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("class Notify:\n    def on_step(self, update): pass", r"is no callback.*on_update, on_evaluation"),
        ("class Notify:\n    def on_update(self): pass", r"cannot be called as on_update\(event\)"),
        ("class Notify:\n    def __init__(self, url): pass", r"cannot be made.*TypeError.*without arguments"),
        ("import no_such_module\nclass Notify: pass", r"ModuleNotFoundError at \S*my_callbacks\.py:1"),
    ],
)
def test_what_could_never_be_called_is_refused_before_a_run(tmp_path: Path, code: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        load_callback(reference_to(tmp_path / "own", code))


def test_failures_are_counted_and_told_once_a_kind_with_their_place(tmp_path: Path) -> None:
    code = (
        "class Notify:\n"
        "    def on_evaluation(self, evaluation): raise ValueError('away')\n"
        "    def on_end(self, end): raise SystemExit(1)\n"
    )
    reference = reference_to(tmp_path / "own", code)
    said: list[str] = []
    guarded = GuardedCallback(load_callback(reference), reference, say=said.append)
    for _ in range(3):
        guarded.tell(EVALUATION)
        guarded.tell(END)
    assert guarded.num_failures == 6
    sentences = [line for line in said if line.startswith("my_callbacks.py:Notify: ")]
    assert len(sentences) == 2
    assert "on_evaluation failed: ValueError at " in sentences[0]
    assert "my_callbacks.py:2 in on_evaluation: away" in sentences[0]
    assert "on_end failed: SystemExit at " in sentences[1]


def test_run_is_told_from_its_first_update_to_its_end_whatever_the_code_raises(tmp_path: Path) -> None:
    run, own = tmp_path / "run", tmp_path / "own"
    reference = reference_to(own, NOTIFY)
    said: list[str] = []
    run.mkdir()
    held = lock(run)
    write_text_run(run, updates=3)

    def over(_seconds: float) -> None:
        os.close(held)

    assert not watch(run, load_callback(reference), reference, since_s=0.0, say=said.append, pause=over), (
        "a call failed"
    )
    assert (own / "told.txt").read_text().splitlines() == [
        "update 1 0.1",
        "update 2 0.1",
        "update 3 0.1",
        "end killed",
    ]
    assert any("the chat is away" in line for line in said)
    assert said[-1] == "my_callbacks.py:Notify: 1 calls failed"


def test_callbacks_of_the_run_file_run_beside_it_each_in_a_process(tmp_path: Path) -> None:
    entries = "[my_callbacks.py:Notify, {code: my_callbacks.py:Notify, end_deadline_s: 5}]"
    first, second = companions_of(plan_with(tmp_path / "own", NOTIFY, entries), tmp_path)
    assert (first.name, second.name) == ("callback-0-Notify", "callback-1-Notify")
    assert first.module == "tidegate.cli.callbacks.watch"
    assert msgspec.json.decode(first.arguments[2], type=OwnReference).attribute == "Notify"
    assert second.end_deadline_s == 5.0


def test_callback_is_recorded_by_its_digest_and_may_change_between_two_starts(tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    plan = plan_with(tmp_path / "own", NOTIFY)
    assert list(own_code_of(plan)) == ["callbacks.0"]
    record_own_code(plan, run)
    before = read_own_code(run)
    assert before is not None
    assert list(before["callbacks.0"].files) == ["my_callbacks.py"]
    record_own_code(plan_with(tmp_path / "own", f"{NOTIFY}\n# corrected\n"), run)
    after = read_own_code(run)
    assert after is not None
    assert after["callbacks.0"].files != before["callbacks.0"].files


@pytest.mark.slow
def test_start_refuses_a_callback_that_cannot_be_loaded_by_its_place_in_the_run_file(tmp_path: Path) -> None:
    load_callbacks(plan_with(tmp_path / "own", NOTIFY))
    with pytest.raises(ConfigError, match=r"callbacks\.0: .*is no callback"):
        load_callbacks(plan_with(tmp_path / "bad", "class Notify: pass"))


@pytest.mark.slow
def test_hanging_callback_is_gone_after_its_deadline_and_the_others_were_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    run.mkdir()
    held = lock(run)
    write_text_run(run, updates=3)
    hanging = (
        "import time\nclass Notify:\n    def on_update(self, update):\n        while True: time.sleep(60)\n"
    )
    companions = [
        companion(run, reference_to(tmp_path / "hanging", hanging), name="callback-0-Notify"),
        companion(run, reference_to(tmp_path / "own", NOTIFY), name="callback-1-Notify"),
    ]
    told_file = tmp_path / "own" / "told.txt"
    with companions_beside(companions, run):
        while not told_file.is_file() or "update 3" not in told_file.read_text():
            time.sleep(0.05)
        os.close(held)
    assert told_file.read_text().endswith("end killed\n")
    said = capsys.readouterr().err
    assert "callback-0-Notify did not end" in said
    assert "callback-1-Notify failed: see logs/callback-1-Notify.log" in said
    log = log_of(run, "callback-1-Notify").read_text()
    assert "ValueError at" in log
    assert "the chat is away" in log


def companion(run: Path, reference: OwnReference, *, name: str) -> Companion:
    return Companion(
        name=name,
        module="tidegate.cli.callbacks.watch",
        arguments=[str(run), "0", msgspec.json.encode(reference).decode()],
        end_deadline_s=30.0 if name.startswith("callback-1") else 1.0,
    )
