"""The list of runs: the folders below one folder, or that folder alone."""

from pathlib import Path
from stat import S_ISREG
from typing import Any, Literal, TypeAlias

import msgspec

from tidegate.cli.up.history import STEPS_FILE, last_update
from tidegate.cli.up.summary import SUMMARY_JSON, read_summary
from tidegate.core.errors import NotFoundError, TidegateError
from tidegate.launch.run_folder import PROCESSES_JSON, RUN_JSON, is_run_folder, is_running, read_plan
from tidegate.runtime.own_code.failures import encodable

# More are not listed: the newest count.
RUNS_MAX = 500
# The first that an update has is the run's score.
SCORES = ("mean_return", "mean_reward")

# Of which a line of the list is made.
LINE_FILES = (RUN_JSON, PROCESSES_JSON, SUMMARY_JSON, STEPS_FILE)

Stamp: TypeAlias = tuple[tuple[int, int, int] | None, ...]
State = Literal["running", "ended", "stopped"]


class RunLine(msgspec.Struct, frozen=True):
    """One line of the list. ``name``: the folder's, which addresses it; ``problem``: why it cannot be read.

    ``state``: ``stopped`` is a run that has no summary, because it was killed. ``last_at_s``: of the last update.
    ``usd`` and ``wasted_share``: of the receipt, once it ended; dollars only by prices of the run file.
    """

    name: str
    run_id: str = ""
    env: str = ""
    state: State = "stopped"
    ended_by: str = ""
    started_at_s: float = 0.0
    last_at_s: float | None = None
    step: int = 0
    env_steps: int = 0
    score_name: str = ""
    score: float | None = None
    lag_max: int | None = None
    max_lag: int | None = None
    balanced: bool | None = None
    usd: float | None = None
    wasted_share: float | None = None
    problem: str = ""


class RunFolders:
    """The run folders at a place; only these can be addressed. In memory: one line of each that is listed."""

    def __init__(self, place: Path) -> None:
        """``place``: a run folder, or a folder of them.

        Raises:
            NotFoundError: there is no such folder.
        """
        if not place.is_dir():
            raise NotFoundError(
                f"There is no folder {place}",
                fix="name a run folder or a folder with runs, or start a run first",
            )
        self._place = place
        self._lines: dict[Path, tuple[Stamp, RunLine]] = {}

    def folders(self) -> list[Path]:
        """The newest first, at most ``RUNS_MAX``."""
        if is_run_folder(self._place):
            return [self._place]
        written = {path: _written_at_s(path) for path in self._place.iterdir()}
        found = {path: at_s for path, at_s in written.items() if at_s is not None}
        return sorted(found, key=found.__getitem__, reverse=True)[:RUNS_MAX]

    def named(self, name: str) -> Path:
        """The folder of that name.

        Raises:
            NotFoundError: no run has it.
        """
        for folder in self.folders():
            if name_of(folder) == name:
                return folder
        raise NotFoundError(f"There is no run {name!r} here", fix="reload the list of runs")

    def lines(self) -> list[RunLine]:
        """One line a run, the newest first. A run that is over is read again only after its files changed."""
        found: dict[Path, tuple[Stamp, RunLine]] = {}
        for folder in self.folders():
            stamp = _stamp_of(folder)
            known = self._lines.get(folder)
            is_current = known is not None and known[0] == stamp and known[1].state != "running"
            found[folder] = known if known is not None and is_current else (stamp, line_of(folder))
        self._lines = found
        return [line for _, line in found.values()]


def _written_at_s(folder: Path) -> float | None:
    """When the record of a run was written; None of what is no run, is gone again, or is closed to this user."""
    try:
        status = (folder / RUN_JSON).stat()
    except OSError:
        return None
    return status.st_mtime if S_ISREG(status.st_mode) else None


def _stamp_of(folder: Path) -> Stamp:
    """What changes with any of the files that a line is made of, their permissions included."""
    found: list[tuple[int, int, int] | None] = []
    for name in LINE_FILES:
        try:
            status = (folder / name).stat()
        except OSError:
            found.append(None)
        else:
            found.append((status.st_ino, status.st_ctime_ns, status.st_size))
    return tuple(found)


def name_of(folder: Path) -> str:
    """The name that addresses a run: its folder's, as text that every page and file can hold."""
    return encodable(folder.resolve().name)


def line_of(folder: Path) -> RunLine:
    """The line of one folder; of one that cannot be read its name and the reason."""
    name = name_of(folder)
    try:
        record, plan = read_plan(folder)
        running = is_running(folder)
        summary = None if running else read_summary(folder)
    except (TidegateError, OSError) as error:
        return RunLine(name=name, problem=encodable(str(error)))
    last = last_update(folder)
    score_name = next((each for each in SCORES if last.get(each) is not None), "")
    audit: dict[str, Any] = (summary or {}).get("audit") or {}
    receipt: dict[str, Any] = (summary or {}).get("receipt") or {}
    has_cost = bool(receipt) and receipt["price"] != "examples"
    return RunLine(
        name=name,
        run_id=record.run_id,
        env=plan.file.workload.title,
        state="running" if running else "stopped" if summary is None else "ended",
        ended_by=(summary or {}).get("ended_by", ""),
        started_at_s=record.created_at_s,
        last_at_s=last.get("at_s"),
        step=last.get("step", 0),
        env_steps=last.get("env_steps", 0),
        score_name=score_name,
        score=last.get(score_name) if score_name else None,
        lag_max=last.get("lag_max"),
        max_lag=plan.file.staleness.max_lag,
        balanced=audit.get("balanced"),
        usd=receipt["usd"] if has_cost else None,
        wasted_share=sum(each["share"] for each in receipt["wasted"]) if receipt else None,
    )
