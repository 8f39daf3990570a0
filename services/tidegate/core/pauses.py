"""The pause that an operator declares: since when, by whom, why, and what ends it.

Others stop a run as well, each with another way out: a hard sync and the end of the run, which need nothing, a
TrainingRun, whose spec is edited, and a number of 0 actors, which stops the work and not admission.
"""

from datetime import UTC, datetime

import msgspec

from tidegate.core import hard_sync
from tidegate.core.admission import RUN_ENDS
from tidegate.core.completion import COMPLETE

PAUSED = "paused"
TRAINING_RUN = "the TrainingRun"
ZERO = "0 actors are asked for"
RESUME = "run `tidegate resume`"


class Pause(msgspec.Struct, frozen=True):
    """What an operator asked for last: admission paused, or not.

    ``by``: who asked, in their own words: it is shown and not proved. ``since_s``: seconds since the epoch, 0 while
    unknown.
    """

    paused: bool = False
    reason: str = ""
    by: str = ""
    since_s: float = 0.0

    def sentence(self) -> str:
        """The reason that admission reports, such as ``paused since 2026-11-24 15:40:05 UTC by ana: maintenance``."""
        if not self.paused:
            return ""
        if self.reason == RUN_ENDS:
            return RUN_ENDS
        why = f": {self.reason}" if self.reason else ""
        return f"{PAUSED}{_since(self.since_s)} by {self.by or 'an operator'}{why}"


def request_pause(before: Pause, *, paused: bool, reason: str, by: str, now_s: float) -> Pause:
    """The pause after a request. Asked for twice, it has lasted since the first time; the newest reason counts."""
    if not paused:
        return Pause()
    return Pause(True, reason, by, before.since_s if before.paused else now_s)


def zero_sentence(*, by: str, since_s: float) -> str:
    """The reason of a pause by a number of actors that a person, or the installation, set to 0."""
    return f"{ZERO}{_since(since_s)} by {by or 'the installation'}"


def declared_pause(pause: Pause, *, others: tuple[str, ...]) -> str:
    """Why an operator paused the run, which lasts until an operator resumes it; empty without such a pause.

    A declared pause spends no objective's budget and fires no alert. ``others``: reasons beside the operator's; the
    first that is not empty counts. A hard sync and the end of the run are no declared pauses, since they end by
    themselves.
    """
    if pause.paused and pause.reason != RUN_ENDS:
        return pause.sentence()
    return next((reason for reason in others if reason), "")


def _since(since_s: float) -> str:
    return f" since {datetime.fromtimestamp(since_s, UTC):%Y-%m-%d %H:%M:%S} UTC" if since_s else ""


def explanation(reason: str) -> str:
    """One sentence about why admission is paused, from the reason in the limits."""
    if reason.startswith(PAUSED):
        return f"Admission is {reason}."
    if reason.startswith(ZERO):
        return f"The run is paused: {reason}."
    if reason.startswith(COMPLETE):
        return f"{reason[0].upper()}{reason[1:]}."
    return f"Admission is paused: {reason or 'no reason was given'}."


def way_out(reason: str) -> str:
    """What ends a pause with this reason; empty where it ends by itself."""
    if reason.startswith((hard_sync.REASON, RUN_ENDS)):
        return ""
    if reason.startswith(TRAINING_RUN):
        return "edit the TrainingRun's spec"
    if reason.startswith(COMPLETE):
        return "change or remove `until` to go on"
    if reason.startswith(ZERO):
        return "scale the actors to 1 or more"
    return RESUME
