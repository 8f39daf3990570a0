"""Replay: segments stay in the store after their first use, and the learner samples units of them.

A unit is a transition of n steps or a sequence. ``sum_tree`` and ``selectors`` draw units, ``limiter`` paces inserts
and samples against each other.
"""
