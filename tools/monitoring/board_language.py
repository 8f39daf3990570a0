"""Dashboard of runs of language models: reward, tokens, mismatch, interrupted rollouts and inference servers."""

from tidegate.catalogue import actor as actor_stats
from tidegate.catalogue import inference_server as server_stats
from tidegate.catalogue import learner as learner_stats
from tidegate.catalogue import telemetry as names
from tools.monitoring.panels import Board, Panel, Query, Row
from tools.monitoring.prometheus_names import label
from tools.monitoring.queries import KIND, OPERATION, buckets, one, quantiles, rate, rate_by, total_rate
from tools.monitoring.slo_rules import OF_RUN

TEXT = "language models"
SERVER = "`actor.engine: vllm` or `sglang`"


def newest(name: str, legend: str = "") -> Query:
    """The value of a learner's gauge for each run."""
    return Query(f"max by ({OF_RUN}) ({one(name)})", legend)


def by_pod(name: str) -> Query:
    """A gauge of each actor."""
    return Query(f"max by ({OF_RUN}, instance) ({one(name)})", "{{instance}}")


LANGUAGE = Board(
    uid="tidegate-language",
    title="Tidegate / Language models",
    description="Reward, tokens, the mismatch between actors and learner, and the inference servers.",
    rows=(
        Row(
            "Reward",
            (
                Panel(
                    "Mean reward",
                    (newest(learner_stats.MEAN_REWARD.metric),),
                    description="Mean reward of the newest batch. Normal: rises, with noise. Flat from the start:"
                    " rewards are all alike; see the share without a signal.",
                    only_with=TEXT,
                ),
                Panel(
                    "Reward, distribution",
                    (Query(buckets(names.METRIC_REWARD), "{{le}}"),),
                    kind="heatmap",
                    description="Rewards of trained trajectories, one panel for each run. Normal: mass moves"
                    " upwards. All of it in one bucket: the task is too easy or too hard.",
                    only_with=TEXT,
                ),
                Panel(
                    "Share of the batch without a signal",
                    (newest(learner_stats.ZERO_SIGNAL_FRACTION.metric),),
                    unit="percentunit",
                    description="Groups whose rewards are equal, which teach nothing. Normal: below 50 %. Above: choose"
                    " other problems by curriculum bins, or larger groups.",
                    only_with=TEXT,
                ),
                Panel(
                    "Evaluations: share of problems solved",
                    (newest(actor_stats.EVALUATION_SOLVED_SHARE.metric),),
                    unit="percentunit",
                    description="Of the held-out problems, by the newest evaluation. Normal: rises later than the"
                    " reward. Reward rises and this does not: the policy exploits the verifier.",
                    only_with="evaluations of text",
                ),
            ),
        ),
        Row(
            "Tokens",
            (
                Panel(
                    "Tokens generated per second",
                    (total_rate(names.METRIC_TOKENS, "tokens"),),
                    unit="cps",
                    description="By all actors of a run. Normal: stable. It falls with each version: updating the"
                    " inference servers takes long; see their pause.",
                    only_with=TEXT,
                ),
                Panel(
                    "Tokens trained per second",
                    (total_rate(learner_stats.TRAINED_STEPS.metric, "tokens"),),
                    unit="cps",
                    description="Tokens (steps, for segments) in updates. Normal: follows the generated ones. Far"
                    " below: much work is dropped; see Flow.",
                ),
                Panel(
                    "Tokens computed per second by updates",
                    (newest(learner_stats.UPDATE_TOKENS_PER_S.metric),),
                    unit="cps",
                    description="Prompts included, on all ranks, while an update computes. Normal: stable. Lower with"
                    " the same texts: the learner lost a GPU or shares its CPU.",
                    only_with=TEXT,
                ),
                Panel(
                    "Model FLOP utilisation of updates",
                    (newest(learner_stats.MFU.metric),),
                    unit="percentunit",
                    description="Share of the GPUs' peak that the newest update reached, as `tidegate plan --mfu` takes"
                    " it. Normal: 15 to 40 %. Below: short texts, small batches, or GPUs that wait; see Machines.",
                    only_with="language models on GPUs that `tidegate plan` knows",
                ),
                Panel(
                    "Length of completions",
                    (
                        newest(learner_stats.COMPLETION_TOKENS_MEAN.metric, "mean"),
                        newest(learner_stats.COMPLETION_TOKENS_MAX.metric, "longest"),
                    ),
                    unit="none",
                    description="Tokens that the policy chose, mean and most of the newest batch. Normal: changes"
                    " slowly. The mean near the most allowed: completions are cut before they end.",
                    only_with=TEXT,
                ),
                Panel(
                    "Versions within a completion",
                    (*quantiles(names.METRIC_VERSION_SPAN),),
                    unit="none",
                    description="Newest minus oldest version that wrote one trajectory: its length in updates."
                    " Normal: 0 to 2. Growing: completions get longer, or updates faster.",
                ),
            ),
        ),
        Row(
            "Mismatch",
            (
                Panel(
                    "Divergence from the generating policy",
                    (newest(learner_stats.MISMATCH_KL.metric),),
                    description="Mean KL divergence in nats. Normal: below 0.1. High although lag is 0: the inference"
                    " server computes other probabilities than the learner; see the error of its probe.",
                ),
                Panel(
                    "Divergence by lag",
                    (
                        Query(
                            f"max by ({OF_RUN}, {label(names.ATTR_LAG_BUCKET)})"
                            f" ({one(learner_stats.MISMATCH_KL_BY_LAG.metric)})",
                            f"lag {{{{{label(names.ATTR_LAG_BUCKET)}}}}}",
                        ),
                    ),
                    description="The same in nats, by how many versions old a token or step was. Normal: near zero at"
                    " lag 0, and more the older. At lag 0 it is the numerics of two engines; beyond it staleness.",
                ),
                Panel(
                    "Divergence from the reference policy",
                    (newest(learner_stats.REFERENCE_KL.metric),),
                    description="Mean KL divergence in nats. Normal: rises slowly. A fast rise with a higher reward:"
                    " look at completions; the verifier may be exploited.",
                    only_with="a reference policy",
                ),
                Panel(
                    "Entropy",
                    (newest(learner_stats.ENTROPY.metric),),
                    description="In nats. Normal: falls slowly. Near zero: completions of a group are alike and teach"
                    " nothing; raise the entropy weight or the temperature.",
                ),
            ),
        ),
        Row(
            "Interrupted rollouts",
            (
                Panel(
                    "Tokens of partial rollouts per second",
                    (rate_by(names.METRIC_ROLLOUT_TOKENS, KIND),),
                    unit="cps",
                    description="Lost tokens are generated again; released ones are resumed by another actor."
                    " Normal: near zero without scaling and preemption.",
                    only_with=TEXT,
                ),
                Panel(
                    "Rollouts resumed per second, by outcome",
                    (rate_by(names.METRIC_ROLLOUT_RESUMPTIONS, KIND),),
                    unit="cps",
                    description="Rollouts that continue from another actor's tokens. Normal: only after an actor ended."
                    " Restarted ones: lower `keep_progress_s`.",
                    only_with=TEXT,
                ),
                Panel(
                    "Checkpoints of rollouts that failed per second",
                    (rate_by(names.METRIC_PROGRESS_ERRORS, OPERATION),),
                    unit="cps",
                    description="Normal: none. The stream PROGRESS is full or the broker refuses: a lost actor then"
                    " costs its unfinished rollouts.",
                    only_with=TEXT,
                ),
            ),
        ),
        Row(
            "Inference servers",
            (
                Panel(
                    "Weight updates per second, by outcome",
                    (rate_by(names.METRIC_SERVER_UPDATES, KIND),),
                    unit="cps",
                    description="Versions that the servers took or refused. Normal: taken, at the rate of versions."
                    " Refused: the probe differs too much, or the weights did not load; read the actor's log.",
                    only_with=SERVER,
                ),
                Panel(
                    "Pause for an update, by actor",
                    (by_pod(server_stats.PAUSE_MS.metric),),
                    unit="s",
                    description="Time in which a server generates nothing while it takes a version. Normal: below a"
                    " tenth of the time between versions. Longer: publish fewer versions.",
                    only_with=SERVER,
                ),
                Panel(
                    "Loading of weights, by actor",
                    (by_pod(server_stats.UPDATE_MS.metric),),
                    unit="s",
                    description="Part of the pause. Normal: stable and alike. Longer on one pod: its disk or network.",
                    only_with=SERVER,
                ),
                Panel(
                    "Error of the probe, by actor",
                    (by_pod(server_stats.PROBE_ERROR.metric),),
                    description="Mean difference in nats between the server's log-probabilities and the policy's"
                    " after an update. Normal: below 0.05. One pod above the others: delete it; all: a numeric"
                    " format differs.",
                    only_with=SERVER,
                ),
                Panel(
                    "Requests in flight at updates per second, kept or cut",
                    (rate_by(names.METRIC_SERVER_REQUESTS, KIND),),
                    unit="cps",
                    description="Kept ones continue with the new version; cut ones are sent again. Normal: kept."
                    " Many cut ones waste tokens.",
                    only_with=SERVER,
                ),
                Panel(
                    "Servers lost per second, by actor",
                    (
                        Query(
                            f"sum by ({OF_RUN}, instance) ({rate(server_stats.LOSSES.metric)})",
                            "{{instance}}",
                        ),
                    ),
                    unit="cps",
                    description="A server that became unreachable is started again. Normal: none. Repeated: read its"
                    " log; out of memory is the usual cause.",
                    only_with=SERVER,
                ),
            ),
        ),
    ),
)
