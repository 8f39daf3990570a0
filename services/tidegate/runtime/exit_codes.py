"""Exit codes of services, and of commands that fail for the same reasons."""

DRAINED = 0
# Drained because the run is complete. Of a process within a pod only: the pod ends with 0, which finishes its Job.
COMPLETED = 10
# A restart may help.
FAILED = 1
# The run file, the arguments or the mounted files are wrong: a restart reads the same.
BAD_INPUT = 2
# Drained, in the pod of a Job, which an exit with 0 would finish: as of a process that SIGTERM ends.
TERMINATED = 143
