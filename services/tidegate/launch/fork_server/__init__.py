"""Starts services as forks of one process that has loaded their libraries (docs/decisions/0011)."""
