from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from tidegate.admission.propagation import (
    SERVING_SHARE,
    Propagation,
    Publication,
    abandon,
    check_arrival,
    note,
    publication_of,
    seconds_waiting,
)
from tidegate.core.ids import LineageName, PolicyVersion
from tidegate.wire.stats import ServiceStats


def version(step: int, lineage: str = "0-a") -> PolicyVersion:
    return PolicyVersion(LineageName(lineage), step)


def published(step: int, at_s: float, lineage: str = "0-a") -> Publication:
    return Publication(version(step, lineage), at_s)


def following(step: int, *, since_s: float = 10.0) -> Propagation:
    return note(note(Propagation(), published(step - 1, 0.0)), published(step, since_s))


@given(
    steps=st.lists(st.integers(3, 8), min_size=1, max_size=200),
)
def test_version_has_arrived_once_95_of_100_actors_serve_it_or_a_later_one(steps: list[int]) -> None:
    state = following(5)
    serving = Counter(version(step) for step in steps)
    after, took_s = check_arrival(state, serving, num_actors=len(steps), now_s=11.5)
    share = sum(step >= 5 for step in steps) / len(steps)
    assert (took_s is not None) == (share >= SERVING_SHARE)
    assert took_s in (None, 1.5)
    assert (after.followed is None) == (took_s is not None)


def test_actors_that_serve_nothing_yet_are_actors() -> None:
    _, took_s = check_arrival(following(5), {version(5): 9}, num_actors=10, now_s=11.0)
    assert took_s is None


def test_zero_actors_are_a_pause_and_not_an_arrival() -> None:
    state, took_s = check_arrival(following(5), {}, num_actors=0, now_s=99.0)
    assert took_s is None
    assert seconds_waiting(state, now_s=99.0) == 89.0


def test_in_a_declared_pause_no_version_is_overdue_and_the_next_publication_is_followed() -> None:
    state = abandon(following(7))
    assert seconds_waiting(state, now_s=1e6) is None
    assert note(state, published(7, 10.0)).followed is None, "known already"
    state = note(state, published(8, 500.0))
    assert seconds_waiting(state, now_s=502.0) == 2.0


def test_one_version_is_followed_at_a_time_and_the_newest_after_it() -> None:
    state = note(following(5), published(6, 11.0))
    assert state.followed == published(5, 10.0)
    state, took_s = check_arrival(state, {version(5): 1}, num_actors=1, now_s=12.0)
    assert took_s == 2.0
    assert seconds_waiting(state, now_s=12.0) is None
    # Said again, the version before is no news.
    assert note(state, published(6, 11.0)).followed is None
    assert note(state, published(7, 13.0)).followed == published(7, 13.0)


def test_first_word_of_a_learner_may_be_about_the_past_and_is_not_followed() -> None:
    assert note(Propagation(), published(7, 3.0)).followed is None


def test_restored_learner_publishes_on_another_branch_and_the_old_one_is_given_up() -> None:
    state = note(following(50), published(41, 20.0, "1-b"))
    assert state.followed == published(41, 20.0, "1-b")
    # Who still serves the dead branch is ahead by number and not there by version.
    assert check_arrival(state, {version(49): 10}, num_actors=10, now_s=21.0)[1] is None
    assert check_arrival(state, {version(41, "1-b"): 10}, num_actors=10, now_s=21.0)[1] == 1.0


def test_publication_is_dated_by_the_learners_own_clock() -> None:
    """The learner says: 0.4 s ago. Its wall clock may be anywhere."""
    stats = ServiceStats(
        "learner", "learner", "ready", 1e9 + 0.4, 0.0, {"published_at_s": 1e9}, {"published_version": "0-a@7"}
    )
    found = publication_of(stats, received_at_s=50.0)
    assert found is not None
    assert found.version == version(7)
    assert abs(found.at_s - 49.6) < 1e-6


def test_learner_without_a_publication_reports_none() -> None:
    for labels, values in (({}, {"published_at_s": 1.0}), ({"published_version": "0-a@7"}, {})):
        stats = ServiceStats("learner", "learner", "ready", 1.0, 0.0, values, labels)
        assert publication_of(stats, received_at_s=1.0) is None
    odd = ServiceStats(
        "learner", "learner", "ready", 1.0, 0.0, {"published_at_s": 1.0}, {"published_version": "0-a@x"}
    )
    assert publication_of(odd, received_at_s=1.0) is None
