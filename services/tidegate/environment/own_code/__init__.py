"""A user's tasks and rewards, run in child processes that can be killed, so that no mistake in them ends the worker.

``own_task`` and ``own_conversation`` are the code as the platform calls it, ``child`` is the program that runs it,
``process``, ``pool``, ``tasks`` and ``episodes`` are the worker's side, ``rows`` writes the prompts of a task.
"""
