"""``tidegate replay``: recomputes the updates of a run and compares them with what the run kept."""
