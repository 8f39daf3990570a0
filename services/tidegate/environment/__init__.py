"""Environments: rewards for finished rollouts, and stateful sessions for episodes of several steps or turns.

consumes: ROLLOUTS (whole groups, unscored); Score, Reset, Step and Close calls
produces: TRAJECTORIES (the same groups, rewarded); QUARANTINE and reports of drops for what cannot be scored
waits for: a rollout, a free scoring or session slot, verifiers (judges, classifiers) and tools, each with a deadline
unblocked by: actors; a verifier or tool that ends, or its deadline; a session that ends, or idles out
"""
