"""How batches become updates: one adapter a kind of policy, behind one port, chosen from one table."""
