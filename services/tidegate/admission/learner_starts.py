"""How near a run is to the most starts of its learner that it may have, as a sentence. No IO.

Each start opens a lineage, which the ledger keeps and every announcement names. A run whose learner is preempted every
ten minutes comes to the bound after a month.
"""

from tidegate.runtime.evaluations import version_order
from tidegate.wire.bounds import LINEAGES_MAX

# From then on it is said: at the rate of the run so far, a third of its age is left.
SAID_FROM = 3 * LINEAGES_MAX // 4


def starts_sentence(head: str) -> str:
    """``head``: the newest version, whose lineage is numbered from 0; empty while there are places for long."""
    starts = version_order(head)[0] + 1
    if starts < SAID_FROM:
        return ""
    return (
        f"the learner has started {starts:,} times, and a run may have {LINEAGES_MAX:,} starts: before the last of"
        " them, begin another run from this one's newest version (begin_from in its run file)"
    )
