"""Helpers of several tests: a real broker, services run in the test, fake servers and sinks."""
