"""Environments: rewards for finished rollouts, and stateful sessions for multi-step ones.

consumes: ROLLOUTS (whole groups, unscored); Score, Reset, Step and Close calls
produces: TRAJECTORIES (the same groups, rewarded); QUARANTINE and settled drops for what cannot be scored
waits for: a rollout, a free scoring or session slot
unblocked by: actors; a verifier that ends, or its deadline; a session that ends, or idles out
"""
