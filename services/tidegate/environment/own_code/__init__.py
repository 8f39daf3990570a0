"""Scores from a user's own code, run in child processes that can be killed, so that no mistake in it ends the worker.

``references`` names the code, ``child`` is the program that runs it, ``process`` and ``pool`` are the worker's side.
"""
