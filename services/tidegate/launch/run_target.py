"""The target of a run, refused where this run can never meet it."""

from tidegate.core.targets import RunTarget, parse_target
from tidegate.launch.cross_checks import check_target
from tidegate.launch.run_plan import RunPlan


def target_of(plan: RunPlan, *, until: str | None = None) -> RunTarget:
    """The target of the command line (``until``), else that of the run file.

    Raises:
        ConfigError: it cannot be read, or no service of this run publishes one of its statistics.
    """
    target = parse_target(plan.file.until if until is None else until)
    if problem := check_target(target, plan.file, plan.services):
        raise problem
    return target
