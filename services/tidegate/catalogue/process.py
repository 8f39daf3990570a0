"""Statistics that every service reports."""

from tidegate.catalogue.kinds import Counter, Gauge

CPU_S = Counter(
    "cpu_s_total", "s", "CPU time of the service's process, user and system.", exported="process.cpu.time"
)
RSS_MB = Gauge("rss_mb", "MB", "Resident memory of the service's process.", exported="process.memory.usage")
BROKER_RECONNECTS = Counter(
    "broker_reconnects_total",
    "{reconnect}",
    "Connections to the broker lost and restored.",
    exported="tidegate.broker.reconnects",
)
BACKPRESSURE = Counter(
    "backpressure_total",
    "{publish}",
    "Publishes delayed by a full stream.",
    exported="tidegate.broker.backpressure",
)
