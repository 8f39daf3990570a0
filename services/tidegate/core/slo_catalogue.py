"""The objectives a run may declare: what each one observes, and its defaults.

Enabled by default are objectives whose breach means a broken promise of the platform, or training without progress, in
any run. Disabled are the two whose right value is a choice: idle actors are the price of a small lag, and the clipped
share depends on the trained objective (half, for V-trace on fresh data).
"""

from typing import Annotated

import msgspec

from tidegate.core.slo import Direction, Slo

# An operator observes a run for minutes; an alert uses a twelfth of this.
WINDOW_S = 600.0
# Of max_age_s: half of the way to being dropped.
AGE_SHARE = 0.5


class SloConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One objective of the ``slos`` section; a missing key has the catalogue's value.

    ``enabled``: whether it is observed. ``bound``: in the indicator's unit; a bound no good run can hold pages
    all the time and is soon ignored. ``target``: share of observations that must be on the good side; 1 leaves no
    budget, and one bad observation is a breach. ``window_s`` (seconds): over what budget and target count; an alert
    also evaluates its last twelfth, so below a minute it evaluates single observations.
    """

    enabled: bool | None = None
    bound: Annotated[float, msgspec.Meta(ge=0.0)] | None = None
    target: Annotated[float, msgspec.Meta(ge=0.7, le=1.0)] | None = None
    window_s: Annotated[float, msgspec.Meta(ge=10.0, le=2_592_000.0)] | None = None


NOTHING_SET = SloConfig()


class SlosConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The ``slos`` section of a run file: promises that admission watches; they change nothing by themselves.

    ``lag_p95`` (versions): each trained trajectory's lag; 95 % within the bound is the p95 within it.
    ``lag_max`` (versions): the same against the staleness budget; a breach is a broken promise in any run.
    ``age_p95`` (seconds): each trained trajectory's age.
    ``waste_ratio`` (share): dropped of all that ended, over admission's window.
    ``verifier_failure_ratio`` (share): verdicts that failed of all verdicts, over admission's window; a verifier
    without a mistake has none.
    ``learner_idle_ratio``, ``actor_idle_ratio`` (share of wall time): waiting for a batch; waiting for a task.
    ``version_propagation_s`` (seconds): from a version's publication until 95 % of the actors serve it.
    ``clipped_fraction`` (share of tokens or steps), ``effective_sample_size`` (share, at least): as the newest update
    measured them.
    ``bin_drift``, ``length_drift`` (bits, 0 to 1): what was trained against what was decided, by curriculum bin and by
    length (``core.drift``), over a quarter of the objective's window.
    """

    lag_p95: SloConfig = NOTHING_SET
    lag_max: SloConfig = NOTHING_SET
    age_p95: SloConfig = NOTHING_SET
    waste_ratio: SloConfig = NOTHING_SET
    verifier_failure_ratio: SloConfig = NOTHING_SET
    learner_idle_ratio: SloConfig = NOTHING_SET
    actor_idle_ratio: SloConfig = NOTHING_SET
    version_propagation_s: SloConfig = NOTHING_SET
    clipped_fraction: SloConfig = NOTHING_SET
    effective_sample_size: SloConfig = NOTHING_SET
    bin_drift: SloConfig = NOTHING_SET
    length_drift: SloConfig = NOTHING_SET


class Default(msgspec.Struct, frozen=True):
    """An objective where the run file sets nothing."""

    unit: str
    bound: float
    target: float
    enabled: bool = True
    direction: Direction = "at_most"


def _defaults(*, max_lag: int, max_age_s: float) -> dict[str, Default]:
    return {
        # As wide as the budget: a learner-bound run stays at max_lag, by the operator's own choice.
        "lag_p95": Default("versions", bound=max_lag, target=0.95),
        "lag_max": Default("versions", bound=max_lag, target=1.0),
        "age_p95": Default("s", bound=AGE_SHARE * max_age_s, target=0.95),
        "waste_ratio": Default("share", bound=0.05, target=0.9),
        # A judge that is overloaded now and then fails less; a mistake in a verifier fails more.
        "verifier_failure_ratio": Default("share", bound=0.01, target=0.9),
        # Loose: a learner that waits nine tenths of the time trains a tenth of what it could.
        "learner_idle_ratio": Default("share", bound=0.9, target=0.9),
        "actor_idle_ratio": Default("share", bound=0.5, target=0.9, enabled=False),
        "version_propagation_s": Default("s", bound=30.0, target=0.95),
        "clipped_fraction": Default("share", bound=0.5, target=0.9, enabled=False),
        "effective_sample_size": Default("share", bound=0.1, target=0.9, direction="at_least"),
        # 0.01 bits: of two equal bins one loses four tenths of its work, or a bin of a tenth six of ten.
        "bin_drift": Default("bits", bound=0.01, target=0.9),
        "length_drift": Default("bits", bound=0.01, target=0.9),
    }


def declared(config: SlosConfig, *, max_lag: int, max_age_s: float) -> dict[str, Slo]:
    """The objectives that are on, by name, with the run file's values over the catalogue's."""
    slos: dict[str, Slo] = {}
    for name, default in _defaults(max_lag=max_lag, max_age_s=max_age_s).items():
        given: SloConfig = getattr(config, name)
        if default.enabled if given.enabled is None else given.enabled:
            slos[name] = Slo(
                name=name,
                bound=default.bound if given.bound is None else given.bound,
                target=default.target if given.target is None else given.target,
                window_s=WINDOW_S if given.window_s is None else given.window_s,
                direction=default.direction,
                unit=default.unit,
            )
    return slos


# The fix for each, in a sentence; the cause that a breach recorded decides which part of it applies.
REMEDIES: dict[str, str] = {
    "lag_p95": "lower staleness.max_lag, or let response.goodput choose it",
    "lag_max": "stop the run and keep its folder: exceeding the hard bound is a defect",
    "age_p95": "shorten rollouts (long_tail.cap_quantile, long_tail.policy: cut), or lower max_running",
    "waste_ratio": "wait for slow rollouts (staleness.pacing: true), widen max_lag or max_age_s, or abort rollouts"
    " earlier that cannot finish in time (long_tail.policy: cut)",
    "verifier_failure_ratio": "correct the verifier at the place that `tidegate explain` names, or choose by"
    " environment.on_error what a failure costs",
    "learner_idle_ratio": "add actors, or widen max_lag, according to the bottleneck",
    "actor_idle_ratio": "run fewer actors, or give the learner more compute",
    "version_propagation_s": "check the network and CPU between weight_distribution and the actors farthest behind",
    "clipped_fraction": "lower max_lag or the learning rate: the policy diverges from its data too fast",
    "effective_sample_size": "lower max_lag or the learning rate, or enable response.graded",
    "bin_drift": "wait for slow rollouts (staleness.pacing: true), or widen max_lag or max_age_s",
    "length_drift": "wait for long rollouts (staleness.pacing: true), or widen max_lag or max_age_s",
}
