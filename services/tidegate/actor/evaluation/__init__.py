"""Evaluations: one version is measured, greedily or with the run's sampler, and the result is an event.

Control work: an evaluation never becomes a trajectory. ``held_out`` answers problems that are never trained on (text),
``episodes`` plays whole episodes (segments); both are an ``Evaluator``.
"""
