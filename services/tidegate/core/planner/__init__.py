"""The planner: closed forms for the balance of the loop, what it costs, and when asynchrony pays. No IO, no clock.

``tails`` how long the slowest of K takes; ``scaling`` what learner replicas bring; ``stages`` the bottleneck, how queue
and lag grow; ``rebalance`` the cheapest platform for the same work; ``rollout`` synchronous against asynchronous.
"""
