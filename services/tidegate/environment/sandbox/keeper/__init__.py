"""The keeper's own process: it starts with no environment, imports nothing but the standard library, and runs programs.

``main`` puts itself into an empty ``tree`` of files and forks a ``watch`` for each run; that one makes the namespaces,
forks the ``inmate`` inside of them, and holds the limits that need somebody outside. Nothing here is imported by the
environment's worker but ``frames``.
"""
