"""One test a signature: numbers of a window of a real run, and the expected bottleneck."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.core.balance import Bottleneck, Diagnosis, Signals, diagnose
from tidegate.core.fixes import advise
from tidegate.core.workloads import Workloads

# Two actors that keep a learner just busy: balanced.
HEALTHY = Signals(
    num_actors=2,
    num_environments=1,
    num_learners=1,
    num_stores=1,
    actor_steps_per_s=20_000.0,
    actor_busy_ratio=0.93,
    actor_wait_task_ratio=0.04,
    actor_wait_policy_ratio=0.01,
    actor_wait_publish_ratio=0.02,
    environment_busy_ratio=0.2,
    learner_samples_per_s=40.0,
    learner_busy_ratio=0.9,
    learner_idle_ratio=0.05,
    learner_publish_ratio=0.05,
    available=6.0,
    running=30.0,
    in_flight=44.0,
    batch_size=8,
    max_running=64,
    max_lag=4,
    lag_mean=2.1,
)


def window(**changes: float | str) -> Signals:
    return msgspec.structs.replace(HEALTHY, **changes)


def found(**changes: float | str) -> Diagnosis:
    return diagnose(window(**changes))


def test_busy_learner_and_busy_actors_are_balanced() -> None:
    diagnosis = diagnose(HEALTHY)
    assert diagnosis.bottleneck == "balanced"
    assert "lag 2.1 of 4" in diagnosis.sentence


def test_empty_queue_idle_learner_and_busy_actors_are_actor_bound() -> None:
    diagnosis = found(learner_idle_ratio=0.5, available=0.5, lag_mean=0.6)
    assert diagnosis.bottleneck == "actor"
    assert "waits 50% of its time" in diagnosis.sentence
    assert "20,000 steps/s" in diagnosis.sentence
    assert "actor.replicas=3" in diagnosis.fix
    assert "+50%" in diagnosis.fix, "three actors instead of two; the learner could take twice as much"


def test_gain_of_an_actor_ends_where_the_learner_has_no_time_left() -> None:
    assert "+25%" in found(learner_idle_ratio=0.2, num_actors=2).fix


@pytest.mark.parametrize(
    "changes",
    [{"available": 17.0, "lag_mean": 3.8}, {"actor_wait_task_ratio": 0.4}],
    ids=["full queue", "idle actors"],
)
def test_pegged_learner_with_work_waiting_is_learner_bound(changes: dict[str, float]) -> None:
    diagnosis = found(**changes)
    assert diagnosis.bottleneck == "learner"
    assert "learner" in diagnosis.fix


def test_rollouts_that_pile_up_before_the_verifiers_are_environment_bound() -> None:
    diagnosis = found(
        learner_idle_ratio=0.4, unscored=30.0, environment_busy_ratio=1.0, actor_wait_task_ratio=0.5
    )
    assert diagnosis.bottleneck == "environment"
    assert "30 of 44" in diagnosis.sentence
    assert "environment.replicas=2" in diagnosis.fix


@pytest.mark.parametrize(
    "changes",
    [
        {"unstored": 30.0},
        {"actor_wait_publish_ratio": 0.3},
        {"available": 16.0},
    ],
    ids=["unstored", "blocked", "slow leases"],
)
def test_finished_work_that_does_not_reach_an_idle_learner_is_store_bound(changes: dict[str, float]) -> None:
    assert found(learner_idle_ratio=0.3, **changes).bottleneck == "store"


def test_actors_that_wait_for_policies_are_weights_bound() -> None:
    diagnosis = found(
        learner_idle_ratio=0.3, actor_wait_policy_ratio=0.35, weight_pull_ms=420.0, publish_lag=3.0
    )
    assert diagnosis.bottleneck == "weights"
    assert "420 ms a pull, up to 3 versions behind" in diagnosis.sentence


def test_learner_that_spends_its_time_publishing_is_weights_bound() -> None:
    diagnosis = found(learner_publish_ratio=0.4, learner_busy_ratio=0.55)
    assert diagnosis.bottleneck == "weights"
    assert "40% of it" in diagnosis.sentence


def test_publishing_that_overlaps_the_next_update_is_no_bottleneck() -> None:
    assert found(learner_publish_ratio=0.4, learner_busy_ratio=0.93).bottleneck == "balanced"


# A window of a run with central inference whose network is slow: actors hardly step between two answers.
CENTRAL: dict[str, float] = {
    "num_inferences": 1,
    "learner_idle_ratio": 0.5,
    "available": 0.5,
    "actor_wait_inference_ratio": 0.8,
    "inference_busy_ratio": 0.97,
    "inference_waiting": 1.4,
}


def test_busy_inference_service_that_actors_wait_for_is_the_bottleneck_and_not_the_actors() -> None:
    diagnosis = found(**CENTRAL)
    assert diagnosis.bottleneck == "inference"
    assert "actors wait 80% of theirs for the inference service: it is busy 97%" in diagnosis.sentence
    assert "1.4 requests wait" in diagnosis.sentence
    assert "inference.threads=2" in diagnosis.fix
    advice = advise(window(**CENTRAL))
    assert advice.best is not None
    assert advice.best.lever == "inference"
    assert advice.best.gain == pytest.approx(1 / 0.6 - 1), "half of 80% of the time is saved"
    assert "inference" in advice.why_not["actor"]


def test_replay_that_waits_for_the_steps_of_a_busy_inference_service_names_the_service() -> None:
    assert found(**CENTRAL, replay_learner_wait_ratio=0.5).bottleneck == "inference"


def test_inference_service_with_time_left_that_keeps_requests_waiting_is_to_batch_less() -> None:
    diagnosis = found(**CENTRAL | {"inference_busy_ratio": 0.3})
    assert diagnosis.bottleneck == "inference"
    assert "lower inference.batch_wait_ms" in diagnosis.fix


@pytest.mark.parametrize(
    "changes",
    [
        {"inference_busy_ratio": 0.5, "inference_waiting": 0.2},
        {"actor_wait_inference_ratio": 0.3},
    ],
    ids=["the service has time left", "actors work"],
)
def test_an_actor_is_bought_where_the_inference_service_has_time_for_it(changes: dict[str, float]) -> None:
    assert found(**CENTRAL | changes).bottleneck == "actor"


def test_inference_service_that_ended_is_named_while_actors_wait_for_it() -> None:
    diagnosis = found(**CENTRAL | {"num_inferences": 0})
    assert diagnosis.bottleneck == "inference"
    assert "logs/inference.log" in diagnosis.fix


def test_run_without_an_inference_service_is_told_nothing_about_one() -> None:
    assert "inference" in advise(window(learner_idle_ratio=0.5, available=0.5, num_inferences=1)).why_not
    assert "inference" not in advise(window(learner_idle_ratio=0.5, available=0.5)).why_not


def test_synchronous_loop_with_mutual_waits_reports_the_gain_of_overlap() -> None:
    diagnosis = found(
        max_lag=0, learner_idle_ratio=0.5, actor_wait_task_ratio=0.5, actor_busy_ratio=0.5, lag_mean=0.0
    )
    assert diagnosis.bottleneck == "balanced"
    assert "max_lag from 0 to 1" in diagnosis.fix
    assert "+100%" in diagnosis.fix


def test_synchronous_loop_that_mostly_waits_for_rollouts_needs_an_actor() -> None:
    """Hiding the learner's tenth brings a ninth; a second actor halves the other nine."""
    diagnosis = found(max_lag=0, num_actors=1, learner_idle_ratio=0.88, actor_wait_task_ratio=0.12)
    assert diagnosis.bottleneck == "actor"
    assert "+79%" in diagnosis.fix


def test_concurrency_bound_is_named_where_it_is_the_bottleneck() -> None:
    diagnosis = found(learner_idle_ratio=0.5, actor_wait_task_ratio=0.5, running=64.0)
    assert diagnosis.bottleneck == "balanced"
    assert "max_running from 64 to 128" in diagnosis.fix


@pytest.mark.parametrize(
    ("changes", "bottleneck", "sentence"),
    [
        ({"num_actors": 0}, "actor", "No actor"),
        ({"num_learners": 0}, "learner", "No learner"),
        ({"num_stores": 0}, "store", "does not report"),
        ({"paused": True, "admission_state": "maintenance"}, "idle", "maintenance"),
    ],
)
def test_missing_service_or_pause_is_reported_before_any_bottleneck(
    changes: dict[str, float | str], bottleneck: Bottleneck, sentence: str
) -> None:
    diagnosis = found(**changes)
    assert diagnosis.bottleneck == bottleneck
    assert sentence in diagnosis.sentence


def test_idle_system_reports_the_admission_state() -> None:
    diagnosis = diagnose(
        Signals(
            num_actors=1, num_learners=1, num_stores=1, admission_state="no policy yet: waits for the learner"
        )
    )
    assert diagnosis.bottleneck == "idle"
    assert "no policy yet" in diagnosis.sentence


ratios = st.floats(0.0, 1.0)
counts = st.floats(0.0, 1e6)


@pytest.mark.parametrize("reason", ["hard sync: waits for work in flight to end", "the run is ending"])
def test_a_pause_that_ends_by_itself_needs_no_fix(reason: str) -> None:
    assert found(paused=True, admission_state=reason).fix == ""
    assert "resume" in found(paused=True, admission_state="maintenance").fix


@given(
    st.builds(
        Signals,
        num_actors=st.integers(0, 9),
        num_environments=st.integers(0, 9),
        num_learners=st.integers(0, 2),
        num_stores=st.integers(0, 2),
        actor_steps_per_s=counts,
        actor_busy_ratio=ratios,
        actor_wait_task_ratio=ratios,
        actor_wait_policy_ratio=ratios,
        actor_wait_publish_ratio=ratios,
        actor_wait_inference_ratio=ratios,
        inference_busy_ratio=ratios,
        inference_waiting=counts,
        num_inferences=st.integers(0, 1),
        learner_samples_per_s=counts,
        learner_idle_ratio=ratios,
        learner_publish_ratio=ratios,
        available=counts,
        unscored=counts,
        unstored=counts,
        in_flight=counts,
        running=counts,
        batch_size=st.integers(1, 512),
        max_lag=st.integers(0, 64),
        paused=st.booleans(),
    )
)
def test_every_window_gets_a_diagnosis_and_learner_bound_only_with_a_busy_learner(signals: Signals) -> None:
    diagnosis = diagnose(signals)
    assert diagnosis.sentence.endswith(".")
    assert "nan" not in diagnosis.sentence + diagnosis.fix
    if diagnosis.bottleneck == "learner" and signals.num_learners:
        assert signals.learner_idle_ratio <= 0.1
    if diagnosis.bottleneck in ("actor", "environment") and signals.num_actors:
        assert signals.learner_idle_ratio > 0.1
    assert all(isinstance(value, float) for value in signals.numbers().values())


def test_learner_that_refuses_every_batch_is_the_bottleneck_with_its_reason() -> None:
    refused = "The learner refused its last 12 batches, the newest because: its rewards have another shape."
    found = diagnose(msgspec.structs.replace(HEALTHY, learner_idle_ratio=1.0, batches_refused=refused))
    assert found.bottleneck == "learner"
    assert found.sentence == f"{refused} Nothing is trained."
    assert found.lever is None
    assert "run file" in found.fix


def test_actor_whose_environment_does_not_return_is_named_before_the_idle_loop() -> None:
    hung = "actor-1: Copy 3 of 'My-v0' does not return from step: 12 s"
    stuck = msgspec.structs.replace(HEALTHY, learner_idle_ratio=0.6, stuck_actors=1, actor_problem=hung)
    diagnosis = diagnose(stuck)
    assert diagnosis.bottleneck == "actor"
    assert f"1 of {HEALTHY.num_actors} actors wait for an environment. {hung}." in diagnosis.sentence
    assert "workload.step_timeout_s" in diagnosis.fix
    assert advise(stuck).sentence.startswith("Correct the environment")
    # A learner that has enough from the others is diagnosed as ever.
    assert diagnose(msgspec.structs.replace(HEALTHY, stuck_actors=1)) == diagnose(HEALTHY)


def test_loop_without_actors_or_movement_reports_what_they_said_last() -> None:
    problem = "actor-0: Environment 'X' needs the package box2d"
    gone = msgspec.structs.replace(HEALTHY, num_actors=0, actor_problem=problem)
    still = Signals(num_actors=1, num_learners=1, num_stores=1, actor_problem=problem)
    assert problem in diagnose(gone).sentence
    assert problem in diagnose(still).sentence


def test_side_that_waits_at_the_replay_buffer_is_named_with_the_other_as_the_bottleneck() -> None:
    fast_actors = found(replay_actors_wait_ratio=0.6, actor_wait_task_ratio=0.6, learner_idle_ratio=0.02)
    assert fast_actors.bottleneck == "learner"
    assert "actors wait for the learner 60%" in fast_actors.sentence
    why = "the learner waits for actors: 8 of 1,000 units are there"
    fast_learner = found(replay_learner_wait_ratio=0.6, learner_idle_ratio=0.6, replay_wait=why)
    assert fast_learner.bottleneck == "actor"
    assert why in fast_learner.sentence
    assert "samples_per_insert" in fast_learner.fix


def test_sides_that_wait_for_each_other_in_turn_need_more_slack_and_nothing_to_buy() -> None:
    signals = window(
        replay_actors_wait_ratio=0.4,
        replay_learner_wait_ratio=0.4,
        actor_wait_task_ratio=0.6,
        learner_idle_ratio=0.5,
        # What waits before a store that replays waits for the pace, not for its disk.
        unstored=40.0,
    )
    assert diagnose(signals).bottleneck == "balanced"
    advice = advise(signals)
    assert advice.best is None
    assert "replay.slack" in advice.sentence


def test_wait_at_the_replay_buffer_that_costs_no_time_is_no_bottleneck() -> None:
    assert found(replay_learner_wait_ratio=0.5, replay_actors_wait_ratio=0.5) == diagnose(HEALTHY)


CLUSTER = Workloads(namespace="rl", release="t", scaled={"actor": "deployment/t-actor"})
NEEDS_AN_ACTOR: dict[str, float] = {"learner_idle_ratio": 0.5, "available": 0.5, "lag_mean": 0.6}
WAITS_FOR_INFERENCE: dict[str, float] = {
    "learner_idle_ratio": 0.5,
    "available": 0,
    "actor_wait_inference_ratio": 0.9,
}


@pytest.mark.parametrize(
    ("changes", "fix"),
    [
        (NEEDS_AN_ACTOR, "kubectl -n rl scale deployment/t-actor --replicas=3"),
        ({"num_actors": 0}, "kubectl -n rl scale deployment/t-actor --replicas=1"),
        (
            {"num_learners": 0},
            "kubectl -n rl describe pods -l app.kubernetes.io/instance=t,app.kubernetes.io/",
        ),
        ({"num_stores": 0}, "component=trajectory-store"),
        (WAITS_FOR_INFERENCE, "component=inference"),
        ({"actor_wait_task_ratio": 0.6}, "--set run.learner.threads=2"),
    ],
)
def test_fix_names_objects_of_the_release_in_a_cluster_and_nothing_of_a_laptop(
    changes: dict[str, float], fix: str
) -> None:
    there, here = diagnose(window(**changes), CLUSTER), diagnose(window(**changes))
    assert fix in there.fix
    assert "logs/" not in there.fix
    assert "--set actor" not in there.fix
    assert "kubectl" not in here.fix
    assert (there.bottleneck, there.sentence) == (here.bottleneck, here.sentence)
    assert "kubectl" not in advise(window(**changes)).sentence
    assert advise(window(**changes), workloads=CLUSTER).sentence != advise(window(**changes)).sentence


# -- GPUs --------------------------------------------------------------------------------------------------------------

LEARNER_BOUND = {"learner_idle_ratio": 0.02, "available": 40.0, "actor_wait_task_ratio": 0.3}


def test_learner_whose_gpus_mostly_wait_needs_larger_passes_and_no_faster_gpu() -> None:
    diagnosis = found(**LEARNER_BOUND, learner_gpus=2, learner_gpu_busy_ratio=0.31)
    assert diagnosis.lever == "learner"
    assert "learner.pass_tokens" in diagnosis.fix
    assert "run kernels 31% of the time" in diagnosis.fix


def test_learner_whose_gpus_are_busy_needs_more_of_them() -> None:
    diagnosis = found(**LEARNER_BOUND, learner_gpus=2, learner_gpu_busy_ratio=0.85, learner_mfu=0.34)
    assert "learner.ranks" in diagnosis.fix
    assert "85% of the time and reach 34% of their peak" in diagnosis.fix


def test_learner_without_a_gpu_may_get_one() -> None:
    assert "a GPU, or cores" in found(**LEARNER_BOUND).fix
