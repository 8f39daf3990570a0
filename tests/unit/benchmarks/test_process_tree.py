"""Nothing that a tree computed is lost, however short its processes lived."""

import subprocess
import sys
import time
from pathlib import Path

import pytest

from benchmarks.process_tree import (
    ProcessTimes,
    children_of,
    descendants,
    parse_stat,
    read_processes,
    tree_cpu_s,
)
from benchmarks.program import Program
from tidegate.core.errors import UnavailableError

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")

BURN_S = 0.15
# Computes for a while by its own CPU clock, so that a busy machine changes nothing.
BURN = f"import time\nwhile time.process_time() < {BURN_S}: pass"
BURN_CHILD = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {BURN!r}], check=True)"
# The middle process ends at once and is waited for; its child goes on alone.
MIDDLE = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {BURN!r}])"
ORPHAN = (
    "import subprocess, sys, time\n"
    f"subprocess.run([sys.executable, '-c', {MIDDLE!r}], check=True)\n"
    "time.sleep(60)"
)
RESOLUTION_S = 0.05


def run_program(code: str, folder: Path) -> Program:
    return Program([sys.executable, "-c", code], log=folder / "log")


def test_stat_line_is_read_whatever_the_process_is_called() -> None:
    line = "17 (a) b (c) 1 2) S 5 17 17 0 -1 4194304 100 0 0 0 150 50 300 100 20 0 1 0 422623 3133440 388"
    assert parse_stat(line) == ProcessTimes(parent=5, own_s=2.0, waited_s=4.0)


def test_descendants_are_those_below_a_root_that_exists() -> None:
    parents = {1: 0, 2: 1, 3: 2, 4: 1, 5: 4, 6: 3}
    processes = {pid: ProcessTimes(parent, 0.0, 0.0) for pid, parent in parents.items()}
    assert descendants(processes, {2}) == {2, 3, 6}
    assert descendants(processes, {4, 99}) == {4, 5}


def test_time_of_a_child_that_ended_before_anybody_looked_is_counted(tmp_path: Path) -> None:
    code = f"{BURN_CHILD}; open({str(tmp_path / 'done')!r}, 'w'); import time; time.sleep(60)"
    with run_program(code, tmp_path) as program:
        wait_for(tmp_path / "done")
        assert program.moment().cpu_s >= BURN_S


def test_account_of_an_ended_program_holds_its_children(tmp_path: Path) -> None:
    with run_program(BURN_CHILD, tmp_path) as program:
        assert program.wait(timeout_s=60)
        assert program.exit_code == 0
        assert program.moment().cpu_s >= BURN_S


def test_orphan_is_counted_while_it_lives_and_ended_with_the_program(tmp_path: Path) -> None:
    with run_program(ORPHAN, tmp_path) as program:
        deadline_s = time.monotonic() + 60
        # One reading is judged: between its parent's death and its adoption an orphan may be missed by the next.
        while (seen_s := program.moment().cpu_s) < BURN_S and time.monotonic() < deadline_s:
            time.sleep(0.02)
        assert seen_s >= BURN_S
        before_s = program.moment().cpu_s
    assert program.moment().cpu_s >= before_s - RESOLUTION_S
    assert program.pid not in read_processes()


def test_program_that_ended_by_itself_is_noticed_with_its_last_words(tmp_path: Path) -> None:
    with run_program("import sys; sys.exit('no broker here')", tmp_path) as program:
        assert program.wait(timeout_s=60)
        with pytest.raises(UnavailableError, match=r"exit code 1.*no broker here"):
            program.require_alive()


def test_nothing_is_left_of_a_program_that_ignores_sigterm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("benchmarks.program.END_TIMEOUT_S", 0.3)
    code = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); open('READY', 'w'); time.sleep(60)"
    code = code.replace("READY", str(tmp_path / "ready"))
    with run_program(code, tmp_path) as program:
        wait_for(tmp_path / "ready")
    assert program.exit_code == -9


def test_reading_a_tree_without_processes_is_zero() -> None:
    done = subprocess.run([sys.executable, "-c", ""], check=True)
    assert done.returncode == 0
    assert tree_cpu_s({2**22 + 1}) == 0.0
    assert children_of(2**22 + 1) == set()


def wait_for(path: Path) -> None:
    deadline_s = time.monotonic() + 60
    while not path.exists():
        assert time.monotonic() < deadline_s, f"{path} never came"
        time.sleep(0.02)
