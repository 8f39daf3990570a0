"""Whether ``staleness.max_lag`` alone decides how much rollouts and training overlap."""

from tidegate.actor.engines.registry import ENGINES, find_engine
from tidegate.core.admission import running_bound, slots_bound
from tidegate.launch.run_plan import RunPlan


def dial_notice(plan: RunPlan) -> str:
    """What else bounds the overlap of a run, with the value to set; empty where nothing does, and with replay."""
    if plan.services["trajectory_store"].replay.unit != "none":
        return ""  # its budget is of units that are drawn again, not of rollouts in flight
    limits, actor = plan.file.limits(), plan.services["actor"]
    bound = running_bound(limits)
    if bound or plan.file.workload.kind != "text":
        return bound  # an actor of segments plays one vector of environments, whatever its slots
    group = plan.file.workload.num_samples
    # Of engines that write tokens, slots are of samples; of the one that generates batches, of groups (`ActorConfig`).
    engine = find_engine(actor.engine, workload=plan.file.workload, policy=plan.file.policy)
    samples_a_slot = group if engine is ENGINES["text_generation"] else 1
    held = max(1, plan.replicas["actor"]) * (actor.slots * samples_a_slot + actor.prefetch * group)
    return slots_bound(limits, held=held)
