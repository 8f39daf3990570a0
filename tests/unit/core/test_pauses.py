import pytest

from tidegate.core.admission import RUN_ENDS
from tidegate.core.pauses import (
    RESUME,
    Pause,
    declared_pause,
    explanation,
    request_pause,
    way_out,
    zero_sentence,
)

NIGHT = Pause(paused=True, reason="night", by="ana", since_s=1_795_000_000.0)
ZERO = zero_sentence(by="kubectl", since_s=1_795_000_000.0)
HARD_SYNC = "hard sync: waits for work in flight to end"
SUSPENDED = "the TrainingRun t is suspended (spec.suspend)"


def test_a_pause_says_since_when_by_whom_and_why() -> None:
    assert NIGHT.sentence() == "paused since 2026-11-18 11:06:40 UTC by ana: night"
    assert Pause(paused=True).sentence() == "paused by an operator"
    assert Pause().sentence() == ""


def test_a_pause_that_is_asked_for_again_has_lasted_since_the_first_time() -> None:
    again = request_pause(NIGHT, paused=True, reason="also the morning", by="bo", now_s=1_795_000_600.0)
    assert (again.since_s, again.reason, again.by) == (NIGHT.since_s, "also the morning", "bo")
    ended = request_pause(again, paused=False, reason="", by="bo", now_s=1_795_000_700.0)
    assert ended == Pause()
    assert request_pause(ended, paused=True, reason="", by="", now_s=5.0).since_s == 5.0


@pytest.mark.parametrize(
    ("pause", "others", "expected"),
    [
        (NIGHT, (SUSPENDED, ZERO), NIGHT.sentence()),
        (Pause(), (SUSPENDED, ZERO), SUSPENDED),
        (Pause(), ("", ZERO), ZERO),
        (Pause(), ("", ""), ""),
        (Pause(paused=True, reason=RUN_ENDS), ("", ""), ""),
    ],
)
def test_the_operators_pause_is_named_first_and_the_end_of_a_run_is_none(
    pause: Pause, others: tuple[str, ...], expected: str
) -> None:
    assert declared_pause(pause, others=others) == expected


@pytest.mark.parametrize(
    ("reason", "expected"),
    [
        (NIGHT.sentence(), RESUME),
        (SUSPENDED, "edit the TrainingRun's spec"),
        (ZERO, "scale the actors to 1 or more"),
        (HARD_SYNC, ""),
        (RUN_ENDS, ""),
    ],
)
def test_each_pause_names_what_ends_it(reason: str, expected: str) -> None:
    assert way_out(reason) == expected


def test_an_explanation_is_one_sentence_about_who_stopped_the_run() -> None:
    assert explanation(NIGHT.sentence()) == f"Admission is {NIGHT.sentence()}."
    assert explanation(SUSPENDED) == f"Admission is paused: {SUSPENDED}."
    assert explanation("") == "Admission is paused: no reason was given."
    assert (
        explanation(ZERO)
        == "The run is paused: 0 actors are asked for since 2026-11-18 11:06:40 UTC by kubectl."
    )
