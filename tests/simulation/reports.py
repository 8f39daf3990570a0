"""How the simulations fail: with the invariant, the last of the story, and the command that shows it again."""

from tidegate.sim.simulation import Report

STORY_LINES = 60


def check(report: Report) -> Report:
    """Every invariant held, or a failure that says how to see it again."""
    story = "\n".join(report.story[-STORY_LINES:])
    assert report.passed, f"{story}\n{report.violations}\nreplay with: {report.replay}"
    return report
