import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.admission.observations import Observations
from tidegate.admission.state import Decision, StreamBacklog, decide, flow_of, mean_backlog, signals_of
from tidegate.core.admission import Flow, Limits
from tidegate.core.balance import diagnose
from tidegate.core.pauses import Pause
from tidegate.wire.stats import ServiceStats

NO_PAUSE = Pause()
RUN_FILE = Limits(max_lag=4, batch_size=16, max_running=64)


def decided(*, pause: Pause = NO_PAUSE, resident_bytes: float = 0.0, group_size: int = 8) -> Decision:
    return decide(
        RUN_FILE, pause, resident_bytes=resident_bytes, resident_bytes_high=1e9, group_size=group_size
    )


def test_run_file_holds_while_nothing_presses() -> None:
    assert decided() == Decision(limits=RUN_FILE, max_ack_pending=9)


def test_pacing_of_the_run_file_goes_out_with_the_limits() -> None:
    paced = Limits(max_lag=4, batch_size=16, max_running=64, paced=True)
    limits = decide(paced, Pause(), resident_bytes=0.0, resident_bytes_high=1e9, group_size=8).limits
    assert limits.paced
    assert not decided().limits.paced


def test_pause_goes_out_with_its_reason_and_leaves_the_other_limits() -> None:
    limits = decided(pause=Pause(paused=True, reason="upgrade", by="ana")).limits
    assert (limits.paused, limits.reason) == (True, "paused by ana: upgrade")
    assert (limits.max_lag, limits.max_running) == (RUN_FILE.max_lag, RUN_FILE.max_running)
    assert decided(pause=Pause(paused=True)).limits.reason


def test_store_above_its_mark_shrinks_running_in_proportion_with_a_reason() -> None:
    limits = decided(resident_bytes=2e9).limits
    assert limits.max_running == 32
    assert "resident_bytes_high" in limits.reason
    assert decided(resident_bytes=1e9).limits == RUN_FILE


@given(
    max_running=st.integers(1, 40),
    batch=st.integers(1, 10),
    group_size=st.integers(1, 4),
    resident_bytes=st.floats(0, 1e15),
)
def test_pressure_never_goes_below_one_batch_nor_above_the_run_file_nor_splits_a_group(
    max_running: int, batch: int, group_size: int, resident_bytes: float
) -> None:
    run_file = Limits(max_lag=1, batch_size=batch * group_size, max_running=max_running * group_size)
    decision = decide(
        run_file, Pause(), resident_bytes=resident_bytes, resident_bytes_high=1e9, group_size=group_size
    )
    limits = decision.limits
    assert min(run_file.batch_size, run_file.max_running) <= limits.max_running <= run_file.max_running
    assert limits.max_running % group_size == 0
    assert not limits.paused
    assert decision.max_ack_pending == limits.max_running // group_size + 1


def report(instance: str, at_s: float, *, state: str = "ready", **values: float) -> ServiceStats:
    return ServiceStats(instance.split("-")[0], instance, state, at_s, 0.0, values)


def test_ranks_of_one_learner_count_as_learners() -> None:
    seen = Observations(window_s=10.0)
    seen.put(report("learner", 1.0, replicas=3.0), now_s=1.0)
    signals = signals_of(seen, RUN_FILE, StreamBacklog(), group_size=8, now_s=1.0)
    assert signals.num_learners == 3


def loop_at_work(*, seconds: int = 10) -> Observations:
    """Ten seconds of a loop whose actors work all the time and whose learner waits half of it."""
    seen = Observations(window_s=10.0)
    for tick in range(2 * seconds + 1):
        now_s = 0.5 * tick
        for instance in ("actor-0", "actor-1"):
            seen.put(
                report(
                    instance,
                    now_s,
                    steps_total=1000.0 * now_s,
                    busy_s_total=0.96 * now_s,
                    wait_task_s_total=0.02 * now_s,
                    serving_step=10.0 if instance == "actor-0" else 8.0,
                    weight_pull_ms=4.0,
                ),
                now_s=now_s,
            )
        seen.put(
            report(
                "learner",
                now_s,
                version_step=11.0,
                trained_trajectories_total=40.0 * now_s,
                busy_s_total=0.4 * now_s,
                wait_batch_s_total=0.5 * now_s,
                publish_s_total=0.06 * now_s,
                commit_s_total=0.04 * now_s,
                lag_mean=0.7,
            ),
            now_s=now_s,
        )
        seen.put(report("trajectory_store", now_s, available_trajectories=4.0 * (tick % 2)), now_s=now_s)
        seen.put(
            ServiceStats(
                "task_queue",
                "task_queue",
                "ready",
                now_s,
                0.0,
                {
                    "running_trajectories": 20.0,
                    "in_flight_trajectories": 30.0,
                    "unannounced_trajectories": 8.0,
                    "behind_versions": 3.0,
                },
                {"admission_state": "staleness budget filled"},
            ),
            now_s=now_s,
        )
    return seen


def test_window_of_a_run_becomes_the_signals_a_diagnosis_reads() -> None:
    backlog = mean_backlog([StreamBacklog(rollouts=1, trajectories=2), StreamBacklog()])
    signals = signals_of(loop_at_work(), RUN_FILE, backlog, group_size=8, now_s=10.0)
    assert (signals.num_actors, signals.num_learners, signals.num_stores, signals.num_environments) == (
        2,
        1,
        1,
        0,
    )
    assert signals.actor_steps_per_s == pytest.approx(2000.0)
    assert signals.actor_busy_ratio == pytest.approx(0.96)
    assert signals.actor_wait_task_ratio == pytest.approx(0.02)
    assert signals.learner_samples_per_s == pytest.approx(40.0)
    assert signals.learner_idle_ratio == pytest.approx(0.5)
    assert signals.learner_publish_ratio == pytest.approx(0.1)
    assert signals.available == pytest.approx(2.0, abs=0.1)
    assert (signals.unscored, signals.unstored) == (4.0, 8.0)
    assert (signals.running, signals.in_flight) == (pytest.approx(20.0), pytest.approx(30.0))
    assert signals.publish_lag == 3.0
    assert signals.admission_state == "staleness budget filled"
    assert diagnose(signals).bottleneck == "actor"


def test_statistics_of_a_saturated_inference_service_make_it_the_bottleneck_of_a_working_loop() -> None:
    seen = loop_at_work()
    for tick in range(21):
        now_s = 0.5 * tick
        for instance in ("actor-0", "actor-1"):
            seen.put(
                report(
                    instance,
                    now_s,
                    steps_total=1000.0 * now_s,
                    busy_s_total=0.96 * now_s,
                    inference_wait_s_total=0.8 * now_s,
                ),
                now_s=now_s,
            )
        # Its network is cheap; messages take its process' time.
        seen.put(
            report(
                "inference",
                now_s,
                busy_s_total=0.3 * now_s,
                cpu_s_total=0.92 * now_s,
                inference_waited_s_total=1.2 * now_s,
            ),
            now_s=now_s,
        )
    signals = signals_of(seen, RUN_FILE, StreamBacklog(), group_size=8, now_s=10.0)
    assert signals.num_inferences == 1
    assert signals.actor_wait_inference_ratio == pytest.approx(0.8, abs=0.05)
    assert signals.inference_busy_ratio == pytest.approx(0.92, abs=0.01)
    assert signals.inference_waiting == pytest.approx(1.2, abs=0.01)
    assert diagnose(signals).bottleneck == "inference"


def test_gpus_of_services_become_signals() -> None:
    seen = Observations(window_s=10.0)
    for tick in range(21):
        now_s = 0.5 * tick
        seen.put(report("learner", now_s, gpus=2.0, gpu_busy_s_total=0.3 * now_s, mfu=0.2), now_s=now_s)
        for instance in ("actor-0", "actor-1"):
            seen.put(report(instance, now_s, gpus=1.0, gpu_busy_s_total=0.9 * now_s), now_s=now_s)
    signals = signals_of(seen, RUN_FILE, StreamBacklog(), group_size=1, now_s=10.0)
    assert (signals.learner_gpus, signals.actor_gpus) == (2, 2)
    assert signals.learner_gpu_busy_ratio == pytest.approx(0.3, abs=0.01)
    assert signals.actor_gpu_busy_ratio == pytest.approx(0.9, abs=0.01)
    assert signals.learner_mfu == 0.2


def test_pause_explains_itself_in_the_signals() -> None:
    limits = decided(pause=Pause(paused=True, reason="upgrade", by="ana")).limits
    signals = signals_of(loop_at_work(), limits, StreamBacklog(), group_size=1, now_s=10.0)
    assert diagnose(signals).bottleneck == "idle"
    assert signals.admission_state == "paused by ana: upgrade"


def test_services_that_fell_silent_are_missing_from_the_signals() -> None:
    signals = signals_of(loop_at_work(), RUN_FILE, StreamBacklog(), group_size=1, now_s=20.0)
    assert (signals.num_actors, signals.num_learners) == (0, 0)
    assert flow_of(loop_at_work(), now_s=20.0) == Flow(running=0, in_flight=0)
    assert flow_of(loop_at_work(), now_s=10.0) == Flow(running=20, in_flight=30, unannounced=8, behind=3)


def test_empty_observations_give_signals_and_an_answer() -> None:
    signals = signals_of(Observations(window_s=10.0), RUN_FILE, StreamBacklog(), group_size=1, now_s=0.0)
    assert diagnose(signals).bottleneck == "learner"


def test_a_controller_may_narrow_the_budget_and_hold_admission_but_widen_nothing() -> None:
    def held(budget: int, hold: str = "", pause: Pause = NO_PAUSE) -> Limits:
        return decide(
            RUN_FILE,
            pause,
            resident_bytes=0.0,
            resident_bytes_high=1e9,
            group_size=8,
            budget=budget,
            hold=hold,
        ).limits

    assert held(2).max_lag == 2
    assert held(40).max_lag == RUN_FILE.max_lag
    assert held(-3).max_lag == 0
    assert (held(4, "hard sync").paused, held(4, "hard sync").reason) == (True, "hard sync")
    assert (
        held(4, "hard sync", Pause(paused=True, reason="upgrade")).reason == "paused by an operator: upgrade"
    )
