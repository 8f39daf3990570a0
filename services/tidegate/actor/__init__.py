"""Actors: run rollouts under the newest policy they hold.

consumes: TASKS (segment credits, prompts with their group size, evaluations), policy versions from POLICY
produces: TRAJECTORIES (segments, with their rewards) or ROLLOUTS (groups of completions); settlements of what was cut
    or settled early; evaluation events
waits for: a task; a policy inside the task's budget; room in the stream it publishes to
unblocked by: the task queue; weight distribution; the environment workers and the trajectory store
"""
