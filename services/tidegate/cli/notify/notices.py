"""What a webhook is told about a run."""

from collections.abc import Mapping
from typing import Any

import msgspec

from tidegate.runtime.companion_settings import NoticeKind


class Notice(msgspec.Struct, frozen=True):
    """One JSON object. ``text``: a sentence, which chats show. ``at_s``: seconds since the epoch."""

    event: NoticeKind
    run_id: str
    at_s: float
    text: str
    details: dict[str, Any] = {}


# Of the summary, what a notice repeats.
TOLD = (
    *("target", "reached", "succeeded", "ended_by", "problem", "elapsed_s", "version", "env_steps"),
    *("mean_return", "evaluation_return", "solved_share", "audit_line", "receipt"),
)


def notice_of_end(run_id: str, summary: Mapping[str, Any] | None, *, at_s: float) -> Notice:
    """Of a run that is over; None: it wrote no summary."""
    if summary is None:
        return Notice(
            event="failure",
            run_id=run_id,
            at_s=at_s,
            text=f"Run {run_id} ended without a summary: it was killed, or could not start.",
        )
    audit: dict[str, Any] = summary.get("audit") or {}
    balanced = bool(audit.get("balanced"))
    failed = summary.get("ended_by") == "failed" or not balanced
    result = f"ended by: {summary.get('ended_by')}"
    if summary.get("target"):
        result = f"target {summary['target']} {'' if summary.get('reached') else 'not '}reached; {result}"
    problem = f" {summary['problem']}" if summary.get("problem") else ""
    books = "" if balanced else " The audit is not balanced."
    return Notice(
        event="failure" if failed else "end",
        run_id=run_id,
        at_s=at_s,
        text=f"Run {run_id} {'failed' if failed else 'ended'} ({result}).{problem}{books}",
        details={name: summary[name] for name in TOLD if name in summary},
    )


def notice_of_objective(run_id: str, change: Mapping[str, Any]) -> Notice | None:
    """Of a change of an objective, as ``slo_events.jsonl`` has it; None unless it is violated by it."""
    if change.get("after") not in ("burning", "breached") or change.get("before") in ("burning", "breached"):
        return None
    value = change.get("value")
    observed = "unknown" if value is None else f"{value:g}"
    return Notice(
        event="slo",
        run_id=run_id,
        at_s=float(change["at_s"]),
        text=f"Run {run_id}: objective {change['slo']} is violated: {observed}, bound {change['bound']:g}."
        f" {change.get('cause', '')}".rstrip(),
        details={name: value for name, value in change.items() if name not in ("at_s", "event")},
    )
