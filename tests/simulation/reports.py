"""A failing simulation prints the violated invariant, the last events, and the command that replays it."""

from tidegate.sim.simulation import Report

EVENTS_SHOWN = 60


def check(report: Report) -> Report:
    """Fail with the last events and the replay command unless every invariant held."""
    events = "\n".join(report.events[-EVENTS_SHOWN:])
    assert report.passed, f"{events}\n{report.violations}\nreplay with: {report.replay}"
    return report
