"""Dashboard of the actors and environment workers."""

from tidegate.catalogue import actor as actor_stats
from tidegate.catalogue import environment as environment_stats
from tidegate.catalogue import gateway as gateway_stats
from tidegate.catalogue import learner as learner_stats
from tidegate.catalogue import process as process_stats
from tidegate.catalogue import telemetry as names
from tools.monitoring.inference_row import INFERENCE
from tools.monitoring.panels import Board, Panel, Query, Row
from tools.monitoring.prometheus_names import label
from tools.monitoring.queries import (
    CAUSE,
    JOB_OF,
    KIND,
    OUTCOME,
    STAGE,
    STATE,
    equal,
    one,
    rate,
    rate_by,
    total,
    total_rate,
)
from tools.monitoring.slo_rules import OF_RUN

HTTP_STATUS = label(names.ATTR_HTTP_STATUS)
RPC_METHOD = label(names.ATTR_RPC_METHOD)

ACTORS = Board(
    uid="tidegate-actors",
    title="Tidegate / Actors and environments",
    description="Time, throughput and policy versions of the actors and the environment workers.",
    rows=(
        Row(
            "Actors",
            (
                Panel(
                    "Actors reporting",
                    (Query(f"count by ({OF_RUN}) ({one(actor_stats.SERVING_STEP.metric)})"),),
                    kind="stat",
                    description="Actors whose metrics arrive. Normal: the number that you scaled to. Fewer: look for"
                    " pending or restarting pods.",
                    unit="none",
                ),
                Panel(
                    "Time by state",
                    (
                        Query(
                            f"sum by ({OF_RUN}, {STATE}) ({rate(names.METRIC_WORKER_TIME, JOB_OF['actor'])})",
                            f"{{{{{STATE}}}}}",
                        ),
                    ),
                    unit="s",
                    stacked=True,
                    description="Seconds per second, summed over all actors. Normal: mostly generating. Much waiting"
                    " for a task means that admission or the learner is the bottleneck: see `tidegate"
                    " explain`.",
                ),
                Panel(
                    "Steps per second, by actor",
                    (
                        Query(
                            f"sum by ({OF_RUN}, instance) ({rate(actor_stats.STEPS.metric)})", "{{instance}}"
                        ),
                    ),
                    description="Environment steps or tokens that each actor generates. Normal: actors of one kind"
                    " are alike. One far below the others: read its log, then delete its pod.",
                    unit="cps",
                ),
                Panel(
                    "Trajectories per second, by actor",
                    (
                        Query(
                            f"sum by ({OF_RUN}, instance) ({rate(actor_stats.TRAJECTORIES.metric)})",
                            "{{instance}}",
                        ),
                    ),
                    description="Trajectories that each actor finished and the broker acknowledged. Zero on one actor"
                    " while others work: it hangs or holds no policy; delete its pod, its tasks are"
                    " redelivered.",
                    unit="cps",
                ),
                Panel(
                    "Tasks redelivered and failed per second",
                    (
                        Query(f"sum by ({OF_RUN}) ({rate(names.METRIC_REDELIVERED)})", "redelivered"),
                        Query(
                            f"sum by ({OF_RUN}) ({rate(names.METRIC_STAGE_ERRORS, equal(STAGE, names.SPAN_GENERATE))})",
                            "failed",
                        ),
                    ),
                    description="Redelivered: a task came again because its actor ended or was slow. Failed:"
                    " generation raised an error. Normal: near zero. Otherwise read the last error with"
                    " `tidegate explain`.",
                    unit="cps",
                ),
                Panel(
                    "Tasks returned per second, by cause",
                    (rate_by(names.METRIC_TASKS_RETURNED, CAUSE),),
                    unit="cps",
                    description="Tasks that actors released so that another one takes them, by cause. Normal: a"
                    " few while actors drain or scale down. A steady rate: actors cannot run the task;"
                    " their log has the cause.",
                    only_with="tasks that were returned",
                ),
                Panel(
                    "Versions behind the learner, by actor",
                    (
                        Query(
                            f"max by ({OF_RUN}) ({one(learner_stats.VERSION_STEP.metric)})"
                            f" - on ({OF_RUN}) group_right () {one(actor_stats.SERVING_STEP.metric)}",
                            "{{instance}}",
                        ),
                    ),
                    description="Normal: 0 to 2, and never above `max_lag`. One actor that stays behind cannot pull"
                    " or load versions: read its log for `policy_refused`, then delete its pod.",
                ),
            ),
        ),
        Row(
            "Environments of segments",
            (
                Panel(
                    "Faults of environments per second, by kind",
                    (rate_by(actor_stats.ENVIRONMENT_FAULTS.metric, KIND),),
                    description="A copy that raised or returned NaN is made again; one that hung costs its actor."
                    " Normal: none. Correct the environment; `tidegate explain` names the call.",
                    only_with="environments that fail",
                    unit="cps",
                ),
                Panel(
                    "Longest call into an environment, by actor",
                    (
                        Query(
                            f"max by ({OF_RUN}, instance) ({one(actor_stats.ENVIRONMENT_CALL_S.metric)})",
                            "{{instance}}",
                        ),
                    ),
                    unit="s",
                    description="0 while calls return within two seconds; ends at `workload.step_timeout_s`, after"
                    " which the actor is restarted. A rising line: the environment waits for something,"
                    " such as a lock or a socket.",
                    only_with="segments",
                ),
            ),
        ),
        INFERENCE,
        Row(
            "Partial rollouts and policies",
            (
                Panel(
                    "Tokens of partial rollouts per second",
                    (rate_by(names.METRIC_ROLLOUT_TOKENS, KIND),),
                    description="Tokens of rollouts that did not end on the actor that began them. Lost tokens are"
                    " generated again; released ones are resumed by another actor. Normal: near zero"
                    " without scaling and preemption.",
                    only_with="language-model rollouts",
                    unit="cps",
                ),
                Panel(
                    "Rollouts resumed per second, by outcome",
                    (rate_by(names.METRIC_ROLLOUT_RESUMPTIONS, KIND),),
                    only_with="language-model rollouts",
                    description="Rollouts that continue from another actor's progress. Normal: only after an actor"
                    " ended. Many restarted ones: raise the frequency of checkpoints (`keep_progress_s`).",
                    unit="cps",
                ),
                Panel(
                    "Trajectories cut and stopped early per second",
                    (
                        total_rate(actor_stats.CUT.metric, "cut"),
                        total_rate(actor_stats.EARLY_STOPPED.metric, "stopped early"),
                    ),
                    only_with="`long_tail` settings",
                    description="Cut: would have exceeded the staleness budget. Stopped early: their group taught"
                    " nothing more. Many cuts: rollouts are too long for `max_lag`.",
                    unit="cps",
                ),
                Panel(
                    "Policies refused and weight swaps per second",
                    (
                        total_rate(actor_stats.POLICIES_REFUSED.metric, "refused"),
                        total_rate(actor_stats.SWAPS.metric, "swaps"),
                    ),
                    description="Swaps are changes of the served version. Normal: swaps follow the learner's"
                    " versions, none refused. Refused: the actor's log has `policy_refused` with the"
                    " reason.",
                    unit="cps",
                ),
                Panel(
                    "Evaluations: share of problems solved",
                    (
                        Query(
                            f"max by ({OF_RUN}) ({one(actor_stats.EVALUATION_SOLVED_SHARE.metric)})", "solved"
                        ),
                    ),
                    unit="percentunit",
                    only_with="evaluations of text",
                    description="Share of the held-out problems that the newest evaluation solved. Normal: rises,"
                    " with noise. A lasting fall: the run diverges; compare with the learner's divergence"
                    " and entropy.",
                ),
                Panel(
                    "Evaluations: return of greedy episodes",
                    (
                        Query(f"max by ({OF_RUN}) ({one(actor_stats.EVALUATION_RETURN.metric)})", "mean"),
                        Query(
                            f"max by ({OF_RUN}) ({one(actor_stats.EVALUATION_RETURN_MIN.metric)})", "lowest"
                        ),
                        Query(
                            f"max by ({OF_RUN}) ({one(actor_stats.EVALUATION_RETURN_MAX.metric)})", "highest"
                        ),
                    ),
                    only_with="evaluations of segments",
                    description="Returns of the newest evaluation, played greedily. Normal: rises. A fall while the"
                    " training return rises: exploration hides a policy that got worse.",
                ),
                Panel(
                    "Tool sessions per second, by outcome",
                    (rate_by(names.METRIC_SESSIONS, OUTCOME),),
                    only_with="multi-turn environments",
                    description="Sessions of multi-turn environments that were opened, lost, refused or expired."
                    " Normal: opened only. Refused: add environment workers. Lost: workers restart.",
                    unit="cps",
                ),
            ),
        ),
        Row(
            "Environments",
            (
                Panel(
                    "Trajectories scored per second",
                    (
                        total_rate(environment_stats.SCORED.metric, "scored"),
                        total_rate(environment_stats.CACHE_HITS.metric, "answered from the cache"),
                    ),
                    width=12,
                    only_with="environment workers",
                    description="Rewards that environment workers computed, and rewards from their cache. Normal:"
                    " follows the generated trajectories. Lower: ROLLOUTS fills; add environment workers.",
                    unit="cps",
                ),
                Panel(
                    "Open tool sessions",
                    (total(environment_stats.SESSIONS.metric, "open"),),
                    width=12,
                    only_with="multi-turn environments",
                    description="Sessions that environment workers hold now. Normal: stable. A steady rise towards"
                    " the workers' limit: sessions are not closed; look for actors that end without a"
                    " drain.",
                ),
            ),
        ),
        Row(
            "Gateway",
            (
                Panel(
                    "Calls of agents per second",
                    (
                        total_rate(gateway_stats.CALLS.metric, "answered"),
                        Query(
                            f"sum by ({OF_RUN}, {HTTP_STATUS}) ({rate(gateway_stats.REFUSED.metric)})",
                            f"refused with {{{{{HTTP_STATUS}}}}}",
                        ),
                    ),
                    only_with="`actor.gateway`",
                    description="Calls that external agents made to the gateway. Refused with 401: a wrong key; 429:"
                    " too many at once; 503: the actor drains or has no policy.",
                    unit="cps",
                ),
                Panel(
                    "Episodes of agents",
                    (
                        total(gateway_stats.OPEN_EPISODES.metric, "open"),
                        total_rate(gateway_stats.EPISODES.metric, "ended per second"),
                    ),
                    only_with="`actor.gateway`",
                    description="Episodes that an agent holds or may begin, and those that ended. Normal: open stays"
                    " below the actors' slots. Open but never ended: the agent posts no reward.",
                ),
                Panel(
                    "Episodes without a result per second, by cause",
                    (rate_by(names.METRIC_GATEWAY_FAILURES, CAUSE),),
                    description="No call, no reward, or an agent program that exited with an error. Normal: none."
                    " Each is a wasted task; read the agent's log.",
                    only_with="`actor.gateway`",
                    unit="cps",
                ),
            ),
        ),
        Row(
            "Processes",
            (
                Panel(
                    "CPU",
                    (Query(f"sum by ({OF_RUN}, job) ({rate(process_stats.CPU_S.metric)})", "{{job}}"),),
                    stacked=True,
                    width=12,
                    description="CPU cores in use, by service. Normal: actors and learner dominate. Compare with"
                    " requests and limits: a service at its limit is throttled.",
                    unit="none",
                ),
                Panel(
                    "Memory",
                    (Query(f"sum by ({OF_RUN}, job) ({one(process_stats.RSS_MB.metric)})", "{{job}}"),),
                    unit="bytes",
                    stacked=True,
                    width=12,
                    description="Resident memory, by service. Normal: flat after the first minutes. A steady rise"
                    " ends in an out-of-memory kill: note the service and report a defect.",
                ),
                Panel(
                    "Stalls of event loops, per second, by kind",
                    (
                        Query(
                            f"sum by ({OF_RUN}, job, {KIND}) ({rate(process_stats.LOOP_STALLS_OF.metric)})",
                            f"{{{{job}}}} {{{{{KIND}}}}}",
                        ),
                    ),
                    width=12,
                    description="Times a service's event loop stood still for more than 100 ms. Normal: none of"
                    " kind computing; a few of kind waiting on a machine without free CPU. Else read the log event"
                    " event_loop_stalled, which names the function.",
                    unit="cps",
                ),
                Panel(
                    "Longest stall of an event loop",
                    (
                        Query(
                            f"max by ({OF_RUN}, job) ({one(process_stats.LOOP_STALL_LONGEST_S.metric)})",
                            "{{job}} stood still",
                        ),
                        Query(
                            f"max by ({OF_RUN}, job) ({one(process_stats.LOOP_STALL_CPU_S.metric)})",
                            "{{job}} computed",
                        ),
                    ),
                    width=12,
                    description="Longest time since the service became ready. Normal: below 0.1 s computed. Above"
                    " ten seconds heartbeats are missed, above two minutes the liveness probe ends the pod.",
                    unit="s",
                ),
            ),
        ),
    ),
)
