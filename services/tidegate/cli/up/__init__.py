"""``tidegate up``: the command, its live view and its summary."""
