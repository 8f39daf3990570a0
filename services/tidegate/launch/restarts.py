"""How patient the supervisor is with a process that dies: decisions only."""

import msgspec

BACKOFF_START_S = 0.2
BACKOFF_MAX_S = 5.0
# A process that lived this long was healthy: its next death is a new story.
HEALTHY_AFTER_S = 30.0
# Deaths in a row before the platform gives up: with the backoff about 20 s, longer than any dependency needs to start.
DEATHS_MAX = 8
# The same for a process that never was ready: what keeps it from starting rarely goes away by itself.
DEATHS_BEFORE_READY_MAX = 4
# How `tidegate serve` ends when its settings or its folder are wrong: another try reads the same.
EXIT_BAD_INPUT = 2


class Again(msgspec.Struct, frozen=True):
    """Start it anew after ``backoff_s``; ``deaths`` in a row so far."""

    backoff_s: float
    deaths: int


class GiveUp(msgspec.Struct, frozen=True):
    """Starting it once more cannot help; ``reason`` in words."""

    reason: str


def after_death(*, deaths: int, lived_s: float, ever_ready: bool, exit_code: int) -> Again | GiveUp:
    """What to do about a process that ended on its own after ``lived_s``, having died ``deaths`` times in a row before.

    ``ever_ready``: it was ready in this or an earlier life, so that its settings and its folder are right. The backoff
    doubles from ``BACKOFF_START_S`` up to ``BACKOFF_MAX_S`` and starts over after a healthy life.
    """
    in_a_row = 1 if lived_s >= HEALTHY_AFTER_S else deaths + 1
    if exit_code == EXIT_BAD_INPUT and not ever_ready:
        return GiveUp("it refuses its settings or its folder")
    if in_a_row >= (DEATHS_MAX if ever_ready else DEATHS_BEFORE_READY_MAX):
        return GiveUp(f"it died {in_a_row} times in a row" + ("" if ever_ready else " and never was ready"))
    return Again(backoff_s=min(BACKOFF_START_S * 2 ** (in_a_row - 1), BACKOFF_MAX_S), deaths=in_a_row)
