"""Trainers: one adapter per kind of policy, behind one port, chosen from one table."""
