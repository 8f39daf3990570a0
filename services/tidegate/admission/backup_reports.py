"""The backups of the run folder as statistics of admission, which also sees a backup process that hangs or has died."""

from pathlib import Path

from tidegate.catalogue import backup as statistics
from tidegate.runtime.backup_state import periods_without, read_state
from tidegate.runtime.stats_board import StatsBoard


def report_backups(folder: Path, stats: StatsBoard, *, now_s: float) -> None:
    """Set the statistics from ``backup.json`` of a run folder; none where there is no such file."""
    state = read_state(folder)
    if state is None:
        return
    for cause, count in state.failures.items():
        stats.set(statistics.BACKUP_FAILURES_BECAUSE.member(cause), count)
    stats.set(statistics.BACKUP_BEHIND, periods_without(state, now_s=now_s))
    if not state.number:
        # Also after one: the run has none yet in the place of its newest settings.
        for gauge in (statistics.BACKUP_AGE_S, statistics.BACKUP_BYTES, statistics.BACKUP_DURATION_S):
            stats.clear(gauge)
        return
    stats.set(statistics.BACKUP_AGE_S, max(0.0, now_s - state.made_at_s))
    stats.set(statistics.BACKUP_BYTES, state.num_bytes)
    stats.set(statistics.BACKUP_DURATION_S, state.duration_s)
