"""How often work is delivered before it is dropped as failed. Decisions only.

The broker delivers without a limit of its own: a message at such a limit stays in its stream, delivered to no one. Its
work would count as running until the deadline of the task queue's sweep, and once all of ``max_running`` is lost like
that, the run stands still. So the process that takes a delivery decides, and reports the drop to the ledger, whose
outcomes the task queue follows: the room is free at once, and the reason is there to read.
"""

# Work that fails with an error at this delivery is not tried again: other processes failed at it before.
DELIVERIES_UNTIL_FAILED = 5
# An evaluation costs as much as thousands of tasks, and the next version is evaluated all the same.
EVALUATIONS_UNTIL_FAILED = 2
# Work gets more where the error is temporary, or where there is none because the processes that held it were killed or
# drained: neither is its fault, and a rollout of a language model resumes from its tokens. The limit is for work that
# kills each process that takes it.
DELIVERIES_MAX = 10


def is_spent(num_delivered: int) -> bool:
    """Whether work that arrives with this delivery is dropped without being run. ``num_delivered`` counts this one."""
    return num_delivered > DELIVERIES_MAX


def fails_for_good(
    num_delivered: int, *, retryable: bool, until_failed: int = DELIVERIES_UNTIL_FAILED
) -> bool:
    """Whether work that failed with an error at this delivery is dropped, or else released for another one.

    ``retryable``: the error is temporary. ``until_failed``: at which delivery work fails otherwise.
    """
    return num_delivered >= (DELIVERIES_MAX if retryable else until_failed)


def spent_detail(num_delivered: int) -> str:
    """Why work is dropped that arrives with this delivery and ``is_spent``."""
    return (
        f"delivered {num_delivered - 1} times without a result and without an error: the processes that took it were"
        " killed or drained"
    )
