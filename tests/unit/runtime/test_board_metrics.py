from tidegate.catalogue.services import DECLARED, INSTRUMENTS, families_of, statistics_of
from tidegate.runtime.board_metrics import readings
from tidegate.wire.stats import ServiceStats


def stats(service: str, values: dict[str, float], labels: dict[str, str] | None = None) -> ServiceStats:
    return ServiceStats(service, service, "ready", 0.0, 0.0, values, labels or {})


def test_each_member_of_a_family_is_a_label_and_the_sum_of_them_is_left_out() -> None:
    found = list(
        readings(
            stats(
                "trajectory_store",
                {"dropped_total": 3, "dropped_stale_total": 1, "dropped_expired_total": 2},
            )
        )
    )
    dropped = {
        reading.labels["tidegate.drop.reason"]: reading.value
        for reading in found
        if reading.metric == "tidegate.trajectory.dropped"
    }
    assert dropped == {"stale": 1, "expired": 2}


def test_one_of_the_enumerated_is_one_and_the_others_are_zero() -> None:
    found = [
        reading
        for reading in readings(stats("admission", {}, {"bottleneck": "learner", "scaling_mode": "observe"}))
        if reading.value == 1.0
    ]
    assert sorted((reading.metric, list(reading.labels.values())) for reading in found) == [
        ("tidegate.admission.mode", ["observe"]),
        ("tidegate.bottleneck", ["learner"]),
    ]


def test_a_service_that_was_told_to_stop_says_so() -> None:
    for state, value in (("ready", 0.0), ("draining", 1.0)):
        board = ServiceStats("admission", "admission", state, 0.0, 0.0)
        assert [each.value for each in readings(board) if each.metric == "tidegate.service.draining"] == [
            value
        ]


def test_what_an_engine_did_with_its_server_is_told_by_how_it_ended() -> None:
    board = {
        "server_updates_total": 7.0,
        "server_updates_refused_total": 1.0,
        "server_requests_kept_total": 60.0,
        "server_streams_cut_total": 9.0,
        "server_losses_total": 2.0,
        "server_pause_ms": 300.0,
        "server_update_ms": 200.0,
        "server_probe_error": 0.07,
    }
    found = {
        (reading.metric.removeprefix("tidegate.inference_server."), *reading.labels.values()): reading.value
        for reading in readings(stats("actor", board))
        if reading.metric.startswith("tidegate.inference_server.")
    }
    assert found == {
        ("updates", "taken"): 7.0,
        ("updates", "refused"): 1.0,
        ("requests", "kept"): 60.0,
        ("requests", "cut"): 9.0,
        ("losses",): 2.0,
        ("pause",): 0.3,
        ("load",): 0.2,
        ("probe_error",): 0.07,
    }


def test_what_became_of_unfinished_rollouts_is_told_in_tokens_and_in_tasks() -> None:
    board = {
        "tokens_written_total": 900.0,
        "tokens_resumed_total": 70.0,
        "tokens_lost_total": 6.0,
        "tokens_released_total": 5.0,
        "tokens_dropped_total": 4.0,
        "rollouts_resumed_total": 3.0,
        "rollouts_restarted_total": 2.0,
        "progress_unread_total": 1.0,
        "progress_refused_total": 8.0,
        "progress_bytes_total": 4096.0,
    }
    found = {
        (reading.metric.removeprefix("tidegate.rollout."), *reading.labels.values()): reading.value
        for reading in readings(stats("actor", board))
        if reading.metric.startswith("tidegate.rollout.")
    }
    assert found == {
        ("tokens", "written"): 900.0,
        ("tokens", "resumed"): 70.0,
        ("tokens", "lost"): 6.0,
        ("tokens", "released"): 5.0,
        ("tokens", "dropped"): 4.0,
        ("resumptions", "resumed"): 3.0,
        ("resumptions", "restarted"): 2.0,
        ("resumptions", "unread"): 1.0,
        ("resumptions", "refused"): 8.0,
        ("progress.size",): 4096.0,
    }


def test_units_are_those_of_the_catalogue() -> None:
    found = {
        reading.metric: reading.value
        for reading in readings(stats("actor", {"rss_mb": 2, "swap_ms_total": 500}))
    }
    assert found["process.memory.usage"] == 2e6
    assert found["tidegate.worker.time"] == 0.5


def test_what_must_be_seen_to_grow_begins_at_zero() -> None:
    found = {reading.metric for reading in readings(stats("actor", {}))}
    assert {"tidegate.delivery.redelivered", "tidegate.stage.errors"} <= found


def test_every_metric_that_a_board_is_shown_as_is_in_the_catalogue() -> None:
    values = {"rss_mb": 1.0}
    for service in DECLARED:
        names = {str(each): 1.0 for each in statistics_of(service)}
        names |= {str(family.member("x")): 1.0 for family in families_of(service)}
        for reading in readings(stats(service, {**values, **names})):
            assert reading.metric in INSTRUMENTS
