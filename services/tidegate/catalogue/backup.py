"""Statistics of a run's backups, which admission reports from the run folder; absent for a run without any.

So they outlive the process that makes backups, and their age grows while it hangs.
"""

from tidegate.catalogue.kinds import Counter, Family, Gauge
from tidegate.catalogue.telemetry import ATTR_CAUSE

BACKUP_AGE_S = Gauge(
    "backup_age_s",
    "s",
    "Time since the moment whose state the newest complete backup holds; absent before the first one.",
    exported="tidegate.backup.age",
)
BACKUP_BEHIND = Gauge(
    "backup_behind",
    "1",
    "Time without a new complete backup, as a share of `backup.every_s`; 0 where none is due.",
    exported="tidegate.backup.behind",
)
BACKUP_BYTES = Gauge(
    "backup_bytes", "By", "Size of the newest complete backup.", exported="tidegate.backup.size"
)
BACKUP_DURATION_S = Gauge(
    "backup_duration_s",
    "s",
    "Time that the newest complete backup took to make.",
    exported="tidegate.backup.duration",
)
BACKUP_FAILURES_BECAUSE = Family(
    Counter,
    "backup_failures_*_total",
    "{try}",
    "Tries to make a backup that failed, by cause; the newest complete one stays in force.",
    label=ATTR_CAUSE,
    exported="tidegate.backup.failures",
)
