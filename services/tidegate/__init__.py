"""Tidegate: asynchronous reinforcement learning as services, with staleness as a declared and enforced limit."""
