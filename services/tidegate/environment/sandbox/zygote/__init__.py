"""The zygote process: it starts with no environment, imports nothing but the standard library, and runs programs.

``main`` moves into an empty file ``tree`` and forks a ``monitor`` for each run. The monitor makes the namespaces, forks
the ``child`` inside of them, and enforces the limits that need an outside process. The environment's worker imports
only ``frames`` from here.
"""
