"""Schedules of learning rates and weights."""


def warmup_then_linear(
    peak: float, *, update: int, warmup_updates: int, anneal_updates: int, final_share: float
) -> float:
    """The value for ``update`` (counted from 1): up to ``peak``, then linearly down, then constant.

    It rises over ``warmup_updates``, falls until update ``anneal_updates``, and stays at ``final_share`` of ``peak``
    from there on. ``anneal_updates`` not beyond the warm-up (0, usually) keeps the peak.

    Raises:
        ValueError: ``update`` is below 1.
    """
    if update < 1:
        raise ValueError(f"Updates are counted from 1, not {update}")
    if update < warmup_updates:
        return peak * update / warmup_updates
    if anneal_updates <= warmup_updates:
        return peak
    progress = min(1.0, (update - warmup_updates) / (anneal_updates - warmup_updates))
    return peak * (1.0 - (1.0 - final_share) * progress)


def linear(start: float, end: float, *, update: int, updates: int) -> float:
    """From ``start`` to ``end``, which update number ``updates`` and all later ones have; ``start`` for 0 updates.

    Raises:
        ValueError: ``update`` is below 1.
    """
    if update < 1:
        raise ValueError(f"Updates are counted from 1, not {update}")
    return start if updates == 0 else start + (end - start) * min(1.0, update / updates)
