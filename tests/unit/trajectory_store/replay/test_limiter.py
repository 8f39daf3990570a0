from tidegate.core.samples_per_insert import ReplayPace
from tidegate.trajectory_store.replay.limiter import Limiter

PACE = ReplayPace(samples_per_insert=2.0, min_fill=10, slack=40.0, batch_size=8)


def limiter(*, inserted: int, sampled: int, pace: ReplayPace = PACE) -> Limiter:
    made = Limiter(pace, insert_units=5)
    made.inserted, made.sampled = inserted, sampled
    return made


def test_as_many_trajectories_are_asked_for_as_fit_below_the_ratio() -> None:
    assert limiter(inserted=0, sampled=0).trajectories_allowed(drawable=100, most=64) == 6
    assert limiter(inserted=0, sampled=0).trajectories_allowed(drawable=100, most=4) == 4
    assert limiter(inserted=25, sampled=0).trajectories_allowed(drawable=100, most=64) == 1
    assert limiter(inserted=26, sampled=0).trajectories_allowed(drawable=100, most=64) == 0


def test_one_trajectory_is_asked_for_while_there_is_nothing_to_draw() -> None:
    assert limiter(inserted=1000, sampled=0).trajectories_allowed(drawable=0, most=64) == 1


def test_without_a_ratio_any_number_of_trajectories_is_asked_for() -> None:
    free = ReplayPace(samples_per_insert=0.0, min_fill=10, slack=0.0, batch_size=8)
    assert limiter(inserted=10**9, sampled=0, pace=free).trajectories_allowed(drawable=9, most=64) == 64


def test_says_who_waits_for_whom() -> None:
    idle = limiter(inserted=10, sampled=0)
    assert idle.may_sample(count=8, drawable=100)
    assert (idle.waiting, idle.sentence()) == ("", "")
    empty = limiter(inserted=9, sampled=0)
    assert not empty.may_sample(count=8, drawable=100)
    assert empty.waiting == "learner"
    assert empty.sentence() == "the learner waits for actors: 9 of 10 units are there that min_fill asks for"
    ahead = limiter(inserted=30, sampled=0)
    assert ahead.trajectories_allowed(drawable=100, most=1) == 0
    assert ahead.waiting == "actors"
    assert ahead.sentence().startswith(
        "actors wait for the learner: 0 samples were drawn of 30 inserted units"
    )
