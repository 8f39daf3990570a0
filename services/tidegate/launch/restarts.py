"""Restart policy of the supervisor: backoff and the limit of crashes. Decisions only."""

import msgspec

BACKOFF_START_S = 0.2
BACKOFF_MAX_S = 5.0
# A process that ran this long was healthy: its next crash counts as the first.
HEALTHY_AFTER_S = 30.0
# Crashes in a row before the platform fails: with the backoff about 20 s, longer than any dependency takes to start.
CRASHES_MAX = 8
# The same for a process that was never ready: the cause is rarely temporary.
CRASHES_BEFORE_READY_MAX = 4
# Exit code of `tidegate serve` for wrong settings or a wrong folder: a retry would read the same.
EXIT_BAD_INPUT = 2


class Restart(msgspec.Struct, frozen=True):
    """Restart the process after ``backoff_s``; ``crashes`` in a row so far."""

    backoff_s: float
    crashes: int


class PermanentFailure(msgspec.Struct, frozen=True):
    """Another restart cannot help; ``reason`` is shown to the user."""

    reason: str


def after_exit(
    *,
    crashes: int,
    lived_s: float,
    ever_ready: bool,
    exit_code: int,
    healthy_after_s: float = HEALTHY_AFTER_S,
) -> Restart | PermanentFailure:
    """The reaction to an unexpected exit after ``lived_s``, with ``crashes`` in a row before it.

    ``ever_ready``: the process was ready once, so its settings and its folder are right. The backoff doubles from
    ``BACKOFF_START_S`` up to ``BACKOFF_MAX_S`` and is reset after ``healthy_after_s``, which a process whose failure
    takes a while to be noticed spends beyond that while.
    """
    in_a_row = 1 if lived_s >= healthy_after_s else crashes + 1
    if exit_code == EXIT_BAD_INPUT and not ever_ready:
        return PermanentFailure("it rejects its settings or its folder")
    if in_a_row >= (CRASHES_MAX if ever_ready else CRASHES_BEFORE_READY_MAX):
        return PermanentFailure(
            f"it crashed {in_a_row} times in a row" + ("" if ever_ready else " and was never ready")
        )
    return Restart(backoff_s=min(BACKOFF_START_S * 2 ** (in_a_row - 1), BACKOFF_MAX_S), crashes=in_a_row)
