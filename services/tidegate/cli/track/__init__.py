"""``tidegate track``: a run's curves, evaluations and objectives in an experiment tracker, by its own package.

``follow`` reads the files of the run folder in a process of its own, as ``tidegate ui`` does: a tracker that is slow,
full or away holds up nothing but that process. ``port`` is what a tracker has to offer, ``registry`` names those there
are.
"""
