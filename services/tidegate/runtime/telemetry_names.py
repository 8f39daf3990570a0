"""Every span, metric and attribute name, in one place; dashboards, rules and alerts are checked against this table.

Names follow OpenTelemetry's conventions where there is one (``messaging.*``, ``rpc.*``, ``gen_ai.*``, ``process.*``).
A metric's labels are the run, the environment and short enumerations; ids and versions are never among them.
"""

from typing import Literal

import msgspec

SPAN_TASK_LEASE = "task.lease"
SPAN_GENERATE = "trajectory.generate"
SPAN_SCORE = "reward.score"
SPAN_APPEND = "store.append"
SPAN_CONSUME = "trajectory.consume"
SPAN_LEARNER_STEP = "learner.step"
SPAN_WEIGHTS_PUBLISH = "weights.publish"
SPAN_WEIGHTS_LOAD = "weights.load"
# A message leaving for a stream, by messaging conventions: operation, then destination.
SPAN_SEND_TASKS = "send TASKS"
SPAN_SEND_ROLLOUTS = "send ROLLOUTS"
SPAN_SEND_TRAJECTORIES = "send TRAJECTORIES"

# Attribute keys shared by spans and metrics.
ATTR_RUN = "tidegate.run.id"
ATTR_ENV = "tidegate.env.id"
ATTR_TRAJECTORY = "tidegate.trajectory.id"
ATTR_TASK = "tidegate.task.id"
ATTR_VERSION = "tidegate.policy.version"
ATTR_VERSION_START = "tidegate.policy.version.start"
ATTR_VERSION_END = "tidegate.policy.version.end"
ATTR_VERSION_LEARNER = "tidegate.policy.version.learner"
ATTR_LAG = "tidegate.policy.lag"
ATTR_LAG_MAX = "tidegate.policy.lag.max"
ATTR_LOSS = "tidegate.learner.loss"
ATTR_WEIGHTS_BYTES = "tidegate.weights.bytes"
ATTR_AGE = "tidegate.trajectory.age_s"
ATTR_REASON = "tidegate.drop.reason"
ATTR_DEFERRED = "tidegate.trace.deferred"
ATTR_SLO = "tidegate.slo"
ATTR_SLO_RESULT = "tidegate.slo.result"
ATTR_SLO_VIOLATION = "tidegate.slo.violation"
ATTR_STAGE = "tidegate.stage"
ATTR_ATTEMPT = "tidegate.attempt"
ATTR_BIN = "tidegate.curriculum.bin"
ATTR_LENGTH = "tidegate.trajectory.length"
ATTR_RESPONSE_TIER = "tidegate.response.tier"
ATTR_CAUSE = "tidegate.cause"
ATTR_CONDITION = "tidegate.condition"
ATTR_DECISION = "tidegate.decision"
ATTR_KIND = "tidegate.kind"
ATTR_LAG_BUCKET = "tidegate.lag.bucket"
ATTR_MODE = "tidegate.mode"
ATTR_PHASE = "tidegate.phase"
ATTR_QUEUE = "tidegate.queue"
ATTR_STATE = "tidegate.state"
ATTR_REWARD = "tidegate.reward"
ATTR_WORKER = "tidegate.worker"
ATTR_TRANSPORT = "tidegate.transport"
ATTR_DELIVERY_COUNT = "tidegate.delivery.count"
ATTR_BATCH_COUNT = "messaging.batch.message_count"
ATTR_STREAM = "messaging.destination.name"
ATTR_CONSUMER = "messaging.consumer.group.name"
ATTR_RPC_METHOD = "rpc.method"
ATTR_RPC_STATUS = "rpc.response.status_code"

METRIC_LAG = "tidegate.trajectory.policy_lag"
METRIC_LAG_WINDOW_MAX = "tidegate.trajectory.policy_lag.window_max"
METRIC_AGE = "tidegate.trajectory.age"
METRIC_VERSION_SPAN = "tidegate.trajectory.version_span"
METRIC_CONSUMED = "tidegate.trajectory.consumed"
METRIC_GENERATED = "tidegate.trajectory.generated"
METRIC_APPENDED = "tidegate.trajectory.appended"
METRIC_DROPPED = "tidegate.trajectory.dropped"
METRIC_DUPLICATES = "tidegate.trajectory.duplicates"
METRIC_REVIVED = "tidegate.trajectory.revived"
METRIC_TOKENS = "tidegate.trajectory.tokens"
METRIC_STEPS = "tidegate.actor.steps"
METRIC_ROLLOUT_TOKENS = "tidegate.rollout.tokens"
METRIC_ROLLOUT_RESUMPTIONS = "tidegate.rollout.resumptions"
METRIC_PROGRESS_SIZE = "tidegate.rollout.progress.size"
METRIC_REWARD = "tidegate.reward"
METRIC_STAGE_DURATION = "tidegate.stage.duration"
METRIC_STAGE_ERRORS = "tidegate.stage.errors"
METRIC_WORKER_TIME = "tidegate.worker.time"
METRIC_TASKS_ADMITTED = "tidegate.task.admitted"
METRIC_TASKS_RETURNED = "tidegate.task.returned"
METRIC_RUNNING = "tidegate.task.running"
METRIC_UNPUBLISHED = "tidegate.task.unpublished"
METRIC_INFLIGHT = "tidegate.admission.inflight"
METRIC_ADMISSION_LIMIT = "tidegate.admission.limit"
METRIC_ADMISSION_MAX_LAG = "tidegate.admission.max_lag"
METRIC_ADMISSION_CAPACITY = "tidegate.admission.capacity"
METRIC_ADMISSION_PAUSED = "tidegate.admission.paused"
METRIC_ADMISSION_MODE = "tidegate.admission.mode"
METRIC_ADMISSION_DECISIONS = "tidegate.admission.decisions"
METRIC_BOTTLENECK = "tidegate.bottleneck"
METRIC_SLO_EVENTS = "tidegate.slo.events"
METRIC_SLO_TARGET = "tidegate.slo.target"
METRIC_SLO_BOUND = "tidegate.slo.bound"
METRIC_SLO_COVERAGE = "tidegate.slo.coverage"
METRIC_SLO_CONDITIONS = "tidegate.slo.conditions"
METRIC_QUEUE_DEPTH = "tidegate.queue.depth"
METRIC_QUEUE_OLDEST_AGE = "tidegate.queue.oldest_age"
METRIC_STORE_RESIDENT = "tidegate.store.resident"
METRIC_STORE_BYTES = "tidegate.store.resident.size"
METRIC_LEASE_ACTIVE = "tidegate.lease.active"
METRIC_REDELIVERED = "tidegate.delivery.redelivered"
METRIC_QUARANTINED = "tidegate.delivery.quarantined"
METRIC_STREAM_MESSAGES = "tidegate.broker.stream.messages"
METRIC_STREAM_BYTES = "tidegate.broker.stream.size"
METRIC_STREAM_FULLNESS = "tidegate.broker.stream.fullness"
METRIC_CONSUMER_PENDING = "tidegate.broker.consumer.pending"
METRIC_CONSUMER_ACK_PENDING = "tidegate.broker.consumer.ack_pending"
METRIC_CONSUMER_REDELIVERED = "tidegate.broker.consumer.redelivered"
METRIC_BACKPRESSURE = "tidegate.broker.backpressure"
METRIC_RECONNECTS = "tidegate.broker.reconnects"
METRIC_LEARNER_VERSION = "tidegate.learner.policy_version"
METRIC_ACTOR_VERSION = "tidegate.actor.policy_version"
METRIC_SERVER_UPDATES = "tidegate.inference_server.updates"
METRIC_SERVER_REQUESTS = "tidegate.inference_server.requests"
METRIC_SERVER_LOSSES = "tidegate.inference_server.losses"
METRIC_SERVER_PAUSE = "tidegate.inference_server.pause"
METRIC_SERVER_LOAD = "tidegate.inference_server.load"
METRIC_SERVER_PROBE_ERROR = "tidegate.inference_server.probe_error"
METRIC_WEIGHTS_PUBLISH = "tidegate.weights.publish.duration"
METRIC_WEIGHTS_LOAD = "tidegate.weights.load.duration"
METRIC_WEIGHTS_PROPAGATION = "tidegate.weights.propagation"
METRIC_WEIGHTS_BYTES = "tidegate.weights.size"
METRIC_WEIGHTS_PUBLISHED = "tidegate.weights.published"
METRIC_WEIGHTS_KEPT = "tidegate.weights.kept"
METRIC_STEP_DURATION = "tidegate.learner.step.duration"
METRIC_LEARNER_WAIT = "tidegate.learner.wait.time"
METRIC_LEARNER_STEPS = "tidegate.learner.steps"
METRIC_LEARNER_RETURN = "tidegate.learner.mean_return"
METRIC_LEARNER_REWARD = "tidegate.learner.mean_reward"
METRIC_LEARNER_LOSS = "tidegate.learner.loss"
METRIC_LEARNER_ESS = "tidegate.learner.effective_sample_size"
METRIC_LEARNER_CLIPPED = "tidegate.learner.clipped_fraction"
METRIC_LEARNER_OUTDATED = "tidegate.learner.outdated_batches"
METRIC_CHECKPOINTS = "tidegate.learner.checkpoints"
METRIC_RESPONSE_TIER = "tidegate.response.tier"
METRIC_PROVENANCE_INCOMPLETE = "tidegate.provenance.incomplete"
METRIC_TRACE_DEFERRED = "tidegate.trace.deferred"
METRIC_TRACE_SUPPRESSED = "tidegate.trace.suppressed"
METRIC_DRAINING = "tidegate.service.draining"
METRIC_RPC_DURATION = "rpc.server.call.duration"
METRIC_PROCESS_CPU = "process.cpu.time"
METRIC_PROCESS_MEMORY = "process.memory.usage"


class Instrument(msgspec.Struct, frozen=True):
    """How a metric is aggregated, its UCUM unit, and what it says. ``bounds`` are a histogram's bucket limits.

    A ``window_max`` is a gauge that keeps the largest value between two exports.
    """

    kind: Literal["counter", "histogram", "gauge", "window_max"]
    unit: str
    meaning: str
    bounds: tuple[float, ...] = ()


_LAG_BOUNDS = (0.0, 1.0, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 16.0, 32.0)
# From a publish on loopback to a rollout with tools.
_SECONDS_BOUNDS = (
    *(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5),
    *(1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0),
)
_REWARD_BOUNDS = (-1.0, 0.0, 0.1, 0.25, 0.5, 0.75, 0.9, 1.0, 10.0, 100.0, 500.0)

INSTRUMENTS: dict[str, Instrument] = {
    METRIC_LAG: Instrument("histogram", "{version}", "Lag at consumption.", _LAG_BOUNDS),
    METRIC_LAG_WINDOW_MAX: Instrument(
        "window_max", "{version}", "Largest lag consumed since the export before."
    ),
    METRIC_AGE: Instrument("histogram", "s", "Start of generation to consumption.", _SECONDS_BOUNDS),
    METRIC_VERSION_SPAN: Instrument(
        "histogram", "{version}", "Newest minus oldest version inside a trajectory.", _LAG_BOUNDS
    ),
    METRIC_CONSUMED: Instrument("counter", "{trajectory}", "Took part in a gradient step."),
    METRIC_GENERATED: Instrument(
        "counter", "{trajectory}", "Finished by an actor and acknowledged by the broker."
    ),
    METRIC_APPENDED: Instrument("counter", "{trajectory}", "Accepted into the ledger."),
    METRIC_DROPPED: Instrument("counter", "{trajectory}", "Ended without training, by reason."),
    METRIC_DUPLICATES: Instrument(
        "counter", "{trajectory}", "Arrived again or after its end: nothing changed."
    ),
    METRIC_REVIVED: Instrument(
        "counter", "{trajectory}", "Available again after a restore went back behind their step."
    ),
    METRIC_TOKENS: Instrument("counter", "{token}", "Tokens generated."),
    METRIC_STEPS: Instrument("counter", "{step}", "Environment steps or tokens made by actors."),
    METRIC_ROLLOUT_TOKENS: Instrument(
        "counter",
        "{token}",
        "Tokens of unfinished rollouts: written, resumed from another actor or lost there, handed on, given up.",
    ),
    METRIC_ROLLOUT_RESUMPTIONS: Instrument(
        "counter", "{task}", "Tasks that another actor had begun, by whether its tokens were gone on with."
    ),
    METRIC_PROGRESS_SIZE: Instrument(
        "counter", "By", "Bytes of unfinished rollouts kept for who goes on with them."
    ),
    METRIC_REWARD: Instrument("histogram", "1", "Reward of what was consumed.", _REWARD_BOUNDS),
    METRIC_STAGE_DURATION: Instrument(
        "histogram", "s", "One hop of a trajectory, by stage.", _SECONDS_BOUNDS
    ),
    METRIC_STAGE_ERRORS: Instrument("counter", "{error}", "Failures of a hop, by stage."),
    METRIC_WORKER_TIME: Instrument("counter", "s", "Where an instance's time went, by state."),
    METRIC_TASKS_ADMITTED: Instrument("counter", "{trajectory}", "Admitted, in trajectories."),
    METRIC_TASKS_RETURNED: Instrument("counter", "{task}", "Tasks an actor did not finish, by cause."),
    METRIC_RUNNING: Instrument("gauge", "{trajectory}", "Published and not yet in the ledger."),
    METRIC_UNPUBLISHED: Instrument(
        "gauge", "{trajectory}", "Admitted and not yet acknowledged by the broker."
    ),
    METRIC_INFLIGHT: Instrument("gauge", "{trajectory}", "Admitted and not terminal."),
    METRIC_ADMISSION_LIMIT: Instrument("gauge", "{trajectory}", "Bound on what may be running."),
    METRIC_ADMISSION_MAX_LAG: Instrument("gauge", "{version}", "Staleness budget in force."),
    METRIC_ADMISSION_CAPACITY: Instrument("gauge", "{trajectory}", "What may be admitted now."),
    METRIC_ADMISSION_PAUSED: Instrument("gauge", "", "1 while an operator holds admission."),
    METRIC_ADMISSION_MODE: Instrument("gauge", "", "1 for the mode of scaling in force."),
    METRIC_ADMISSION_DECISIONS: Instrument(
        "counter", "{decision}", "Tasks admitted; and each time admission began to hold back, by reason."
    ),
    METRIC_BOTTLENECK: Instrument("gauge", "", "1 for who bounds the run, by the diagnosis."),
    METRIC_SLO_EVENTS: Instrument("counter", "{event}", "Good and bad observations of each objective."),
    METRIC_SLO_TARGET: Instrument("gauge", "1", "Share of observations that must be good."),
    METRIC_SLO_BOUND: Instrument(
        "gauge", "", "What an observation is held against, in the objective's unit."
    ),
    METRIC_SLO_COVERAGE: Instrument("gauge", "1", "Share of the objective's window that was observed."),
    METRIC_SLO_CONDITIONS: Instrument("gauge", "{objective}", "Objectives by condition."),
    METRIC_QUEUE_DEPTH: Instrument(
        "gauge", "{trajectory}", "Waiting before a stage: messages of a stream, trajectories of the store."
    ),
    METRIC_QUEUE_OLDEST_AGE: Instrument("gauge", "s", "Age of the oldest that waits in the store."),
    METRIC_STORE_RESIDENT: Instrument(
        "gauge", "{trajectory}", "Waiting in the store, by lag against its head."
    ),
    METRIC_STORE_BYTES: Instrument("gauge", "By", "Payload held for what is not terminal."),
    METRIC_LEASE_ACTIVE: Instrument("gauge", "{trajectory}", "Leased to a learner, not committed."),
    METRIC_REDELIVERED: Instrument("counter", "{message}", "Deliveries that were not the first."),
    METRIC_QUARANTINED: Instrument("counter", "{message}", "Messages set aside as invalid."),
    METRIC_STREAM_MESSAGES: Instrument("gauge", "{message}", "Messages a stream holds."),
    METRIC_STREAM_BYTES: Instrument("gauge", "By", "Bytes a stream holds."),
    METRIC_STREAM_FULLNESS: Instrument("gauge", "1", "How near a stream is to its nearest limit."),
    METRIC_CONSUMER_PENDING: Instrument("gauge", "{message}", "Not delivered yet."),
    METRIC_CONSUMER_ACK_PENDING: Instrument("gauge", "{message}", "Delivered and not acknowledged."),
    METRIC_CONSUMER_REDELIVERED: Instrument(
        "gauge", "{message}", "Unacknowledged messages that were delivered more than once."
    ),
    METRIC_BACKPRESSURE: Instrument("counter", "{publish}", "Publishes that met a full stream and waited."),
    METRIC_RECONNECTS: Instrument(
        "counter", "{reconnect}", "Connections to the broker that were lost and came back."
    ),
    METRIC_LEARNER_VERSION: Instrument("gauge", "{version}", "Newest version, as a step of its lineage."),
    METRIC_ACTOR_VERSION: Instrument("gauge", "{version}", "Version an actor serves."),
    METRIC_SERVER_UPDATES: Instrument(
        "counter", "{update}", "Updates of an inference server's weights, taken or refused."
    ),
    METRIC_SERVER_REQUESTS: Instrument(
        "counter", "{request}", "Requests under way at updates of their inference server, kept or cut."
    ),
    METRIC_SERVER_LOSSES: Instrument("counter", "{loss}", "Times that an inference server was gone."),
    METRIC_SERVER_PAUSE: Instrument("gauge", "s", "Pause of an inference server for its newest update."),
    METRIC_SERVER_LOAD: Instrument("gauge", "s", "Loading of weights in that pause."),
    METRIC_SERVER_PROBE_ERROR: Instrument(
        "gauge",
        "",
        "How far its logprobs then were from the policy's own, on average over the probe, in nats.",
    ),
    METRIC_WEIGHTS_PUBLISH: Instrument(
        "histogram", "s", "Learner's publication of a version.", _SECONDS_BOUNDS
    ),
    METRIC_WEIGHTS_LOAD: Instrument("histogram", "s", "An actor's load of a version.", _SECONDS_BOUNDS),
    METRIC_WEIGHTS_PROPAGATION: Instrument(
        "histogram", "s", "Publication of a version until an actor serves it.", _SECONDS_BOUNDS
    ),
    METRIC_WEIGHTS_BYTES: Instrument("counter", "By", "Bytes of weights published and pulled."),
    METRIC_WEIGHTS_PUBLISHED: Instrument("counter", "{version}", "Versions published."),
    METRIC_WEIGHTS_KEPT: Instrument("gauge", "{version}", "Versions that can still be pulled."),
    METRIC_STEP_DURATION: Instrument("histogram", "s", "One update, by phase.", _SECONDS_BOUNDS),
    METRIC_LEARNER_WAIT: Instrument("counter", "s", "Time the learner trained nothing, by cause."),
    METRIC_LEARNER_STEPS: Instrument("counter", "{step}", "Environment steps or tokens trained on."),
    METRIC_LEARNER_RETURN: Instrument("gauge", "", "Mean return of the last episodes."),
    METRIC_LEARNER_REWARD: Instrument("gauge", "", "Mean reward of the newest batch."),
    METRIC_LEARNER_LOSS: Instrument("gauge", "", "Loss of the newest update."),
    METRIC_LEARNER_ESS: Instrument("gauge", "1", "Effective share of the newest batch."),
    METRIC_LEARNER_CLIPPED: Instrument("gauge", "1", "Share of the newest batch that was clipped."),
    METRIC_LEARNER_OUTDATED: Instrument(
        "counter", "{batch}", "Batches that left the budget before the loss and were given back."
    ),
    METRIC_CHECKPOINTS: Instrument("counter", "{checkpoint}", "Checkpoints written."),
    METRIC_RESPONSE_TIER: Instrument("gauge", "{tier}", "Tier of the graded response in force."),
    METRIC_PROVENANCE_INCOMPLETE: Instrument(
        "counter", "{trajectory}", "Consumed without the record of a stage, by stage."
    ),
    METRIC_TRACE_DEFERRED: Instrument(
        "counter", "{trace}", "Unsampled traces written because they turned out to matter."
    ),
    METRIC_TRACE_SUPPRESSED: Instrument(
        "counter", "{trace}", "The same, but above the rate that is allowed."
    ),
    METRIC_DRAINING: Instrument(
        "gauge", "", "1 once a service was told to stop, so that its silence is meant."
    ),
    METRIC_RPC_DURATION: Instrument("histogram", "s", "Calls served, by method and status.", _SECONDS_BOUNDS),
    METRIC_PROCESS_CPU: Instrument("counter", "s", "CPU time of a service's process."),
    METRIC_PROCESS_MEMORY: Instrument("gauge", "By", "Resident memory of a service's process."),
}
