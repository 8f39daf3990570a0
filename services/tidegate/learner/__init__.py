"""The learner: trains on leased batches and publishes a version after each.

Consumes: batches that the trajectory store leases, each held against the staleness budget again just before the loss.
Produces: policy versions (weight distribution), commits (trajectory store), checkpoints (its data folder).
Waits for: a full batch; then for the acknowledgement of the commit and the publish before it may run a step ahead.
Unblocked by: the trajectory store, as actors and environments fill it.
"""
