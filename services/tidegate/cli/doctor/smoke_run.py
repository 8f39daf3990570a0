"""One short run for ``tidegate doctor --smoke``: it trains, two of its processes are killed, it pauses, and it ends.

Every wait has a deadline; what did not happen within it is None in the facts, and the run goes on to the next step.
"""

import asyncio
import subprocess
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from itertools import pairwise
from pathlib import Path
from statistics import fmean, median
from typing import Any

import msgspec
import psutil

from tidegate.cli.doctor.one_rank import compare_with_one_rank
from tidegate.cli.pause import set_paused
from tidegate.cli.step_tail import StepTail
from tidegate.cli.up.summary import read_summary
from tidegate.core.errors import TidegateError
from tidegate.core.smoke import SmokeFacts
from tidegate.launch.run_folder import find_running, read_processes
from tidegate.launch.up_process import up_process

POLL_S = 0.2
# An inference server loads and compiles first.
FIRST_UPDATE_S = 240.0
RECOVERY_S = 120.0
# Also ends a run whose doctor is gone; a platform that is told to end drains and audits.
LIMIT = "10m"
DRAIN_S = 120.0
UPDATES_BEFORE_A_KILL = 3
ACTOR, LEARNER = "actor-0", "learner"
REASON = "tidegate doctor --smoke"


class SmokeRun:
    """A platform in ``folder``, and what its learner wrote. ``say`` gets a line for each step."""

    def __init__(self, folder: Path, process: subprocess.Popen[str], say: Callable[[str], None]) -> None:
        """``process``: its ``tidegate up``."""
        self.folder = folder
        self.updates: list[dict[str, Any]] = []
        self._process = process
        self._say = say
        self._tail = StepTail(folder)
        self._started_s = time.monotonic()

    def seconds(self) -> float:
        """Since the start."""
        return time.monotonic() - self._started_s

    def until(self, holds: Callable[[], bool], *, timeout_s: float, what: str) -> float | None:
        """Seconds until ``holds``; None if it does not in time, or the platform ends."""
        started_s = time.monotonic()
        while not holds():
            if self._process.poll() is not None or time.monotonic() - started_s > timeout_s:
                self._say(f"no {what} after {time.monotonic() - started_s:.0f} s")
                return None
            time.sleep(POLL_S)
            self._read()
        took_s = time.monotonic() - started_s
        self._say(f"{what} after {took_s:.1f} s")
        return took_s

    def until_trains(self, count: int, *, timeout_s: float, what: str) -> float | None:
        """Seconds until the learner made ``count`` more updates."""
        seen = len(self.updates)
        return self.until(lambda: len(self.updates) >= seen + count, timeout_s=timeout_s, what=what)

    def kill_actor(self) -> float | None:
        """Kill the actor; seconds until a new one runs and the learner trained on what was not there before."""
        pid = self._pid(ACTOR)
        if pid is None or not _kill(pid):
            return None
        started_s = time.monotonic()
        is_back = self.until(
            lambda: self._pid(ACTOR) not in {None, pid}, timeout_s=RECOVERY_S, what=f"a new {ACTOR}"
        )
        trains = is_back and self.until_trains(
            UPDATES_BEFORE_A_KILL, timeout_s=RECOVERY_S, what=f"updates after kill -9 of {ACTOR}"
        )
        return None if trains is None else time.monotonic() - started_s

    def kill_learner(self) -> float | None:
        """Kill the learner, or its last rank; seconds until an update in the lineage that the next one opens."""
        launcher = self._pid(LEARNER)
        if launcher is None or not self.updates or not _kill(_last_rank(launcher)):
            return None
        lineage = self.updates[-1]["lineage"]
        return self.until(
            lambda: self.updates[-1]["lineage"] != lineage,
            timeout_s=RECOVERY_S,
            what=f"an update after kill -9 of {LEARNER}",
        )

    def pause(self) -> tuple[float | None, float | None]:
        """Pause and resume; seconds until no rollout was running, and from the end of the pause to the next update."""
        try:
            drained_s = self.until(
                self._is_drained, timeout_s=RECOVERY_S, what="an end of all rollouts in a pause"
            )
            self._set_paused(paused=False)
        except TidegateError as error:
            self._say(str(error))
            return None, None
        return drained_s, self.until_trains(1, timeout_s=RECOVERY_S, what="an update after the pause")

    def _is_drained(self) -> bool:
        # What waits in the store for a whole batch is in flight, and stays there.
        return self._set_paused(paused=True) == 0

    def _set_paused(self, *, paused: bool) -> int:
        """Rollouts that are running."""
        where = find_running(self.folder)
        _, flow = asyncio.run(set_paused(where, paused=paused, reason=REASON if paused else "", by="doctor"))
        return flow.running

    def _pid(self, instance: str) -> int | None:
        record = read_processes(self.folder)
        return None if record is None or instance not in record.processes else record.processes[instance].pid

    def _read(self) -> None:
        from_first, updates = self._tail.new()
        self.updates = updates if from_first else [*self.updates, *updates]


def run_smoke(run_file: Path, folder: Path, facts: SmokeFacts, say: Callable[[str], None]) -> SmokeFacts:
    """Run it whole; ``facts`` say what is wanted."""
    with _platform(run_file, folder) as (process, output):
        run = SmokeRun(folder, process, say)
        first_s = run.until_trains(UPDATES_BEFORE_A_KILL, timeout_s=FIRST_UPDATE_S, what="first updates")
        recovered: dict[str, float | None] = {}
        drained_s = resumed_s = None
        if first_s is not None:
            recovered = {ACTOR: run.kill_actor(), LEARNER: run.kill_learner()}
            drained_s, resumed_s = run.pause()
            missing = facts.wanted - len(run.updates)
            run.until_trains(max(0, missing), timeout_s=RECOVERY_S, what=f"{facts.wanted} updates")
        run_s, has_ended = run.seconds(), process.poll() is not None
    if first_s is not None and facts.ranks > 1:
        facts = msgspec.structs.replace(facts, one_rank=compare_with_one_rank(folder, run.updates))
    summary = read_summary(folder)
    audit = None if summary is None else summary["audit"]
    return msgspec.structs.replace(
        facts,
        versions=len(run.updates),
        run_s=run_s,
        first_update_s=first_s,
        recovered_s=recovered,
        drained_s=drained_s,
        resumed_s=resumed_s,
        balanced=None if audit is None else audit["balanced"],
        audit="" if summary is None else summary["audit_line"],
        problem=_last_line(output) if has_ended or first_s is None else "",
        **figures(run.updates),
    )


def figures(updates: list[dict[str, Any]]) -> dict[str, Any]:
    """What the updates' lines say of the engine's numbers and of an update's rate, as fields of the facts."""
    ends = [update["env_steps"] for update in updates]
    tokens = [after - before for before, after in pairwise(ends) if after > before]
    mismatches = [
        update["metrics"]["mismatch_kl_lag_0"]
        for update in updates
        if "mismatch_kl_lag_0" in update["metrics"]
    ]
    return {
        "mismatch_kl": fmean(mismatches) if mismatches else None,
        "update_tokens": float(median(tokens)) if tokens else 0.0,
        # The first one compiles, and allocates what the others use again.
        "update_s": median(update["train_s"] for update in updates[1:]) if tokens else 0.0,
    }


@contextmanager
def _platform(run_file: Path, folder: Path) -> Generator[tuple[subprocess.Popen[str], Path]]:
    """``tidegate up``, and the file of what it prints."""
    folder.mkdir(parents=True)
    output = folder.with_suffix(".out")
    arguments = [str(run_file), "--dir", str(folder), "--headless", "--for", LIMIT]
    with output.open("wb") as written, up_process(arguments, output=written, drain_s=DRAIN_S) as process:
        yield process, output


def _kill(pid: int) -> bool:
    with suppress(psutil.NoSuchProcess):
        psutil.Process(pid).kill()
        return True
    return False


def _last_rank(launcher: int) -> int:
    """The process of the learner's last rank; the learner itself, where it has one."""
    with suppress(psutil.NoSuchProcess):
        for process in reversed(psutil.Process(launcher).children()):
            if "(rank " in " ".join(process.cmdline()):
                return process.pid
    return launcher


def _last_line(output: Path) -> str:
    lines = [line for line in output.read_text(errors="replace").splitlines() if line.strip()]
    return lines[-1][:500] if lines else "it printed nothing"
