"""Statistics of an actor's gateway for agents."""

from tidegate.catalogue.kinds import Counter, Family, Gauge
from tidegate.catalogue.telemetry import (
    ATTR_CAUSE,
    ATTR_HTTP_STATUS,
    ATTR_OPERATION,
    METRIC_GATEWAY_FAILURES,
    METRIC_RETRIES,
)

OPEN_EPISODES = Gauge(
    "gateway_episodes",
    "{episode}",
    "Gateway episodes that an agent holds or may begin.",
    exported="tidegate.gateway.open_episodes",
)
EPISODES = Counter(
    "gateway_episodes_total",
    "{episode}",
    "Gateway episodes that ended with at least one call.",
    exported="tidegate.gateway.episodes",
)
EPISODES_WITHOUT_CALLS = Counter(
    "gateway_episodes_without_calls_total",
    "{episode}",
    "Gateway episodes that ended without a call.",
    exported=METRIC_GATEWAY_FAILURES.of({ATTR_CAUSE: "no_calls"}),
)
EPISODES_WITHOUT_REWARD = Counter(
    "gateway_episodes_without_reward_total",
    "{episode}",
    "Gateway episodes that ended without a reward.",
    exported=METRIC_GATEWAY_FAILURES.of({ATTR_CAUSE: "no_reward"}),
)
PROGRAMS_FAILED = Counter(
    "gateway_programs_failed_total",
    "{episode}",
    "Agent programs that exited with an error.",
    exported=METRIC_GATEWAY_FAILURES.of({ATTR_CAUSE: "program_failed"}),
)
BRANCHES_TRAINED = Counter(
    "gateway_branches_trained_total",
    "{branch}",
    "Conversation branches sent to be trained beside the longest of their episode.",
    exported="tidegate.gateway.branches_trained",
)
BRANCHES_DROPPED = Counter(
    "gateway_branches_dropped_total",
    "{branch}",
    "Conversation branches dropped in favour of longer ones of their episode.",
    exported="tidegate.gateway.branches_dropped",
)
SCORE_RETRIES = Counter(
    "gateway_score_retries_total",
    "{retry}",
    "Scorings of gateway episodes repeated after a transient failure.",
    exported=METRIC_RETRIES.of({ATTR_OPERATION: "score"}),
)
CALLS = Counter(
    "gateway_calls_total", "{call}", "Calls of agents answered.", exported="tidegate.gateway.calls"
)
REFUSED = Family(
    Counter,
    "gateway_refused_*_total",
    "{call}",
    "Calls of agents refused, by HTTP status.",
    label=ATTR_HTTP_STATUS,
    exported="tidegate.gateway.calls_refused",
)
