"""Copies of a run folder in object storage, from which an empty machine goes on."""
