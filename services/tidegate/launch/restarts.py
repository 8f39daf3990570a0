"""Restart policy of the supervisor: backoff and the limit of crashes. Decisions only."""

import signal

import msgspec

from tidegate.runtime.exit_codes import BAD_INPUT

BACKOFF_START_S = 0.2
BACKOFF_MAX_S = 5.0
# A process that ran this long was healthy: its next crash counts as the first.
HEALTHY_AFTER_S = 30.0
# Crashes in a row before the platform fails: with the backoff about 20 s, longer than any dependency takes to start.
CRASHES_MAX = 8
# The same for a process that was never ready: the cause is rarely temporary.
CRASHES_BEFORE_READY_MAX = 4
# Sent from outside: by an operator, a test of failures, or the kernel when memory is short.
KILL_SIGNALS = (signal.SIGKILL, signal.SIGTERM)
# A kill says nothing about the process, so it is restarted at once; after the next ones with a short backoff against
# whatever kills it at every start. Limit of kills in a row, each within ``healthy_after_s``: at the longest backoff
# about two minutes.
KILLED_BACKOFF_MAX_S = 1.0
KILLS_MAX = 100
# While the disk is full nothing starts; space is what ends the wait, not a number of attempts.
DISK_FULL_BACKOFF_S = 1.0


class Restart(msgspec.Struct, frozen=True):
    """Restart the process after ``backoff_s``; ``crashes`` and ``kills`` in a row so far."""

    backoff_s: float
    crashes: int
    kills: int = 0


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
    kills: int = 0,
    disk_full: bool = False,
) -> Restart | PermanentFailure:
    """The reaction to an unexpected exit after ``lived_s``, with ``crashes`` and ``kills`` in a row before it.

    A process that was killed from outside did not crash, and one that ended while the disk was full may be right:
    neither counts as a crash.

    ``ever_ready``: the process was ready once, so its settings and its folder are right. The backoff doubles from
    ``BACKOFF_START_S`` up to ``BACKOFF_MAX_S`` and is reset after ``healthy_after_s``, which a process whose failure
    takes a while to be noticed spends beyond that while. A first kill has none.
    """
    healthy = lived_s >= healthy_after_s
    if -exit_code in KILL_SIGNALS:
        kills = 1 if healthy else kills + 1
        if kills >= KILLS_MAX:
            return PermanentFailure(f"it was killed {kills} times in a row, for example for want of memory")
        again_s = min(BACKOFF_START_S * 2 ** min(kills - 2, 8), KILLED_BACKOFF_MAX_S) if kills > 1 else 0.0
        return Restart(backoff_s=again_s, crashes=0 if healthy else crashes, kills=kills)
    if disk_full:
        return Restart(backoff_s=DISK_FULL_BACKOFF_S, crashes=crashes, kills=kills)
    in_a_row = 1 if healthy else crashes + 1
    if exit_code == BAD_INPUT and not ever_ready:
        return PermanentFailure("it rejects its settings or its folder")
    if in_a_row >= (CRASHES_MAX if ever_ready else CRASHES_BEFORE_READY_MAX):
        return PermanentFailure(
            f"it crashed {in_a_row} times in a row" + ("" if ever_ready else " and was never ready")
        )
    return Restart(backoff_s=min(BACKOFF_START_S * 2 ** (in_a_row - 1), BACKOFF_MAX_S), crashes=in_a_row)
