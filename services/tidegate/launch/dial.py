"""Whether ``staleness.max_lag`` alone decides how much rollouts and training overlap."""

from tidegate.core.admission import Limits, running_bound
from tidegate.launch.run_plan import RunPlan


def dial_notice(plan: RunPlan) -> str:
    """What else bounds the overlap of a run, with the value to set; empty where nothing does, and with replay."""
    if plan.services["trajectory_store"].replay.unit != "none":
        return ""  # its budget is of units that are drawn again, not of rollouts in flight
    file = plan.file
    return running_bound(
        Limits(max_lag=file.staleness.max_lag, batch_size=file.batch_size, max_running=file.max_running)
    )
