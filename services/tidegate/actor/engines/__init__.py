"""Engines turn tasks into rollouts: one port, one file per engine, one literal table."""
