"""Starts a platform: the table of services, the run file, the run folder, the broker, the supervisor, ``serve``."""
