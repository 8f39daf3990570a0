"""A tree's CPU time includes every process in it, however short it lived."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from benchmarks.process_tree import children_of, command_cpu_s, process_cpu_s, tree_cpu_s, tree_of
from benchmarks.program import Program
from tidegate.core.errors import UnavailableError

pytestmark = pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="only Linux keeps the CPU time of children that ended"
)

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
NO_PID = 2**22 + 1  # the kernel gives no greater one than 2**22


def run_program(code: str, folder: Path) -> Program:
    return Program([sys.executable, "-c", code], log=folder / "log")


def test_process_is_read_whatever_it_is_called(tmp_path: Path) -> None:
    name = tmp_path / "a) b (c) 1 2"
    name.symlink_to(sys.executable)
    code = f"{BURN}\nopen({str(tmp_path / 'done')!r}, 'w')\ntime.sleep(60)"
    with Program([str(name), "-S", "-c", code], log=tmp_path / "log") as program:
        wait_for(tmp_path / "done")
        spent_s = process_cpu_s(program.pid)
        assert spent_s is not None
        assert spent_s >= BURN_S - RESOLUTION_S
        assert program.moment().cpu_s >= BURN_S - RESOLUTION_S


def test_tree_holds_the_descendants_of_the_roots_that_exist(tmp_path: Path) -> None:
    sleeper = f"import time; open({str(tmp_path / 'ready')!r}, 'w'); time.sleep(60)"
    parent = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {sleeper!r}])"
    with run_program(
        f"import subprocess, sys; subprocess.run([sys.executable, '-c', {parent!r}])", tmp_path
    ) as program:
        wait_for(tmp_path / "ready")
        (child,) = children_of(program.pid)
        (grandchild,) = children_of(child)
        assert {process.pid for process in tree_of({program.pid, NO_PID})} == {program.pid, child, grandchild}
        assert {process.pid for process in tree_of({child})} == {child, grandchild}


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


@pytest.mark.slow
def test_orphan_is_counted_while_it_lives_and_ended_with_the_program(tmp_path: Path) -> None:
    with run_program(ORPHAN, tmp_path) as program:
        deadline_s = time.monotonic() + 60
        # One reading is judged: between its parent's death and its adoption an orphan may be missed by the next.
        while (seen_s := program.moment().cpu_s) < BURN_S and time.monotonic() < deadline_s:
            time.sleep(0.02)
        assert seen_s >= BURN_S
        before_s = program.moment().cpu_s
    assert program.moment().cpu_s >= before_s - RESOLUTION_S
    assert process_cpu_s(program.pid) is None


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
    assert tree_cpu_s({NO_PID}) == 0.0
    assert children_of(NO_PID) == set()
    assert process_cpu_s(NO_PID) is None


def wait_for(path: Path) -> None:
    deadline_s = time.monotonic() + 60
    while not path.exists():
        assert time.monotonic() < deadline_s, f"{path} never came"
        time.sleep(0.02)


def test_program_dies_with_a_benchmark_that_is_killed(tmp_path: Path) -> None:
    source = f"""
import sys, time
from pathlib import Path
from benchmarks.program import Program
program = Program([sys.executable, "-c", "import time; time.sleep(600)"], log=Path({str(tmp_path / "log")!r}))
print(program.pid, flush=True)
time.sleep(600)
"""
    with subprocess.Popen([sys.executable, "-c", source], stdout=subprocess.PIPE, text=True) as benchmark:
        assert benchmark.stdout is not None
        pid = int(benchmark.stdout.readline())
        assert process_cpu_s(pid) is not None
        benchmark.kill()
    deadline_s = time.monotonic() + 120
    while process_cpu_s(pid) is not None:
        assert time.monotonic() < deadline_s
        time.sleep(0.05)


def test_time_of_processes_whose_command_has_a_word_is_told_apart() -> None:
    # More than is asked for: the kernel counts in hundredths, user and system time each rounded down.
    busy = "import time\nend = time.process_time() + 0.3\nwhile time.process_time() < end: pass\ninput()"
    idle = [sys.executable, "-c", "input()", "other"]
    with (
        subprocess.Popen([sys.executable, "-c", busy, "apart"], stdin=subprocess.PIPE) as apart,
        subprocess.Popen(idle, stdin=subprocess.PIPE) as other,
    ):
        deadline_s = time.monotonic() + 30.0
        while (spent_s := command_cpu_s(os.getpid(), "apart")) < 0.2:
            assert time.monotonic() < deadline_s, spent_s
            time.sleep(0.02)
        assert spent_s < 1.5
        assert command_cpu_s(os.getpid(), "nowhere") == 0.0
        apart.kill()
        other.kill()
