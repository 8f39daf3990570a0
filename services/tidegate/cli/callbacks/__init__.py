"""Own code that is told of a run: `callbacks` of the run file, and of ``tidegate.train``.

``events`` are the records that both get, ``run_events`` finds them in a run folder, ``own_callback`` calls the code.
``watch`` is the program beside a run for each entry of the run file, ``trial`` the one that loads it before a run.
"""
