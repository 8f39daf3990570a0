"""The task queue: admits work as far as the staleness budget allows, and remembers what it admitted.

Consumes: the dataset or the environment's id; limits (CONTROL); policy announcements (POLICY); outcomes of the
trajectory store.
Produces: TASKS, and the journal: the left-hand side of the audit.
Waits for: room under the limits, and a first policy.
Unblocked by: a version being announced, and work ending (accepted, trained or dropped).
"""
