"""Actors: run rollouts under the newest policy they hold.

consumes: TASKS (segment credits, prompts with their group size, evaluations), policy versions from POLICY,
    partial rollouts of other actors in PROGRESS
produces: TRAJECTORIES (segments and episodes of several turns, with their rewards) or ROLLOUTS (groups of completions);
    PROGRESS (checkpoints of running tasks); reports of tasks that were cut, stopped early or failed;
    evaluation events
waits for: a task; a policy inside the task's budget; a session at an environment worker; room in the stream it
    publishes to
unblocked by: the task queue; weight distribution; the environment workers and the trajectory store

Two kinds of engines. Engines of batches (``engines.port``) run whole tasks, one batch after the other
(``rollouts.batch_runner``). Engines that write tokens (``engines.token_port``) are given contexts and know nothing of
rollouts: ``rollouts.episode_runner`` runs many tasks at once, or ``gateway`` lets external agents play the episodes.
The loops (``loops``) drive any runner through one protocol.
"""
