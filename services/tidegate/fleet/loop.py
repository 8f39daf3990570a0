"""The loop: connects its parts and runs them on a virtual clock."""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Protocol

import numpy as np

from tidegate.catalogue import actor as actor_stats
from tidegate.catalogue import learner as learner_stats
from tidegate.catalogue import task_queue as queue_stats
from tidegate.catalogue import trajectory_store as store_stats
from tidegate.catalogue.kinds import Counter, Gauge, Text
from tidegate.core.admission import Limits
from tidegate.core.batching import Candidate
from tidegate.core.distributions import Durations
from tidegate.core.ids import PolicyVersion
from tidegate.core.staleness import LineageTree
from tidegate.fleet.actors import FleetActors
from tidegate.fleet.admission import FleetAdmission
from tidegate.fleet.draws import Draws, draws
from tidegate.fleet.environments import FleetEnvironments
from tidegate.fleet.event_queue import EventQueue
from tidegate.fleet.learner import FleetLearner
from tidegate.fleet.meters import Meters
from tidegate.fleet.plan import FleetPlan, check_plan
from tidegate.fleet.queue import FleetQueue, Outcome
from tidegate.fleet.rollout import Rollout
from tidegate.fleet.store import FleetStore
from tidegate.fleet.weights import FleetWeights
from tidegate.wire.stats import ServiceStats

NO_LABELS: Mapping[Text, str] = MappingProxyType({})
# Assumed: the effective sample size falls by this factor per version of lag.
ESS_PER_VERSION = 0.97
# A random stream per part, so that a new draw of one does not change the others.
STREAMS = ("rollout", "score", "learn")


class Observer(Protocol):
    """Receives the events of a loop, for accounting of its own."""

    def admitted(self, rollout: Rollout) -> None:
        """A task was admitted."""
        ...

    def began(self, rollout: Rollout) -> None:
        """An actor started it, under the version in its spans."""
        ...

    def gradient(self, version: PolicyVersion, batch: tuple[Candidate, ...]) -> None:
        """A loss is computed, on top of ``version``."""
        ...

    def outcomes(self, outcomes: list[Outcome]) -> None:
        """The ledger changed."""
        ...


class NoObserver:
    """Ignores all events."""

    def admitted(self, rollout: Rollout) -> None:
        """Nothing."""

    def began(self, rollout: Rollout) -> None:
        """Nothing."""

    def gradient(self, version: PolicyVersion, batch: tuple[Candidate, ...]) -> None:
        """Nothing."""

    def outcomes(self, outcomes: list[Outcome]) -> None:
        """Nothing."""


StatsFilter = Callable[[list[ServiceStats]], list[ServiceStats]]


class FleetLoop:
    """Every part of one fleet. ``run`` may be called again to continue; faults are injected in between."""

    def __init__(
        self,
        plan: FleetPlan,
        *,
        make_draws: Callable[[Durations, str], Draws] | None = None,
        observer: Observer | None = None,
        present: int | None = None,
    ) -> None:
        """Every actor has version 0; all actors are up, or the first ``present``.

        ``make_draws`` replaces the seeded draws of durations.

        Raises:
            ConfigError: such a fleet makes no progress.
        """
        self.plan = check_plan(plan)
        self.events = events = EventQueue()
        self.meters = meters = Meters(events)
        self._make_draws = make_draws or self._seeded_draws
        self._observer = observer = observer or NoObserver()
        self.weights = FleetWeights(plan, events, announce=self._announced)
        self.environments = FleetEnvironments(
            plan.environments, self._make_draws(plan.score, "score"), events, meters, scored=self._scored
        )
        self.actors = FleetActors(
            plan,
            events,
            meters,
            draws=self._make_draws(plan.rollout, "rollout"),
            weights=self.weights,
            began=observer.began,
            finished=self._finished,
        )
        self.queue = FleetQueue(plan, events, meters, publish=self._admitted)
        self.store = FleetStore(plan, events, meters, report_outcomes=self._report_outcomes)
        self.learner = FleetLearner(
            plan,
            events,
            meters,
            draws=self._make_draws(plan.learn, "learn"),
            store=self.store,
            weights=self.weights,
            on_gradient=observer.gradient,
        )
        self.filter_stats: StatsFilter = _as_reported
        self.admission = FleetAdmission(plan, events, report=self._report, request=self._request)
        self.present = plan.actors if present is None else present
        for actor in self.actors.members[: self.present]:
            self.actors.join(actor)
        self.learner.start()
        self._start_work()
        events.after(plan.tick_s, self._tick)

    def run(self, until_s: float) -> None:
        """Continue until ``until_s``."""
        self.events.run(until_s, on_moment_end=self._start_work)
        self.meters.advance()

    # -- connections -----------------------------------------------------------------------------------------------

    def _admitted(self, rollout: Rollout) -> None:
        self._observer.admitted(rollout)
        self.actors.tasks.append(rollout)

    def _finished(self, rollout: Rollout) -> None:
        if self.plan.environments:
            self.environments.take(rollout)
        else:
            self._scored(rollout)

    def _scored(self, rollout: Rollout) -> None:
        self.store.arrive(rollout)
        self.learner.dirty = True

    def _report_outcomes(self, outcomes: list[Outcome]) -> None:
        self._observer.outcomes(outcomes)
        if self.plan.hop_s:
            self.events.after(self.plan.hop_s, self.queue.receive_outcomes, outcomes)
        else:
            self.queue.receive_outcomes(outcomes)

    def _announced(self, version: PolicyVersion, tree: LineageTree) -> None:
        self.queue.receive_version(version, tree)
        self.actors.receive_version(version, tree)

    def _request(self, limits: Limits) -> None:
        self.queue.receive_limits(limits)

    def _start_work(self) -> None:
        """Everything of this moment has ended: parts with work start it."""
        learner, queue, actors, events = self.learner, self.queue, self.actors, self.events
        if learner.dirty:
            learner.turn()
            if events.has_more_now():  # an update that takes no time ends before anything else starts
                return
        if queue.alive and (queue.dirty or not self.plan.admission):
            queue.turn(places=actors.num_free - len(actors.tasks))
        if actors.has_work:
            actors.dispatch()

    def _tick(self, _about: None) -> None:
        self.store.expire()
        self.learner.dirty = True
        self.admission.tick()
        self.events.after(self.plan.tick_s, self._tick)

    def _report(self) -> list[ServiceStats]:
        """The statistics that the services report."""
        reports: list[ServiceStats] = []
        if self.store.alive:
            resident = float(self.store.pool.num_trajectories * self.plan.trajectory_bytes)
            reports.append(self._stats("trajectory_store", {store_stats.RESIDENT_BYTES: resident}))
        if self.queue.alive and self.queue.head is not None:
            flow = self.queue.snapshot().flow()
            reports.append(
                self._stats(
                    "task_queue",
                    {
                        queue_stats.RUNNING_TRAJECTORIES: flow.running,
                        queue_stats.IN_FLIGHT_TRAJECTORIES: flow.in_flight,
                        queue_stats.UNANNOUNCED_TRAJECTORIES: flow.unannounced,
                    },
                )
            )
        if self.learner.alive:
            reports.append(
                self._stats(
                    "learner",
                    {
                        learner_stats.VERSION_STEP: self.learner.head.step,
                        learner_stats.TRAINED_TRAJECTORIES: self.meters.trained,
                        learner_stats.ESS: ESS_PER_VERSION**self.learner.lag_mean,
                    },
                    labels={learner_stats.VERSION: str(self.learner.head)},
                )
            )
        if self.plan.is_steered():
            reports += self._serving()
        return self.filter_stats(reports)

    def _serving(self) -> list[ServiceStats]:
        """The version that each running actor serves."""
        reports: list[ServiceStats] = []
        for index, actor in enumerate(self.actors.members):
            number = self.weights.newest_at(actor.depth, at_least=actor.serving)
            if actor.alive and number >= 0:
                version = self.weights.version(number)
                reports.append(
                    self._stats(
                        "actor",
                        {actor_stats.SERVING_STEP: version.step},
                        index,
                        labels={actor_stats.SERVING_VERSION: str(version)},
                    )
                )
        return reports

    def _stats(
        self,
        service: str,
        values: Mapping[Counter | Gauge, float],
        index: int = 0,
        *,
        labels: Mapping[Text, str] = NO_LABELS,
    ) -> ServiceStats:
        return ServiceStats(
            service=service,
            instance=f"{service}-{index}",
            state="ready",
            at_s=self.events.now_s,
            started_at_s=0.0,
            values={str(name): value for name, value in values.items()},
            labels={str(name): text for name, text in labels.items()},
        )

    def _seeded_draws(self, duration: Durations, stream: str) -> Draws:
        return draws(duration, np.random.default_rng((self.plan.seed, STREAMS.index(stream))))


def _as_reported(reports: list[ServiceStats]) -> list[ServiceStats]:
    return reports
