"""The answer of the planner: balance, the effect of replicas, the cheapest size, and the rollouts."""

import msgspec

from tidegate.core.planner.rebalance import Rebalancing, rebalance, replicas_needed
from tidegate.core.planner.rollout import RolloutLoop, RolloutPlan, plan_rollouts
from tidegate.core.planner.scaling import replicas_max, speedup
from tidegate.core.planner.stages import Balance, Binding, Loop, balance_of
from tidegate.core.prices import Prices

REPLICAS_SHOWN = 8


class PlanQuestion(msgspec.Struct, frozen=True):
    """The configuration to plan. ``rollouts`` None: the duration of a rollout is unknown."""

    loop: Loop
    prices: Prices
    after_s: float
    target_per_s: float
    rollouts: RolloutLoop | None


class ReplicaRow(msgspec.Struct, frozen=True):
    """The same loop with another number of learner replicas."""

    replicas: int
    speedup: float
    learner_per_s: float
    throughput_per_s: float
    bottleneck: Binding
    usd_per_million: float


class PlanAnswer(msgspec.Struct, frozen=True):
    """``learner_free_at``: replicas from which on the learner is no bottleneck; None if none suffice."""

    loop: Loop
    prices: Prices
    balance: Balance
    replicas: tuple[ReplicaRow, ...]
    learner_free_at: int | None
    rebalancing: Rebalancing
    rollouts: RolloutPlan | None
    sentence: str


def work_out(question: PlanQuestion) -> PlanAnswer:
    """Answer a question.

    Raises:
        ConfigError: the loop or the rollouts are impossible.
    """
    loop, prices = question.loop, question.prices
    balance = balance_of(loop, prices=prices, after_s=question.after_s)
    rebalancing = rebalance(loop, prices=prices, target_per_s=question.target_per_s)
    return PlanAnswer(
        loop=loop,
        prices=prices,
        balance=balance,
        replicas=tuple(
            _with_replicas(question, replicas)
            for replicas in range(1, min(REPLICAS_SHOWN, replicas_max(loop.scaling)) + 1)
        ),
        learner_free_at=replicas_needed(loop),
        rebalancing=rebalancing,
        rollouts=plan_rollouts(question.rollouts) if question.rollouts else None,
        sentence=f"{_bottleneck(balance)} {rebalancing.sentence}",
    )


def _with_replicas(question: PlanQuestion, replicas: int) -> ReplicaRow:
    loop = msgspec.structs.replace(question.loop, num_replicas=replicas)
    balance = balance_of(loop, prices=question.prices, after_s=question.after_s)
    return ReplicaRow(
        replicas=replicas,
        speedup=speedup(replicas, curve=loop.scaling),
        learner_per_s=balance.stage("learner").capacity_per_s,
        throughput_per_s=balance.throughput_per_s,
        bottleneck=balance.bottleneck,
        usd_per_million=balance.usd_per_million,
    )


NAMES: dict[Binding, str] = {
    "actor": "The actors are the bottleneck",
    "environment": "The environment is the bottleneck",
    "store": "The store is the bottleneck",
    "learner": "The learner is the bottleneck",
    "balanced": "Actors and learner are balanced",
}


def _bottleneck(balance: Balance) -> str:
    actors, learner = balance.stage("actor"), balance.stage("learner")
    rate = f"{balance.throughput_per_s:,.0f} samples/s"
    if balance.bottleneck == "balanced":
        return f"Actors and learner are balanced at {rate}."
    used = f"utilisation of actors {actors.utilisation:.0%}, of the learner {learner.utilisation:.0%}"
    return f"{NAMES[balance.bottleneck]} at {rate} ({used})."
