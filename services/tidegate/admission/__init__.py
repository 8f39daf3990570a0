"""Admission: keeps the work in flight inside its limits and reports the bottleneck.

Consumes: statistics of every service (core NATS), how full the streams are, the run file's limits, an operator's pause.
Produces: limits (CONTROL), the bound on rollouts in flight (``max_ack_pending`` of TASKS), whole-system samples
(``admission/stats.jsonl``), a diagnosis, the state of the run's objectives (``slos.json``) and their breaches
(``slo_events.jsonl``), events when limits change.
Waits for: time only: a level-triggered tick recomputes everything from the newest observations.
Unblocked by: time. While admission is down the last limits hold, and staleness still fails closed (I9).
"""
