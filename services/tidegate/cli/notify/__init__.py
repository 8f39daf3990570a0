"""The webhook of `notify`: one JSON object for a run's end, its failure, and an objective that is violated.

``watch`` is the program beside a run, ``notices`` decides what is told, ``webhook`` posts it.
"""
