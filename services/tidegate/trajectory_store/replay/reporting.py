"""What operators see of replay: what is kept, how often it is used, and who waits for whom."""

from tidegate.catalogue import trajectory_store as statistics
from tidegate.runtime.stats_board import StatsBoard
from tidegate.trajectory_store import counts
from tidegate.trajectory_store.ledger import Ledger
from tidegate.trajectory_store.replay.replay import Replay


def report(replay: Replay, ledger: Ledger, stats: StatsBoard, *, period_s: float) -> None:
    """Put the present counts on the board; ``period_s``: since the last report, counted for the side that waits."""
    buffer, limiter = replay.buffer, replay.limiter
    db = ledger.connection
    num_steps = len(buffer.pages) * replay.units
    stats.set(statistics.REPLAY_STEPS, num_steps)
    stats.set(statistics.REPLAY_FILL, num_steps / (replay.num_slots * replay.units))
    stats.set(statistics.REPLAY_OPEN_UNITS, buffer.num_open)
    stats.set(statistics.REPLAY_INSERTED, limiter.inserted)
    stats.set(statistics.REPLAY_SAMPLED, limiter.sampled)
    stats.set(statistics.REPLAY_SAMPLES_PER_INSERT, limiter.sampled / max(1, limiter.inserted))
    stats.set(
        statistics.REPLAY_PRIORITIES_REFUSED, counts.read_counter(db, "replay_refused") + buffer.num_refused
    )
    stats.set(statistics.REPLAY_PRIORITIES_IGNORED, counts.read_counter(db, "replay_ignored"))
    stats.set(statistics.REPLAY_TORN, counts.read_counter(db, "replay_torn"))
    stats.set(statistics.REPLAY_BYTES, buffer.disk_bytes)
    stats.label(statistics.REPLAY_WAIT, limiter.sentence())
    for side in statistics.REPLAY_SIDES:
        waited_s = period_s if limiter.waiting == side else 0.0
        stats.add(statistics.REPLAY_WAIT_S.member(side), waited_s)
