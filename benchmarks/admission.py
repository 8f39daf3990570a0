"""What admission costs: one decision at ten thousand actors, and its process' share of a core beside two hundred.

The decision is what a tick decides with: the limits, the signals, the diagnosis, and every objective observed and
judged, in this process. The share is of a real admission process on a real broker, which hears two hundred simulated
actors twice a second (400 messages a second of some 25 statistics each); it is the process' own CPU time.
"""

import asyncio
import time
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path

from benchmarks.process_tree import machine_busy_s, process_cpu_s
from benchmarks.results import BenchResult, Goal, Sample, row
from benchmarks.setting import BenchSetting, print_progress
from benchmarks.stage import Stage, stage
from benchmarks.training_run import remove_folder
from tidegate.admission import indicators
from tidegate.admission.observations import Observations
from tidegate.admission.state import Pause, StreamBacklog, decide, flow_of, signals_of
from tidegate.catalogue import actor as actor_stats
from tidegate.catalogue import environment as environment_stats
from tidegate.catalogue import learner as learner_stats
from tidegate.catalogue import process as process_stats
from tidegate.catalogue import publishing as publishing_stats
from tidegate.catalogue import task_queue as queue_stats
from tidegate.catalogue import trajectory_store as store_stats
from tidegate.cli.samples import last_working_sample
from tidegate.core import slo
from tidegate.core.admission import Limits, capacity
from tidegate.core.balance import diagnose
from tidegate.core.errors import UnavailableError
from tidegate.core.slo_catalogue import SlosConfig, declared
from tidegate.runtime.stats_reports import publish_stats
from tidegate.wire.stats import ServiceStats

REPETITIONS = 3
DECISION_ACTORS = 10_000
DECISIONS = 200
DECISION_US_MAX = 1_000.0
HEARD_ACTORS = 200
REPORT_PERIOD_S = 0.5
HEARD_S = 20.0
HEARD_QUICK_S = 5.0
# The process has started, subscribed and heard all services by then.
WARM_UP_S = 3.0
CORE_SHARE_MAX = 0.05
WINDOW_S = 10.0

# As an actor's board has them: half of these move with every report.
MOVING = (
    actor_stats.BUSY_S,
    actor_stats.WAIT_TASK_S,
    actor_stats.WAIT_POLICY_S,
    actor_stats.WAIT_PUBLISH_S,
    actor_stats.STEPS,
    actor_stats.TRAJECTORIES,
    actor_stats.SWAPS,
    actor_stats.SWAP_MS,
    process_stats.CPU_S,
    actor_stats.WEIGHT_PULL_MS,
    actor_stats.SERVING_STEP,
    process_stats.RSS_MB,
)
STANDING = (
    actor_stats.TASKS_FAILED,
    actor_stats.TASKS_RELEASED,
    actor_stats.TASKS_REDELIVERED,
    actor_stats.QUARANTINED,
    publishing_stats.PUBLISH_RETRIES,
    publishing_stats.PUBLISH_BACKPRESSURE,
    publishing_stats.UPLOADS,
    actor_stats.POLICIES_REFUSED,
    actor_stats.PULL_RETRIES,
    process_stats.BROKER_RECONNECTS,
    process_stats.BACKPRESSURE,
    actor_stats.WAIT_BROKER_S,
)


def run(setting: BenchSetting) -> BenchResult:
    """Both figures; there is no peer.

    Raises:
        UnavailableError: the broker or admission did not start.
    """
    decisions_us: list[float] = []
    report_us: list[float] = []
    shares: list[float] = []
    samples: list[Sample] = []
    for repetition in range(setting.repeat(REPETITIONS)):
        seen, put_us = _hear_many()
        report_us.append(put_us)
        decisions_us.append(_time_decisions(seen))
        folder = setting.folder / f"admission-{repetition}"
        heard_s = HEARD_QUICK_S if setting.quick else HEARD_S
        sample = asyncio.run(_measure_share(setting, folder, repetition=repetition, heard_s=heard_s))
        remove_folder(folder)
        samples.append(sample)
        shares.append(sample.cpu_s / sample.wall_s)
        print_progress(
            f"admission {repetition + 1}: {decisions_us[-1]:.0f} µs a decision, {shares[-1]:.1%} of a core"
        )
    return BenchResult(
        name="admission",
        rows=[
            row(
                f"one decision at {DECISION_ACTORS:,} actors",
                "µs",
                decisions_us,
                goal=Goal(DECISION_US_MAX, "at_most", "figure"),
            ),
            row(f"taking in one report of {DECISION_ACTORS:,} actors", "µs", report_us),
            row(
                f"share of a core at {HEARD_ACTORS} actors, 2 Hz",
                "cores",
                shares,
                goal=Goal(CORE_SHARE_MAX, "at_most", "figure"),
            ),
        ],
        samples=samples,
        notes=["the share is of admission alone: broker and publishers are other processes"],
    )


def _reports(index: int) -> Iterator[ServiceStats]:
    """The reports of one actor, one after another."""
    for number in count():
        values: dict[str, float] = {name: float(number * (index % 7 + 1)) for name in MOVING}
        values |= dict.fromkeys(STANDING, 0.0)
        values[actor_stats.SERVING_STEP] = step = float(number // 4)
        yield ServiceStats(
            service="actor",
            instance=f"actor-{index}",
            state="ready",
            at_s=REPORT_PERIOD_S * number,
            started_at_s=0.0,
            values=values,
            labels={actor_stats.SERVING_VERSION: f"0-a@{step:.0f}"},
        )


def _others(number: int) -> list[ServiceStats]:
    """The reports of the services that have one instance."""
    now_s = REPORT_PERIOD_S * number
    bins = {
        family.member(str(name)): 10.0 * number
        for family in (queue_stats.ADMITTED_IN_BIN, queue_stats.DECIDED_IN_BIN, queue_stats.TRAINED_IN_BIN)
        for name in range(16)
    }
    reported: dict[str, dict[str, float]] = {
        "learner": {
            learner_stats.VERSION_STEP: number,
            learner_stats.BUSY_S: now_s,
            learner_stats.WAIT_BATCH_S: now_s,
            learner_stats.ESS: 0.9,
        },
        "trajectory_store": {
            store_stats.TRAINED: 9.0 * number,
            store_stats.DROPPED: number,
            store_stats.RESIDENT_BYTES: 1e6,
        },
        "task_queue": {
            queue_stats.RUNNING_TRAJECTORIES: 99.0,
            queue_stats.IN_FLIGHT_TRAJECTORIES: 200.0,
            **bins,
        },
        "environment": {environment_stats.BUSY_S: now_s, environment_stats.SCORED: 9.0 * number},
    }
    return [
        ServiceStats(
            service, service, "ready", now_s, 0.0, {key: float(value) for key, value in values.items()}
        )
        for service, values in reported.items()
    ]


def _hear_many() -> tuple[Observations, float]:
    """Observations that heard every actor for three seconds, and what one report took in µs."""
    seen = Observations(window_s=WINDOW_S)
    actors = [_reports(index) for index in range(DECISION_ACTORS)]
    spent_s = 0.0
    rounds = 6
    for number in range(rounds):
        reports = [next(actor) for actor in actors] + _others(number)
        started_s = time.perf_counter()
        for stats in reports:
            seen.put(stats, now_s=REPORT_PERIOD_S * number)
        spent_s += time.perf_counter() - started_s
    return seen, 1e6 * spent_s / (rounds * DECISION_ACTORS)


def _time_decisions(seen: Observations) -> float:
    """Median µs of a decision."""
    slos = declared(SlosConfig(), max_lag=4, max_age_s=300.0)
    states = dict.fromkeys(slos, slo.SloState())
    run_file = Limits(max_lag=4, batch_size=512, max_running=DECISION_ACTORS)
    memory = indicators.IndicatorState()
    now_s = REPORT_PERIOD_S * 5

    def decision() -> None:
        nonlocal memory
        resident = seen.latest("trajectory_store", now_s=now_s)
        decided = decide(
            run_file,
            Pause(),
            resident_bytes=sum(stats.values[store_stats.RESIDENT_BYTES] for stats in resident),
            resident_bytes_high=1e9,
            group_size=8,
        )
        capacity(decided.limits, flow_of(seen, now_s=now_s))
        diagnose(signals_of(seen, decided.limits, StreamBacklog(), group_size=8, now_s=now_s))
        found, memory = indicators.observe_indicators(
            seen, memory, slos, group_size=8, paused=False, declared_pause=False, now_s=now_s
        )
        for name, observation in found.items():
            value = observation.value
            states[name] = slo.observe(slos[name], states[name], value, at_s=now_s)
            slo.update_condition(slos[name], states[name], now_s=now_s, cause="", wall_s=0.0)

    return _median_us(decision, times=DECISIONS)


def _median_us(work: Callable[[], None], *, times: int) -> float:
    spent_us: list[float] = []
    for _ in range(times):
        started_s = time.perf_counter()
        work()
        spent_us.append(1e6 * (time.perf_counter() - started_s))
    return sorted(spent_us)[times // 2]


async def _measure_share(setting: BenchSetting, folder: Path, *, repetition: int, heard_s: float) -> Sample:
    """CPU time of admission while it hears all services."""
    async with stage(setting.run_file, folder=folder, services=["admission"]) as staged:
        speaker = asyncio.create_task(_speak(staged))
        try:
            await asyncio.sleep(WARM_UP_S)
            pid = next(view.pid for view in staged.supervisor.view() if view.name == "admission")
            before_cpu_s, before_s, before_busy_s = _cpu_s(pid), time.monotonic(), machine_busy_s()
            await asyncio.sleep(heard_s)
            if speaker.done():
                speaker.result()
            wall_s = time.monotonic() - before_s
            cpu_s = _cpu_s(pid) - before_cpu_s
            busy_s = machine_busy_s() - before_busy_s
        finally:
            speaker.cancel()
            await asyncio.gather(speaker, return_exceptions=True)
    _check_heard(folder)
    return Sample(
        side="tidegate",
        label="admission",
        repetition=repetition,
        work=HEARD_ACTORS / REPORT_PERIOD_S * wall_s,
        unit="report",
        wall_s=wall_s,
        cpu_s=cpu_s,
        others_cores=max(0.0, (busy_s - cpu_s) / wall_s),
    )


async def _speak(staged: Stage) -> None:
    """Every actor twice a second, spread over the period as they are in a run."""
    actors = [_reports(index) for index in range(HEARD_ACTORS)]
    started_s = time.monotonic()
    for number in count():
        for stats in _others(number):
            await publish_stats(staged.bus, staged.topology, stats)
        for index, actor in enumerate(actors):
            stats = next(actor)
            await publish_stats(staged.bus, staged.topology, stats)
            if index % 10 == 9:
                due_s = started_s + REPORT_PERIOD_S * (number + (index + 1) / HEARD_ACTORS)
                await asyncio.sleep(max(0.0, due_s - time.monotonic()))


def _check_heard(folder: Path) -> None:
    """Refuse a figure that is small because admission did not hear all of them."""
    sample = last_working_sample(folder)
    heard = sample["num_actors"] if sample is not None else 0
    if heard != HEARD_ACTORS:
        raise UnavailableError(
            f"Admission heard {heard} of {HEARD_ACTORS} actors",
            why="the machine is too busy for this process to publish twice a second, or messages were lost",
            fix="measure again when it is not",
        )


def _cpu_s(pid: int | None) -> float:
    spent_s = process_cpu_s(pid) if pid is not None else None
    if spent_s is None:
        raise UnavailableError(
            "Admission ended while it was measured", fix="see its log in the bench's folder"
        )
    return spent_s
