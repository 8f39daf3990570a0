"""Tidegate from Python: ``tidegate.train`` starts a run, ``tidegate.Run`` reads one, live or ended.

The package's own ``__init__`` loads the names on first use, so that ``import tidegate`` loads nothing. A run's
services are processes of their own, as on the command line: nothing of them is in the program that calls.
"""
