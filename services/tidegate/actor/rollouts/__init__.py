"""Rollouts, from a task to its samples: episodes and groups, what limits them, and the runners that drive an engine.

``episode``: one sample, and the group of a task. ``episode_runner`` runs many tasks at once on an engine that writes
tokens, ``episode_player`` plays one episode with its environment (``environment_sessions``), ``batch_runner`` runs
whole batches. ``progress_checkpoints`` checkpoints partial rollouts, ``resumption`` continues them on another actor.
``deadlines`` cuts rollouts that would be stale, ``early_stop`` ends groups without signal, ``predictions`` learns
lengths. ``outcomes``: how a task ends. ``token_counts``, ``time_accounting``: accounting of tokens and of time.
"""
