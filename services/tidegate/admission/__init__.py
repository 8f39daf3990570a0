"""Admission: keeps the work in flight inside its limits, and says who is slow.

Consumes: statistics of every service (core NATS), how full the streams are, the run file's limits, an operator's pause.
Produces: limits (CONTROL), the bound on rollouts in flight (``max_ack_pending`` of TASKS), whole-system samples
(``admission/stats.jsonl``), a diagnosis, the state of the run's objectives (``slos.json``) and their breaches
(``slo_events.jsonl``), events when limits change.
Waits for: nothing but time: a level-triggered tick that recomputes everything from what it sees.
Unblocked by: time. While it is away the last limits hold, and staleness still fails closed (I9).
"""
