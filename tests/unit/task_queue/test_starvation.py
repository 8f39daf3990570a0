import pytest

from tidegate.task_queue.starvation import FORGOTTEN_AFTER_S, ActorReports
from tidegate.wire.stats import ServiceStats


def report(actors: ActorReports, instance: str, *, now_s: float, waited_s: float = 0.0) -> None:
    stats = ServiceStats("actor", instance, "ready", now_s, 0.0, {"wait_task_s_total": waited_s})
    actors.receive(stats, now_s=now_s)


def test_actor_that_waited_between_two_reports_had_no_task_from_the_first_on() -> None:
    actors = ActorReports()
    report(actors, "actor-0", now_s=1.0)
    report(actors, "actor-0", now_s=2.0, waited_s=0.2)
    assert actors.starved_from_s == 0.0
    report(actors, "actor-0", now_s=3.0, waited_s=1.2)
    assert actors.starved_from_s == 2.0


def test_actors_that_ended_long_ago_give_their_places_to_new_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidegate.task_queue.starvation.ACTORS_MAX", 2)
    actors, later_s = ActorReports(), 2 * FORGOTTEN_AFTER_S
    for name in ("actor-a", "actor-b"):
        report(actors, name, now_s=0.0)
    for name in ("actor-c", "actor-d"):
        report(actors, name, now_s=1.0)
        report(actors, name, now_s=2.0, waited_s=1.0)
    assert actors.starved_from_s == 0.0, "there is no place for them"
    report(actors, "actor-e", now_s=later_s)
    report(actors, "actor-e", now_s=later_s + 1.0, waited_s=1.0)
    assert actors.starved_from_s == later_s
