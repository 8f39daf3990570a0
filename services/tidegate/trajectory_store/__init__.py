"""The trajectory store: owns the truth about every trajectory.

Consumes: TRAJECTORIES (acked only after the ledger's commit), commits and releases of batches, reports of drops.
Produces: batches of whole groups inside the staleness budget, drops with their reason, and the log of outcomes that
feeds the task queue.
Waits for: a full batch (``LeaseBatch`` and ``WatchOutcomes`` are long polls), and for capacity under its limits.
Unblocked by: actors and environments that publish trajectories; a learner that commits.

``ledger`` is one row a trajectory in SQLite, ``segments`` the payloads beside it, ``state`` what both imply in memory.
"""
