"""Engines: what turns tasks into rollouts. One port, one file an engine, one literal table."""
