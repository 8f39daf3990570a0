"""The task queue: admits work within the staleness budget and keeps a journal of what it admitted.

Consumes: the dataset or the environment's id; limits (CONTROL); policy announcements (POLICY); outcomes of the
trajectory store.
Produces: TASKS, and the admission journal, which the audit reconciles with the ledger.
Waits for: capacity under the limits, and a first policy.
Unblocked by: a version announcement, and work that ends (accepted, trained or dropped).
"""
