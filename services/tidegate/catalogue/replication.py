"""Statistics of the services whose file is replicated to PostgreSQL: task queue and trajectory store."""

from tidegate.catalogue.kinds import Counter, Gauge, Text

REPLICA_PUSHES = Counter(
    "replica_pushes_total",
    "{push}",
    "Transactions that brought the replica in PostgreSQL up to date.",
    exported="tidegate.replica.pushes",
)
REPLICA_PUSH_S = Counter(
    "replica_push_s_total",
    "s",
    "Time in transactions that brought the replica in PostgreSQL up to date.",
    exported="tidegate.replica.push.time",
)
REPLICA_AWAY_S = Gauge(
    "replica_away_s",
    "s",
    "How long PostgreSQL has not taken what changed, while answers of the service wait; 0 when it does.",
    exported="tidegate.replica.away",
)
REPLICA_PROBLEM = Text(
    "replica_problem", "Why the replica in PostgreSQL is not up to date; empty when it is.", exported=False
)
