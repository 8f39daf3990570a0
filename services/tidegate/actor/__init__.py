"""Actors: run rollouts under the newest policy they hold.

consumes: TASKS (segment credits, prompts with their group size, evaluations), policy versions from POLICY, what other
    actors left in PROGRESS
produces: TRAJECTORIES (segments and episodes of several turns, with their rewards) or ROLLOUTS (groups of completions);
    PROGRESS (what is written of running tasks); settlements of what was cut, settled early or failed; evaluation events
waits for: a task; a policy inside the task's budget; a session at an environment worker; room in the stream it
    publishes to
unblocked by: the task queue; weight distribution; the environment workers and the trajectory store

Two kinds of engines. Those of batches (``engines.port``) run whole tasks, one batch after the other (``running``).
Those that write tokens (``engines.token_port``) are given contexts; what a rollout is, they do not know: ``episodes``
runs many tasks at once, ``playing`` holds one episode with the environment, ``progress`` keeps what is written where
the next actor finds it, and ``resuming`` goes on from there. The loops (``loops``) drive either through one protocol.
"""
