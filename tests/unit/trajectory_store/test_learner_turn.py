import random

import pytest

from tidegate.core.ids import LineageName, PolicyVersion
from tidegate.trajectory_store.learner_turn import COUNTED_S_MAX, SILENT_S, LearnerTurn, is_behind


def waits(turn: LearnerTurn, instance: str, *, now_s: float, behind: bool = False) -> bool:
    return turn.keep(instance, works=False, is_behind=behind, now_s=now_s)


def works(turn: LearnerTurn, instance: str, *, now_s: float) -> bool:
    return turn.keep(instance, works=True, is_behind=False, now_s=now_s)


def test_the_first_of_a_new_run_works_at_once_and_the_others_wait() -> None:
    turn = LearnerTurn(begun=False)
    assert waits(turn, "a", now_s=0.0)
    assert not waits(turn, "b", now_s=0.0)
    assert works(turn, "a", now_s=1.0)


def test_one_that_is_heard_of_keeps_its_turn() -> None:
    turn = LearnerTurn(begun=False)
    assert waits(turn, "a", now_s=0.0)
    for second in range(1, 100):
        assert works(turn, "a", now_s=float(second))
        assert not waits(turn, "b", now_s=second + 0.5)


def test_one_that_is_silent_is_followed_and_hears_of_it() -> None:
    turn = LearnerTurn(begun=False)
    assert waits(turn, "a", now_s=0.0)
    asked = [waits(turn, "b", now_s=float(second)) for second in range(1, 8)]
    assert asked.index(True) + 1 == SILENT_S
    assert not works(turn, "a", now_s=8.0)
    assert works(turn, "b", now_s=8.0)


def test_one_that_ends_is_followed_at_once() -> None:
    turn = LearnerTurn(begun=False)
    assert waits(turn, "a", now_s=0.0)
    turn.end("b")
    assert not waits(turn, "b", now_s=0.1), "only the one that works can end its turn"
    turn.end("a")
    assert waits(turn, "b", now_s=0.2)


def test_one_that_starts_again_in_its_place_goes_on() -> None:
    turn = LearnerTurn(begun=False)
    assert waits(turn, "a", now_s=0.0)
    assert not waits(turn, "b", now_s=1.0)
    assert waits(turn, "a", now_s=2.0, behind=True), "it is the one that has the updates"


def test_a_store_that_starts_again_waits_for_the_one_that_worked() -> None:
    turn = LearnerTurn(begun=True)
    assert not waits(turn, "b", now_s=0.0)
    assert works(turn, "a", now_s=1.0)
    assert not any(waits(turn, "b", now_s=1.0 + second) for second in range(1, 5))


def test_a_store_that_stood_still_considers_no_instance_silent() -> None:
    turn = LearnerTurn(begun=False)
    assert waits(turn, "a", now_s=0.0)
    assert COUNTED_S_MAX < SILENT_S
    assert not waits(turn, "b", now_s=3600.0)
    assert works(turn, "a", now_s=3600.1)


def test_one_that_would_lose_updates_waits_for_ever() -> None:
    turn = LearnerTurn(begun=False)
    assert waits(turn, "a", now_s=0.0)
    assert not any(waits(turn, "b", now_s=float(second), behind=True) for second in range(1, 100))
    assert waits(turn, "c", now_s=100.0)


@pytest.mark.parametrize("seed", range(20))
def test_another_gets_the_turn_only_after_an_end_or_a_silence_and_the_one_before_hears_of_it(
    seed: int,
) -> None:
    rng = random.Random(seed)
    turn, now_s = LearnerTurn(begun=rng.random() < 0.5), 0.0
    heard_at_s: dict[
        str, float
    ] = {}  # of those that were told that it is their turn, and not yet that it is not
    num_turns = 0
    for _ in range(2000):
        now_s += rng.choice([0.01, 0.5, 1.0, 4.0])
        instance = rng.choice("abc")
        has_worked = instance in heard_at_s
        if rng.random() < 0.05:
            turn.end(instance)
            heard_at_s.pop(instance, None)
        elif turn.keep(instance, works=has_worked, is_behind=rng.random() < 0.2, now_s=now_s):
            num_turns += not has_worked
            replaced = [at_s for other, at_s in heard_at_s.items() if other != instance]
            assert not replaced or now_s - max(replaced) >= SILENT_S
            heard_at_s[instance] = now_s
        elif has_worked:
            assert len(heard_at_s) > 1, "it was replaced by another one"
            del heard_at_s[instance]
    assert num_turns > 10


def version(step: int) -> PolicyVersion:
    return PolicyVersion(LineageName("0-a"), step)


@pytest.mark.parametrize(
    ("checkpoint", "needed", "on_branch", "behind"),
    [
        (None, None, True, False),
        (None, version(0), True, False),
        (None, version(1), True, True),
        (version(5), None, True, False),
        (version(5), version(5), True, False),
        (version(4), version(5), True, True),
        (version(9), version(5), False, True),
    ],
)
def test_learner_is_behind_when_payloads_since_its_checkpoint_may_be_gone(
    checkpoint: PolicyVersion | None, needed: PolicyVersion | None, on_branch: bool, behind: bool
) -> None:
    assert is_behind(checkpoint, needed=needed, is_on_branch=on_branch) == behind
