"""Faults of a chaos run: failures, slow services, clock jumps and wrong statistics; and how each ends."""

import random
from collections.abc import Callable, Mapping
from typing import Literal, TypeAlias

import msgspec

from tidegate.catalogue import learner as learner_stats
from tidegate.fleet.actors import Actor
from tidegate.fleet.loop import FleetLoop
from tidegate.wire.stats import ServiceStats

Fault: TypeAlias = Literal[
    "actors_leave",
    "actors_join",
    "learner_down",
    "learner_restored",
    "store_down",
    "environment_down",
    "weights_down",
    "queue_down",
    "admission_down",
    "actors_slow",
    "learner_slow",
    "environment_slow",
    "weights_slow",
    "clock_of_store",
    "clock_of_learner",
    "clock_of_actors",
    "clock_of_admission",
    "wrong_stats",
]

# Relative weight of each in the draw.
FAULTS: Mapping[Fault, int] = {
    "actors_leave": 3,
    "actors_join": 2,
    "learner_down": 2,
    "learner_restored": 1,
    "store_down": 2,
    "environment_down": 2,
    "weights_down": 2,
    "queue_down": 2,
    "admission_down": 1,
    "actors_slow": 1,
    "learner_slow": 1,
    "environment_slow": 1,
    "weights_slow": 1,
    "clock_of_store": 1,
    "clock_of_learner": 1,
    "clock_of_actors": 1,
    "clock_of_admission": 1,
    "wrong_stats": 3,
}

WrongStats: TypeAlias = Literal[
    "missing", "stale", "zero", "negative", "nan", "infinite", "tenfold", "wrong_lineage"
]
WRONG_STATS: tuple[WrongStats, ...] = (
    "missing",
    "stale",
    "zero",
    "negative",
    "nan",
    "infinite",
    "tenfold",
    "wrong_lineage",
)
REPORTING = ("trajectory_store", "task_queue", "learner")

# Virtual seconds of a clock jump: below and far beyond any max_age_s that is drawn.
JUMPS_S = (-4000.0, -90.0, -5.0, 5.0, 90.0, 4000.0)
SLOWER = (2.0, 3.0, 5.0)
TICKS_MAX = 40


class ActiveFault(msgspec.Struct):
    """An active fault; ``end`` undoes it."""

    fault: Fault
    until_tick: int
    end: Callable[[], None]


class FleetFaultInjector:
    """Draws faults, at most one of a kind at a time, and ends each after its duration."""

    def __init__(
        self, loop: FleetLoop, rng: random.Random, *, every_ticks: float, faults: Mapping[Fault, int] = FAULTS
    ) -> None:
        """``every_ticks``: mean time between the starts of two faults."""
        self._loop = loop
        self._rng = rng
        self._every_ticks = every_ticks
        self._faults = list(faults)
        self._weights = list(faults.values())
        self._wrong_stats: dict[str, WrongStats] = {}
        self._last_true: dict[str, ServiceStats] = {}
        self._next_tick = 0.0
        self.running: list[ActiveFault] = []
        self.num_faults = 0
        self.events: list[str] = []
        loop.filter_stats = self._distort_reports

    def begin(self, tick: int) -> None:
        """Draw faults from now on."""
        self._next_tick = tick + self._rng.expovariate(1 / self._every_ticks)

    def step(self, tick: int) -> bool:
        """End and start the faults that are due; returns whether any changed."""
        over = [running for running in self.running if running.until_tick <= tick]
        for running in over:
            self._end(running, tick)
        changed = bool(over)
        while self._next_tick <= tick:
            self._next_tick += self._rng.expovariate(1 / self._every_ticks)
            changed = self._start(tick) or changed
        return changed

    def stop(self, tick: int) -> None:
        """End every fault."""
        for running in list(self.running):
            self._end(running, tick)
        # A join may have overlapped a failure: exactly the original actors are up now.
        self._join(self._loop.actors.members[: self._loop.present])
        self._leave(self._loop.actors.members[self._loop.present :])

    def _end(self, running: ActiveFault, tick: int) -> None:
        self.running.remove(running)
        running.end()
        self.events.append(f"tick {tick}: {running.fault} ends")

    def _start(self, tick: int) -> bool:
        fault = self._rng.choices(self._faults, self._weights)[0]
        lasts = self._rng.randint(1, TICKS_MAX)
        if any(running.fault == fault for running in self.running):
            return False
        end, detail = self._inject(fault)
        self.running.append(ActiveFault(fault, tick + lasts, end))
        self.num_faults += 1
        self.events.append(f"tick {tick}: {fault} {detail} for {lasts} ticks")
        return True

    def _inject(self, fault: Fault) -> tuple[Callable[[], None], str]:
        loop, rng = self._loop, self._rng
        match fault:
            case "actors_leave":
                return self._actors_leave()
            case "actors_join":
                return self._actors_join()
            case "learner_down" | "learner_restored":
                return self._stop_learner(back=rng.randint(0, 2) if fault == "learner_restored" else 0)
            case "store_down":
                loop.store.stop()
                return self._restart_store, ""
            case "environment_down":
                loop.environments.stop()
                return loop.environments.restart, ""
            case "weights_down":
                loop.weights.stop()
                return self._restart_weights, ""
            case "queue_down":
                loop.queue.stop()
                return loop.queue.restart, ""
            case "admission_down":
                loop.admission.stop()
                return loop.admission.restart, ""
            case "actors_slow" | "learner_slow" | "environment_slow" | "weights_slow":
                return self._slow(fault)
            case "clock_of_store" | "clock_of_learner" | "clock_of_actors" | "clock_of_admission":
                return self._jump(fault)
            case "wrong_stats":
                return self._report_wrong_stats()

    # -- each of them ----------------------------------------------------------------------------------------------

    def _actors_leave(self) -> tuple[Callable[[], None], str]:
        present = [actor for actor in self._loop.actors.members if actor.alive]
        leaving = self._rng.sample(present, self._rng.randint(1, len(present))) if present else []
        for actor in leaving:
            self._loop.actors.leave(actor)
        return lambda: self._join(leaving), f"{len(leaving)} of {len(present)}"

    def _actors_join(self) -> tuple[Callable[[], None], str]:
        absent = [actor for actor in self._loop.actors.members[self._loop.present :] if not actor.alive]
        joining = self._rng.sample(absent, self._rng.randint(0, len(absent)))
        self._join(joining)
        return lambda: self._leave(joining), str(len(joining))

    def _join(self, actors: list[Actor]) -> None:
        for actor in actors:
            self._loop.actors.join(actor)

    def _leave(self, actors: list[Actor]) -> None:
        for actor in actors:
            self._loop.actors.leave(actor)

    def _stop_learner(self, *, back: int) -> tuple[Callable[[], None], str]:
        learner = self._loop.learner
        if not learner.alive:
            return _nothing, "is down already"
        learner.stop()
        return lambda: learner.start(checkpoints_back=back), f"restored {back} checkpoints back"

    def _restart_store(self) -> None:
        self._loop.store.restart()
        self._loop.learner.dirty = True

    def _restart_weights(self) -> None:
        self._loop.weights.restart()
        self._loop.actors.recheck_waiting()

    def _slow(self, fault: Fault) -> tuple[Callable[[], None], str]:
        part = {
            "actors_slow": self._loop.actors,
            "learner_slow": self._loop.learner,
            "environment_slow": self._loop.environments,
            "weights_slow": self._loop.weights,
        }[fault]
        part.slowdown = self._rng.choice(SLOWER)

        def end() -> None:
            part.slowdown = 1.0

        return end, f"{part.slowdown:g} times"

    def _jump(self, fault: Fault) -> tuple[Callable[[], None], str]:
        actors = self._loop.actors.members
        parts = {
            "clock_of_store": [self._loop.store],
            "clock_of_learner": [self._loop.learner],
            "clock_of_actors": self._rng.sample(actors, self._rng.randint(1, len(actors))),
            "clock_of_admission": [self._loop.admission],
        }[fault]
        jump_s = self._rng.choice(JUMPS_S)
        for part in parts:
            part.skew_s = jump_s

        def end() -> None:
            for part in parts:
                part.skew_s = 0.0

        return end, f"of {len(parts)} by {jump_s:g} s"

    def _report_wrong_stats(self) -> tuple[Callable[[], None], str]:
        service, wrong = self._rng.choice(REPORTING), self._rng.choice(WRONG_STATS)
        self._wrong_stats[service] = wrong
        return self._wrong_stats.clear, f"of {service}: {wrong}"

    def _distort_reports(self, reports: list[ServiceStats]) -> list[ServiceStats]:
        """Statistics as admission receives them; the last true ones of each service are kept for stale reports."""
        received: list[ServiceStats] = []
        for stats in reports:
            wrong = self._wrong_stats.get(stats.service)
            if wrong is None:
                self._last_true[stats.service] = stats
                received.append(stats)
            elif wrong == "stale":
                received.append(self._last_true.get(stats.service, stats))
            elif wrong != "missing":
                received.append(distort(stats, wrong))
        return received


_FACTORS: dict[WrongStats, float] = {
    "zero": 0.0,
    "negative": -1.0,
    "nan": float("nan"),
    "infinite": float("inf"),
    "tenfold": 10.0,
}


def distort(stats: ServiceStats, wrong: WrongStats) -> ServiceStats:
    """Statistics with wrong values; 1 is added, so that a zero is distorted too."""
    if wrong == "wrong_lineage":
        # As an abandoned learner would report: far ahead, on a branch without followers.
        values = {**stats.values, learner_stats.VERSION_STEP: 1e6}
        return msgspec.structs.replace(stats, values=values, labels={"lineage": "9-abandoned"})
    factor = _FACTORS[wrong]
    return msgspec.structs.replace(
        stats, values={name: (value + 1) * factor for name, value in stats.values.items()}
    )


def _nothing() -> None:
    """Another fault undoes it."""
