"""One plan worked out: the balance, what replicas and actors would change, the cheapest size, and the rollouts."""

import msgspec

from tidegate.core.planner.rebalance import Rebalancing, rebalance, replicas_needed
from tidegate.core.planner.rollout import RolloutLoop, RolloutPlan, plan_rollouts
from tidegate.core.planner.scaling import replicas_max, speedup
from tidegate.core.planner.stages import Balance, Binding, Loop, balance_of
from tidegate.core.prices import Prices

REPLICAS_SHOWN = 8


class PlanQuestion(msgspec.Struct, frozen=True):
    """What is to be planned. ``rollouts`` None: nothing is known of how long a rollout takes."""

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
    """``learner_free_at``: replicas from which on the learner binds no more; None if none suffice."""

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
        ConfigError: the loop or the rollouts cannot be.
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
        sentence=f"{_who_binds(balance)} {rebalancing.sentence}",
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
    "actor": "Actors bind",
    "environment": "The environment binds",
    "store": "The store binds",
    "learner": "The learner binds",
    "balanced": "Actors and learner are balanced",
}


def _who_binds(balance: Balance) -> str:
    actors, learner = balance.stage("actor"), balance.stage("learner")
    rate = f"{balance.throughput_per_s:,.0f} samples/s"
    if balance.bottleneck == "balanced":
        return f"Actors and learner are balanced at {rate}."
    used = f"actors are used to {actors.utilisation:.0%} and the learner to {learner.utilisation:.0%}"
    return f"{NAMES[balance.bottleneck]} at {rate}: {used}."
