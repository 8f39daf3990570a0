"""Statistics of the supervisor of ``tidegate up``, one of each kind for every process. Read by the live view only."""

from tidegate.catalogue.kinds import Counter, Family, Gauge, Text

RESTARTS = Counter("restarts_total", "{restart}", "Restarts of all processes together.", exported=False)
RESTARTS_OF = Family(
    Counter, "restarts_total.*", "{restart}", "Restarts of a process.", label="process", exported=False
)
DISK_PROBLEM = Text(
    "disk_problem", "Why the disk of the run cannot be written; empty while it has space.", exported=False
)
BACKUP = Text(
    "backup", "The newest backup of the run as a sentence; empty where none was asked for.", exported=False
)
BACKUP_PROBLEM = Text(
    "backup_problem", "Why the last backup of the run failed, or since when none is made.", exported=False
)
CPU_SHARE_OF = Family(
    Gauge, "cpu_share.*", "1", "CPU cores used by a process.", label="process", exported=False
)
PSS_MB_OF = Family(
    Gauge, "pss_mb.*", "MB", "Proportional memory of a process.", label="process", exported=False
)
