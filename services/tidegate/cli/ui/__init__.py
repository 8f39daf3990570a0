"""``tidegate ui``: a read-only page over run folders, live or ended.

``curves`` follows the learner's steps, ``run_page`` and ``trajectory_page`` answer what the page shows of one run and
of one trajectory, ``server`` serves them, and ``static`` holds the page itself. Everything is read from the files of
the run folder: the page asks no service and changes nothing.
"""
