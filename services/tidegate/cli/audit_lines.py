"""The lines of an audit, for the terminal and for the report."""

import msgspec

from tidegate.core.audit import Audit, LearnerTotals, ReplayTotals


class AuditLine(msgspec.Struct, frozen=True):
    """A count of trajectories and its meaning. ``is_part``: a part of the admitted ones."""

    name: str
    count: int
    note: str = ""
    is_part: bool = False


def lines_of(audit: Audit) -> list[AuditLine]:
    """The total, its parts, and the counters of anomalies."""
    return [
        AuditLine("admitted", audit.admitted, "in the admission journal"),
        AuditLine(
            "trained",
            audit.trained,
            f"highest lag {audit.max_lag_trained}"
            + ("" if audit.max_lag is None else f", widest budget max_lag {audit.max_lag}"),
            is_part=True,
        ),
        *(
            AuditLine(f"dropped {reason}", count, is_part=True)
            for reason, count in sorted(audit.dropped.items())
        ),
        AuditLine(
            "in flight",
            audit.in_flight,
            f"{audit.awaiting:,} not stored yet, {audit.available:,} available, {audit.leased:,} leased",
            is_part=True,
        ),
        AuditLine("trained twice", audit.trained_twice, "in the surviving lineage; must be 0"),
        AuditLine(
            "over budget", audit.over_budget, "beyond the max_lag in force when they were judged; must be 0"
        ),
        *(
            [AuditLine("budget unknown", audit.unnoted, "uses that the ledger has no budget of; not judged")]
            if audit.unnoted
            else []
        ),
        AuditLine("duplicates", audit.duplicates, "arrived again, or after their end; ignored"),
        AuditLine("quarantined", audit.quarantined),
        AuditLine("revived", audit.revived, "trained in a lineage that a restore abandoned"),
        *([] if audit.replay is None else _of_replay(audit.replay, audit.learner)),
    ]


def _of_replay(replay: ReplayTotals, learner: LearnerTotals | None) -> list[AuditLine]:
    """The uses of units, as the ledger counts them by update and by unit, and as the learner does."""
    limit = f"limit {replay.uses_max} each" if replay.uses_max else "no limit each"
    return [
        AuditLine("units inserted", replay.inserted, "that segments completed"),
        AuditLine("units used", replay.sampled, f"{replay.recounted:,} counted by unit, {limit}"),
        *(
            []
            if learner is None
            else [
                AuditLine(
                    "units drawn",
                    learner.sampled,
                    f"by the learner before {learner.version}; the ledger has "
                    + ("no such version" if replay.sampled_at is None else f"{replay.sampled_at:,}"),
                )
            ]
        ),
        AuditLine("priorities refused", replay.priorities_refused, "not finite, or negative"),
        AuditLine("priorities ignored", replay.priorities_ignored, "of units that were evicted"),
        AuditLine("segments torn", replay.torn, "a crash or a power cut took their bytes"),
    ]
