"""How many completions of a run's updates were generated, trained, and could teach: the same count for every trainer.

A group whose rewards are equal has no advantage. A trainer may leave it out of its gradient step, or compute it: its
completions are then trained, and teach as little. No heavy imports: the peer counts by this module in an environment of
its own.
"""

from collections.abc import Sequence

import msgspec


class UpdateCompletions(msgspec.Struct, frozen=True):
    """An update's completions. ``equal_share``: the share of them in groups of equal rewards."""

    generated: int
    equal_share: float


class CompletionCounts(msgspec.Struct, frozen=True):
    """``generated`` for updates; of these ``trained`` in a gradient step, ``taught`` in groups of unequal rewards."""

    generated: float
    trained: float
    taught: float


def equal_share(rewards: Sequence[float], *, group_size: int) -> float:
    """The share of completions in groups of equal rewards; a group's completions follow each other.

    Raises:
        ValueError: the rewards are not whole groups.
    """
    if group_size < 1 or len(rewards) % group_size:
        raise ValueError(f"{len(rewards)} rewards are no whole groups of {group_size}")
    if not rewards:
        return 0.0
    groups = [rewards[start : start + group_size] for start in range(0, len(rewards), group_size)]
    return sum(min(group) == max(group) for group in groups) / len(groups)


def count_completions(updates: Sequence[UpdateCompletions], *, leaves_equal_out: bool) -> CompletionCounts:
    """Sums over updates. ``leaves_equal_out``: the trainer's gradient steps have no groups of equal rewards."""
    generated = float(sum(each.generated for each in updates))
    taught = sum(each.generated * (1.0 - each.equal_share) for each in updates)
    return CompletionCounts(
        generated=generated, trained=taught if leaves_equal_out else generated, taught=taught
    )
