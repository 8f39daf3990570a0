"""Statistics that every service reports."""

from tidegate.catalogue.kinds import Counter, Family, Gauge, Text
from tidegate.catalogue.telemetry import ATTR_CAUSE, ATTR_KIND, ATTR_RPC_METHOD, ATTR_STREAM, METRIC_IGNORED

CPU_S = Counter(
    "cpu_s_total", "s", "CPU time of the service's process, user and system.", exported="process.cpu.time"
)
RSS_MB = Gauge("rss_mb", "MB", "Resident memory of the service's process.", exported="process.memory.usage")
CERTIFICATE_EXPIRES_AT_S = Gauge(
    "certificate_expires_at_s",
    "s",
    "Unix time at which the service's certificate ends; absent without TLS.",
    exported="tidegate.tls.certificate.expiry",
)
STANDBY = Gauge(
    "standby",
    "{instance}",
    "1 while the instance waits for its turn, 0 once it works; absent where a service has one instance.",
    exported="tidegate.service.standby",
)
LOOP_STALLS_OF = Family(
    Counter,
    "loop_stalls_*_total",
    "{stall}",
    "Times the event loop stood still for more than 100 ms, by kind: computing, or waiting for a blocking call or a"
    " processor.",
    label=ATTR_KIND,
    exported="tidegate.event_loop.stalls",
)
LOOP_STALL_LONGEST_S = Gauge(
    "loop_stall_longest_s",
    "s",
    "Longest time for which the event loop stood still since the service became ready.",
    exported="tidegate.event_loop.longest_stall",
)
LOOP_STALL_CPU_S = Gauge(
    "loop_stall_cpu_s",
    "s",
    "CPU time of the event loop's own thread in its longest stall of the kind computing.",
    exported="tidegate.event_loop.longest_stall.cpu",
)
LOOP_STALL = Text(
    "loop_stall",
    "Function in which the event loop computed for longest; empty while none took over 100 ms.",
    exported=False,
)
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
CALLS_FAILED = Family(
    Counter,
    "calls_failed_*_total",
    "{call}",
    "Calls over gRPC that a defect of the service ended, by method; its log has the traceback.",
    label=ATTR_RPC_METHOD,
    exported="tidegate.rpc.failed",
)
CALLS_INVALID = Family(
    Counter,
    "calls_invalid_*_total",
    "{call}",
    "Calls over gRPC refused because their request was invalid, by method.",
    label=ATTR_RPC_METHOD,
    exported="tidegate.rpc.invalid",
)
BUDGET_MAX_LAG = Gauge(
    "budget_max_lag",
    "{version}",
    "The run file's staleness budget, as the service has taken it over.",
    exported=False,
)
SETTINGS_CHANGED = Counter(
    "settings_changed_total",
    "{change}",
    "Changes of the staleness budget, objectives or scaling that the service took over without a restart.",
    exported="tidegate.settings.changed",
)
SETTINGS_REFUSED = Counter(
    "settings_refused_total",
    "{change}",
    "Changes of the run file that the service refused: its log says why, and the settings before stay in force.",
    exported="tidegate.settings.refused",
)
ANNOUNCEMENTS_IGNORED = Counter(
    "announcements_ignored_total",
    "{message}",
    "Messages on POLICY that are no announcement; weight distribution keeps them in QUARANTINE.",
    exported=METRIC_IGNORED.of({ATTR_STREAM: "POLICY"}),
)
CALLS_REFUSED_BECAUSE = Family(
    Counter,
    "calls_refused_*_total",
    "{call}",
    "Calls refused because their caller sent no accepted credential, or may not call the method, by reason.",
    label=ATTR_CAUSE,
    exported="tidegate.calls.refused",
)
BROKER_REFUSED_BECAUSE = Family(
    Counter,
    "broker_refused_*_total",
    "{operation}",
    "Operations that the broker refused this service: publish, subscribe, or connect with a password that it does not"
    " know.",
    label=ATTR_CAUSE,
    exported="tidegate.broker.refused",
)
MESSAGES_FAILED = Family(
    Counter,
    "messages_failed_*_total",
    "{message}",
    "Messages at which a defect of the service raised, by stream; its log has the traceback.",
    label=ATTR_STREAM,
    exported="tidegate.messages.failed",
)
