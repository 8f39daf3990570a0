"""Tasks in flight: bounded, and every one is answered."""

import asyncio
from typing import Any, cast

import msgspec

from tests.unit.actor.support import segment_task
from tidegate.actor.in_flight import InFlightTasks, LeasedTask
from tidegate.actor.invested_work import invested
from tidegate.runtime.consumer import Delivery


class Letter(msgspec.Struct, eq=False):
    """The fields of a delivery that the actor reads."""

    sequence: int


def leased(sequence: int) -> LeasedTask:
    return LeasedTask(segment_task(f"task-{sequence}"), cast("Delivery", cast("Any", Letter(sequence))), 1.0)


def test_room_counts_what_waits_and_runs_but_not_what_is_being_published() -> None:
    in_flight = InFlightTasks(capacity=3, finished_max=1)
    tasks = [leased(number) for number in range(3)]
    for task in tasks:
        in_flight.take(task)
    assert in_flight.room() == 0
    assert in_flight.start([0, 2]) == [tasks[0], tasks[2]]
    assert in_flight.waiting == [tasks[1]]
    assert in_flight.room() == 0
    in_flight.stop_running(tasks[0])
    assert in_flight.room() == 1
    in_flight.stop_running(tasks[2])
    assert in_flight.room() == 2
    assert len(in_flight.unanswered()) == 3


def test_tasks_that_start_later_run_beside_those_that_run() -> None:
    in_flight = InFlightTasks(capacity=3, finished_max=1)
    first, second = leased(1), leased(2)
    in_flight.take(first)
    in_flight.take(second)
    assert in_flight.start([0]) == [first]
    assert in_flight.start([0]) == [second]
    assert in_flight.running == [first, second]
    assert in_flight.room() == 1


def test_redelivered_task_in_flight_is_not_taken_twice() -> None:
    in_flight = InFlightTasks(capacity=3, finished_max=1)
    first = leased(1)
    assert in_flight.take(first)
    assert not in_flight.take(leased(1))
    in_flight.start([0])
    assert not in_flight.take(leased(1))
    in_flight.stop_running(first)
    assert not in_flight.take(leased(1)), "it is on its way out"
    assert (in_flight.room(), in_flight.waiting) == (3, [])
    in_flight.answered(first)
    assert in_flight.take(leased(1)), "it was released"


def test_second_message_of_a_task_in_flight_is_not_taken() -> None:
    in_flight = InFlightTasks(capacity=3, finished_max=1)
    first = leased(1)
    again = LeasedTask(first.task, cast("Delivery", cast("Any", Letter(2))), 1.0)
    assert in_flight.take(first)
    assert not in_flight.take(again)
    assert (in_flight.holds(leased(1)), in_flight.holds(again)) == (True, False)
    assert in_flight.unanswered() == in_flight.waiting == [first]
    in_flight.answered(first)
    assert in_flight.take(again)


def test_answered_task_is_held_no_longer_wherever_it_was() -> None:
    in_flight = InFlightTasks(capacity=2, finished_max=1)
    first, second = leased(1), leased(2)
    in_flight.take(first)
    in_flight.take(second)
    in_flight.answered(first)
    assert in_flight.unanswered() == in_flight.waiting == [second]
    in_flight.answered(first)
    assert in_flight.room() == 1


async def test_wakeup_is_set_for_a_task_and_room_for_a_started_one() -> None:
    in_flight = InFlightTasks(capacity=1, finished_max=1)
    task = leased(1)
    in_flight.take(task)
    await in_flight.wakeup.wait()
    waiting = asyncio.create_task(in_flight.wait_for_room(timeout_s=60.0))
    await asyncio.sleep(0)
    assert not waiting.done()
    in_flight.start([0])
    in_flight.stop_running(task)
    await waiting
    await in_flight.wait_for_room(timeout_s=60.0)


def test_work_is_invested_in_what_was_started_until_it_is_answered() -> None:
    in_flight = InFlightTasks(capacity=3, finished_max=1)
    first, second, third = (leased(number) for number in range(3))
    for task in (first, second, third):
        in_flight.take(task)
    assert invested(in_flight, now_s=5.0) == (0, 0.0)
    in_flight.start([0, 1])
    in_flight.stop_running(first)
    assert invested(in_flight, now_s=5.0) == (2, 8.0)
    in_flight.answered(first)
    assert invested(in_flight, now_s=5.0) == (1, 4.0)
    assert invested(in_flight, now_s=0.0) == (1, 0.0)
