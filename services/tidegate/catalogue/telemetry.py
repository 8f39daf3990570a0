"""Spans, attributes, and the metrics that services observe directly or that several statistics share.

Names follow OpenTelemetry's conventions where there is one (``messaging.*``, ``rpc.*``, ``gen_ai.*``, ``process.*``).
A metric's labels are the run, the environment and short enumerations, never ids or versions. A metric of one statistic
is declared with that statistic, in its service's module.
"""

from tidegate.catalogue.kinds import Instrument

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
# Not OpenTelemetry's k8s.namespace.name: under this name kube-state-metrics, the kubelet, prometheus-operator and
# Alertmanager's routes know it. A run id is unique within a namespace.
ATTR_NAMESPACE = "namespace"
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
ATTR_SIDE = "tidegate.replay.side"
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
ATTR_OPERATION = "tidegate.operation"
ATTR_OUTCOME = "tidegate.outcome"
# OpenTelemetry's name for the id of a piece of hardware.
ATTR_GPU = "hw.id"
ATTR_HTTP_STATUS = "http.response.status_code"

_LAG_BOUNDS = (0.0, 1.0, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 16.0, 32.0)
# From a publish on loopback to a rollout with tools.
_SECONDS_BOUNDS = (
    *(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5),
    *(1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0),
)
_REWARD_BOUNDS = (-1.0, 0.0, 0.1, 0.25, 0.5, 0.75, 0.9, 1.0, 10.0, 100.0, 500.0)


# Observed for each trajectory, as it is trained.
METRIC_LAG = Instrument(
    "tidegate.trajectory.policy_lag",
    "histogram",
    "{version}",
    "Policy lag of trained trajectories, in versions.",
    _LAG_BOUNDS,
)
METRIC_LAG_WINDOW_MAX = Instrument(
    "tidegate.trajectory.policy_lag.window_max",
    "window_max",
    "{version}",
    "Largest policy lag trained since the previous export.",
)
METRIC_AGE = Instrument(
    "tidegate.trajectory.age",
    "histogram",
    "s",
    "Age of trained trajectories, from the start of generation.",
    _SECONDS_BOUNDS,
)
METRIC_VERSION_SPAN = Instrument(
    "tidegate.trajectory.version_span",
    "histogram",
    "{version}",
    "Newest minus oldest policy version within a trained trajectory.",
    _LAG_BOUNDS,
)
METRIC_CONSUMED = Instrument(
    "tidegate.trajectory.consumed", "counter", "{trajectory}", "Trajectories used in a gradient step."
)
METRIC_TOKENS = Instrument("tidegate.trajectory.tokens", "counter", "{token}", "Tokens generated.")
METRIC_REWARD = Instrument(
    "tidegate.reward", "histogram", "1", "Reward of trained trajectories.", _REWARD_BOUNDS
)
METRIC_PROVENANCE_INCOMPLETE = Instrument(
    "tidegate.provenance.incomplete",
    "counter",
    "{trajectory}",
    "Trained trajectories that lack the timing of a stage, by missing stage.",
)
METRIC_STAGE_DURATION = Instrument(
    "tidegate.stage.duration",
    "histogram",
    "s",
    "Duration of each stage of a trajectory's path, by stage.",
    _SECONDS_BOUNDS,
)

# Observed by the learner, the actors and weight distribution.
METRIC_STEP_DURATION = Instrument(
    "tidegate.learner.step.duration",
    "histogram",
    "s",
    "Duration of a learner update, by phase.",
    _SECONDS_BOUNDS,
)
METRIC_LEARNER_WAIT = Instrument(
    "tidegate.learner.wait.time", "counter", "s", "Time in which the learner trained nothing, by cause."
)
METRIC_WEIGHTS_PUBLISH = Instrument(
    "tidegate.weights.publish.duration",
    "histogram",
    "s",
    "Time for the learner to publish a version.",
    _SECONDS_BOUNDS,
)
METRIC_WEIGHTS_LOAD = Instrument(
    "tidegate.weights.load.duration",
    "histogram",
    "s",
    "Time for an actor to load a version.",
    _SECONDS_BOUNDS,
)
METRIC_WEIGHTS_PROPAGATION = Instrument(
    "tidegate.weights.propagation",
    "histogram",
    "s",
    "Time from the publication of a version until an actor serves it.",
    _SECONDS_BOUNDS,
)

# Observed by the inference service.
METRIC_INFERENCE_BATCH = Instrument(
    "tidegate.inference.batch",
    "histogram",
    "{step}",
    "Environments in a call of the network of the inference service.",
    (1.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0, 4096.0),
)
METRIC_INFERENCE_WAIT = Instrument(
    "tidegate.inference.request.wait",
    "histogram",
    "s",
    "Time from the arrival of a step at the inference service to its call of the network.",
    _SECONDS_BOUNDS,
)

# Observed by the task queue, the store and admission.
METRIC_ADMISSION_DECISIONS = Instrument(
    "tidegate.admission.decisions",
    "counter",
    "{decision}",
    "Tasks admitted, and each start of a delay, by reason.",
)
METRIC_QUEUE_DEPTH = Instrument(
    "tidegate.queue.depth",
    "gauge",
    "{trajectory}",
    "Backlog before a stage: messages in a stream, or trajectories available in the store.",
)
METRIC_QUEUE_OLDEST_AGE = Instrument(
    "tidegate.queue.oldest_age", "gauge", "s", "Age of the oldest trajectory available in the store."
)
METRIC_STORE_RESIDENT = Instrument(
    "tidegate.store.resident",
    "gauge",
    "{trajectory}",
    "Trajectories available in the store, by lag behind its head version.",
)
METRIC_STREAM_MESSAGES = Instrument(
    "tidegate.broker.stream.messages", "gauge", "{message}", "Messages in a stream."
)
METRIC_STREAM_BYTES = Instrument("tidegate.broker.stream.size", "gauge", "By", "Bytes in a stream.")
METRIC_STREAM_FULLNESS = Instrument(
    "tidegate.broker.stream.fullness", "gauge", "1", "Fullness of a stream against its tightest limit."
)
METRIC_CONSUMER_PENDING = Instrument(
    "tidegate.broker.consumer.pending", "gauge", "{message}", "Messages not yet delivered to a consumer."
)
METRIC_CONSUMER_ACK_PENDING = Instrument(
    "tidegate.broker.consumer.ack_pending",
    "gauge",
    "{message}",
    "Messages delivered to a consumer and not yet acknowledged.",
)
METRIC_CONSUMER_REDELIVERED = Instrument(
    "tidegate.broker.consumer.redelivered",
    "gauge",
    "{message}",
    "Unacknowledged messages that were delivered more than once.",
)
METRIC_SLO_EVENTS = Instrument(
    "tidegate.slo.events", "counter", "{event}", "Observations of each objective, good and bad."
)
METRIC_SLO_TARGET = Instrument(
    "tidegate.slo.target", "gauge", "1", "Required share of good observations, by objective."
)
METRIC_SLO_BOUND = Instrument(
    "tidegate.slo.bound", "gauge", "", "Bound that an observation must keep, in the objective's unit."
)
METRIC_SLO_COVERAGE = Instrument(
    "tidegate.slo.coverage", "gauge", "1", "Share of the objective's window with observations."
)

# Observed by every service.
METRIC_TRACE_DEFERRED = Instrument(
    "tidegate.trace.deferred",
    "counter",
    "{trace}",
    "Unsampled traces exported because their trajectory was dropped or late.",
)
METRIC_TRACE_SUPPRESSED = Instrument(
    "tidegate.trace.suppressed",
    "counter",
    "{trace}",
    "Traces of dropped or late trajectories withheld by the rate limit.",
)
METRIC_RPC_DURATION = Instrument(
    "rpc.server.call.duration",
    "histogram",
    "s",
    "Duration of served gRPC calls, by method and status.",
    _SECONDS_BOUNDS,
)
METRIC_DRAINING = Instrument("tidegate.service.draining", "gauge", "", "1 while draining.")

# Fed by several statistics, of one service or of many.
METRIC_WORKER_TIME = Instrument(
    "tidegate.worker.time", "counter", "s", "Time of a service instance, by state."
)
METRIC_STAGE_ERRORS = Instrument(
    "tidegate.stage.errors", "counter", "{error}", "Failures of a stage of a trajectory's path, by stage."
)
METRIC_RETRIES = Instrument(
    "tidegate.retries", "counter", "{retry}", "Operations repeated after a transient failure, by operation."
)
METRIC_IGNORED = Instrument(
    "tidegate.delivery.ignored",
    "counter",
    "{message}",
    "Messages of state that a service could not read: it keeps what it knows, by stream.",
)
METRIC_QUARANTINED = Instrument(
    "tidegate.delivery.quarantined",
    "counter",
    "{message}",
    "Invalid messages moved to the QUARANTINE stream.",
)
METRIC_STATS_REFUSED = Instrument(
    "tidegate.stats.refused",
    "counter",
    "{message}",
    "Statistics messages discarded: malformed, or in the name of another service.",
)
METRIC_TASKS_RETURNED = Instrument(
    "tidegate.task.returned", "counter", "{task}", "Tasks that an actor released for redelivery, by cause."
)
METRIC_REDELIVERED = Instrument(
    "tidegate.delivery.redelivered", "counter", "{message}", "Deliveries after the first, by stream."
)
METRIC_ROLLOUT_TOKENS = Instrument(
    "tidegate.rollout.tokens",
    "counter",
    "{token}",
    "Tokens of partial rollouts: written, resumed from another actor, lost, released to another actor, or dropped.",
)
METRIC_ROLLOUT_RESUMPTIONS = Instrument(
    "tidegate.rollout.resumptions",
    "counter",
    "{task}",
    "Rollouts resumed from another actor's progress, by outcome.",
)
METRIC_PROGRESS_ERRORS = Instrument(
    "tidegate.rollout.progress.errors",
    "counter",
    "{error}",
    "Failures to checkpoint partial rollouts to the broker, by operation.",
)
METRIC_SERVER_UPDATES = Instrument(
    "tidegate.inference_server.updates",
    "counter",
    "{update}",
    "Weight updates of an inference server, taken or refused.",
)
METRIC_SERVER_REQUESTS = Instrument(
    "tidegate.inference_server.requests",
    "counter",
    "{request}",
    "Requests in flight while an inference server was updated, kept or cut.",
)
METRIC_SESSIONS = Instrument(
    "tidegate.session.events", "counter", "{session}", "Tool sessions opened, lost, refused and expired."
)
METRIC_GATEWAY_FAILURES = Instrument(
    "tidegate.gateway.episode_failures",
    "counter",
    "{episode}",
    "Gateway episodes without calls, without a reward, or with a failed program, by cause.",
)
METRIC_WEIGHTS_BYTES = Instrument(
    "tidegate.weights.size", "counter", "By", "Bytes of weights published and pulled."
)
METRIC_RANK_TIME = Instrument(
    "tidegate.learner.rank.time", "counter", "s", "Time of data-parallel updates at rank 0, by phase."
)
METRIC_HARD_SYNCS = Instrument(
    "tidegate.admission.hard_syncs", "counter", "{sync}", "Hard synchronisations of all actors, by outcome."
)
