"""The learner: trains on leased batches and publishes a version after each.

Consumes: batches leased from the trajectory store, each checked against the staleness budget again before the loss.
Produces: policy versions (weight distribution), commits (trajectory store), checkpoints (its data folder); on an
operator's request it goes back to one of these.
Waits for: a full batch; then for the acknowledgement of commit and publish before it may run a step ahead.
Unblocked by: the trajectory store, which actors and environments fill.
"""
