"""Every span and metric name, in one place; dashboards and alerts are checked against this table."""

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

# Attribute keys shared by spans and metrics.
ATTR_RUN = "tidegate.run.id"
ATTR_ENV = "tidegate.env.id"
ATTR_TRAJECTORY = "tidegate.trajectory.id"
ATTR_TASK = "tidegate.task.id"
ATTR_VERSION_START = "tidegate.policy.version.start"
ATTR_VERSION_END = "tidegate.policy.version.end"
ATTR_VERSION_LEARNER = "tidegate.policy.version.learner"
ATTR_LAG = "tidegate.policy.lag"
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

METRIC_LAG = "tidegate.trajectory.policy_lag"
METRIC_LAG_WINDOW_MAX = "tidegate.trajectory.policy_lag.window_max"
METRIC_AGE = "tidegate.trajectory.age"
METRIC_CONSUMED = "tidegate.trajectory.consumed"
METRIC_GENERATED = "tidegate.trajectory.generated"
METRIC_APPENDED = "tidegate.trajectory.appended"
METRIC_DROPPED = "tidegate.trajectory.dropped"
METRIC_VERSION_SPAN = "tidegate.trajectory.version_span"
METRIC_TOKENS = "tidegate.trajectory.tokens"
METRIC_SLO_EVENTS = "tidegate.slo.events"
METRIC_STAGE_DURATION = "tidegate.stage.duration"
METRIC_QUEUE_DEPTH = "tidegate.queue.depth"
METRIC_LEARNER_VERSION = "tidegate.learner.policy_version"
METRIC_ACTOR_VERSION = "tidegate.actor.policy_version"
METRIC_WEIGHTS_PUBLISH = "tidegate.weights.publish.duration"
METRIC_WEIGHTS_LOAD = "tidegate.weights.load.duration"
METRIC_WEIGHTS_PROPAGATION = "tidegate.weights.propagation"
METRIC_WEIGHTS_BYTES = "tidegate.weights.bytes"
METRIC_STEP_DURATION = "tidegate.learner.step.duration"
METRIC_LEARNER_WAIT = "tidegate.learner.wait.time"
METRIC_REWARD = "tidegate.reward"
METRIC_ADMISSION_DECISIONS = "tidegate.admission.decisions"
METRIC_ADMISSION_LIMIT = "tidegate.admission.limit"
METRIC_INFLIGHT = "tidegate.admission.inflight"


class Instrument(msgspec.Struct, frozen=True):
    """How a metric is aggregated, and its UCUM unit. ``bounds`` are a histogram's bucket limits."""

    kind: Literal["counter", "histogram", "gauge"]
    unit: str
    bounds: tuple[float, ...] = ()


_LAG_BOUNDS = (0.0, 1.0, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 16.0, 32.0)
_SECONDS_BOUNDS = (
    0.001,
    0.0025,
    0.005,
    0.01,
    0.025,
    0.05,
    0.1,
    0.25,
    0.5,
    1.0,
    2.5,
    5.0,
    10.0,
    30.0,
    60.0,
    300.0,
)

INSTRUMENTS: dict[str, Instrument] = {
    METRIC_LAG: Instrument("histogram", "{version}", _LAG_BOUNDS),
    METRIC_LAG_WINDOW_MAX: Instrument("gauge", "{version}"),
    METRIC_AGE: Instrument("histogram", "s", _SECONDS_BOUNDS),
    METRIC_CONSUMED: Instrument("counter", "{trajectory}"),
    METRIC_GENERATED: Instrument("counter", "{trajectory}"),
    METRIC_APPENDED: Instrument("counter", "{trajectory}"),
    METRIC_DROPPED: Instrument("counter", "{trajectory}"),
    METRIC_VERSION_SPAN: Instrument("histogram", "{version}", _LAG_BOUNDS),
    METRIC_TOKENS: Instrument("counter", "{token}"),
    METRIC_SLO_EVENTS: Instrument("counter", "{event}"),
    METRIC_STAGE_DURATION: Instrument("histogram", "s", _SECONDS_BOUNDS),
    METRIC_QUEUE_DEPTH: Instrument("gauge", "{task}"),
    METRIC_LEARNER_VERSION: Instrument("gauge", "{version}"),
    METRIC_ACTOR_VERSION: Instrument("gauge", "{version}"),
    METRIC_WEIGHTS_PUBLISH: Instrument("histogram", "s", _SECONDS_BOUNDS),
    METRIC_WEIGHTS_LOAD: Instrument("histogram", "s", _SECONDS_BOUNDS),
    METRIC_WEIGHTS_PROPAGATION: Instrument("histogram", "s", _SECONDS_BOUNDS),
    METRIC_WEIGHTS_BYTES: Instrument("counter", "By"),
    METRIC_STEP_DURATION: Instrument("histogram", "s", _SECONDS_BOUNDS),
    METRIC_LEARNER_WAIT: Instrument("counter", "s"),
    METRIC_REWARD: Instrument(
        "histogram", "1", (-1.0, 0.0, 0.1, 0.25, 0.5, 0.75, 0.9, 1.0, 10.0, 100.0, 500.0)
    ),
    METRIC_ADMISSION_DECISIONS: Instrument("counter", "{decision}"),
    METRIC_ADMISSION_LIMIT: Instrument("gauge", "{trajectory}"),
    METRIC_INFLIGHT: Instrument("gauge", "{trajectory}"),
}
