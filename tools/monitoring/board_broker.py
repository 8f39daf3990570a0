"""Dashboard of the broker: streams, consumers, faults of messages and calls."""

from tidegate.catalogue import process as process_stats
from tidegate.catalogue import publishing as publishing_stats
from tidegate.catalogue import telemetry as names
from tools.monitoring.panels import Board, Panel, Query, Row
from tools.monitoring.prometheus_names import label
from tools.monitoring.queries import (
    CAUSE,
    CONSUMER,
    OPERATION,
    QUEUE,
    RATE,
    STREAM,
    one,
    rate,
    rate_by,
)
from tools.monitoring.slo_rules import OF_RUN

HTTP_STATUS = label(names.ATTR_HTTP_STATUS)
RPC_METHOD = label(names.ATTR_RPC_METHOD)

BROKER = Board(
    uid="tidegate-broker",
    title="Tidegate / Broker",
    description="Streams and consumers, as admission measures them; no NATS exporter is needed.",
    rows=(
        Row(
            "Streams",
            (
                Panel(
                    "Messages in each stream",
                    (
                        Query(
                            f"sum by ({OF_RUN}, {STREAM}) ({one(names.METRIC_STREAM_MESSAGES)})",
                            f"{{{{{STREAM}}}}}",
                        ),
                    ),
                    description="Messages that are kept. Normal: flat. A stream that grows has a slow consumer:"
                    " actors (TASKS), environments (ROLLOUTS), the store (TRAJECTORIES).",
                ),
                Panel(
                    "Bytes in each stream",
                    (
                        Query(
                            f"sum by ({OF_RUN}, {STREAM}) ({one(names.METRIC_STREAM_BYTES)})",
                            f"{{{{{STREAM}}}}}",
                        ),
                    ),
                    unit="bytes",
                    description="Space of each stream. Normal: far below its limit. Compare with the next panel.",
                ),
                Panel(
                    "Fullness against the tightest limit",
                    (
                        Query(
                            f"max by ({OF_RUN}, {STREAM}) ({one(names.METRIC_STREAM_FULLNESS)})",
                            f"{{{{{STREAM}}}}}",
                        ),
                    ),
                    unit="percentunit",
                    description="At 100 % publishers wait and every stage before that stream stalls. Normal: below 80"
                    " %. Above: see the alert TidegateStreamNearFull.",
                ),
                Panel(
                    "Backlog before each stage",
                    (
                        Query(
                            f"sum by ({OF_RUN}, {QUEUE}) ({one(names.METRIC_QUEUE_DEPTH)})",
                            f"{{{{{QUEUE}}}}}",
                        ),
                    ),
                    description="Work that waits for each stage. Normal: flat. The stage with the growing backlog is"
                    " the bottleneck.",
                ),
            ),
        ),
        Row(
            "Consumers",
            (
                Panel(
                    "Messages not yet delivered",
                    (
                        Query(
                            f"sum by ({OF_RUN}, {CONSUMER}) ({one(names.METRIC_CONSUMER_PENDING)})",
                            f"{{{{{CONSUMER}}}}}",
                        ),
                    ),
                    description="Messages that a consumer has still to receive. Normal: near zero. Growing: too few"
                    " consumers, or they hold as many as they may.",
                ),
                Panel(
                    "Messages delivered, not acknowledged",
                    (
                        Query(
                            f"sum by ({OF_RUN}, {CONSUMER}) ({one(names.METRIC_CONSUMER_ACK_PENDING)})",
                            f"{{{{{CONSUMER}}}}}",
                        ),
                    ),
                    description="Messages that consumers work on. Normal: at most the slots of the consumers. Flat at"
                    " a maximum with no progress: consumers hang.",
                ),
                Panel(
                    "Messages delivered more than once",
                    (
                        Query(
                            f"sum by ({OF_RUN}, {CONSUMER}) ({one(names.METRIC_CONSUMER_REDELIVERED)})",
                            f"{{{{{CONSUMER}}}}}",
                        ),
                    ),
                    description="Messages that came again because a consumer ended or was late. Normal: zero, a few"
                    " after a kill. Lasting: see the alert TidegateRedelivery.",
                ),
            ),
        ),
        Row(
            "Faults",
            (
                Panel(
                    "Publishes delayed by a full stream, per second",
                    (
                        Query(
                            f"sum by ({OF_RUN}, job) ({rate(process_stats.BACKPRESSURE.metric)})", "{{job}}"
                        ),
                    ),
                    description="Nothing is lost: the sender repeats under the same id. Normal: none. Otherwise find"
                    " the full stream above.",
                    unit="cps",
                ),
                Panel(
                    "Reconnects to the broker",
                    (
                        Query(
                            f"sum by ({OF_RUN}, job) (increase({one(process_stats.BROKER_RECONNECTS.metric)}[{RATE}]))",
                            "{{job}}",
                        ),
                    ),
                    description="Connections lost and restored. Normal: none, a burst while the broker restarts."
                    " Repeated: look at the broker's log and the network.",
                ),
                Panel(
                    "Retries per second, by operation",
                    (rate_by(names.METRIC_RETRIES, OPERATION),),
                    description="Operations repeated after a transient failure. Normal: none. The operation names the"
                    " two sides to look at.",
                    unit="cps",
                ),
                Panel(
                    "Payloads uploaded per second",
                    (Query(f"sum by ({OF_RUN}, job) ({rate(publishing_stats.UPLOADS.metric)})", "{{job}}"),),
                    description="Too large for a message: uploaded to the store and published by reference. Normal:"
                    " constant. It rises when trajectories get longer.",
                    unit="cps",
                ),
                Panel(
                    "Invalid gRPC calls per second, by method",
                    (rate_by(process_stats.CALLS_INVALID.metric, RPC_METHOD),),
                    description="Refused with INVALID_ARGUMENT: the caller sent what the service cannot accept."
                    " Normal: none. Two image versions in one run are the usual cause.",
                    only_with="invalid calls",
                    unit="cps",
                ),
                Panel(
                    "gRPC calls refused for their caller, per second",
                    (rate_by(process_stats.CALLS_REFUSED_BECAUSE.metric, CAUSE),),
                    description="No accepted credential, or a role that may not call the method. Normal: none. See"
                    " the alert TidegateCallsRefused.",
                    unit="cps",
                ),
                Panel(
                    "Failed gRPC calls per second, by method",
                    (rate_by(process_stats.CALLS_FAILED.metric, RPC_METHOD),),
                    description="Ended by a defect; the service's log has the traceback under call_failed. Normal:"
                    " none. Report it.",
                    only_with="a defect in a service",
                    unit="cps",
                ),
                Panel(
                    "Operations refused by the broker, per second",
                    (rate_by(process_stats.BROKER_REFUSED_BECAUSE.metric, CAUSE),),
                    description="A service published, subscribed or connected where its user may not. Normal: none. See"
                    " the alert TidegateBrokerRefused.",
                    unit="cps",
                ),
                Panel(
                    "Messages failed by a defect per second, by stream",
                    (rate_by(process_stats.MESSAGES_FAILED.metric, STREAM),),
                    description="The service's log has the traceback under message_handler_failed. Normal: none. See"
                    " the alert TidegateHandlersFailed.",
                    only_with="a defect in a service",
                    unit="cps",
                ),
                Panel(
                    "Messages of state ignored per second, by stream",
                    (rate_by(names.METRIC_IGNORED, STREAM),),
                    description="Unreadable: the service keeps what it knows. Normal: none. A foreign publisher or"
                    " two image versions are the usual cause.",
                    only_with="unreadable messages",
                    unit="cps",
                ),
                Panel(
                    "Messages quarantined",
                    (Query(f"sum by ({OF_RUN}, job) ({one(names.METRIC_QUARANTINED)})", "{{job}}"),),
                    description="Invalid messages that were set aside. Normal: none. See the alert"
                    " TidegateQuarantine.",
                ),
            ),
        ),
    ),
)
