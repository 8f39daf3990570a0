"""The desk: bounded, and every task on it is answered."""

import asyncio
from typing import Any, cast

import msgspec

from tests.unit.actor.support import segment_task
from tidegate.actor.in_flight import Desk, Held
from tidegate.actor.invested_work import invested
from tidegate.runtime.consumer import Delivery


class Letter(msgspec.Struct, eq=False):
    """A delivery as far as the desk looks at it."""

    sequence: int


def held(sequence: int) -> Held:
    return Held(segment_task(f"task-{sequence}"), cast("Delivery", cast("Any", Letter(sequence))), 1.0)


def test_room_counts_what_waits_and_runs_but_not_what_is_being_published() -> None:
    desk = Desk(capacity=3, finished_max=1)
    tasks = [held(number) for number in range(3)]
    for task in tasks:
        desk.take(task)
    assert desk.room() == 0
    assert desk.start([0, 2]) == [tasks[0], tasks[2]]
    assert desk.waiting == [tasks[1]]
    assert desk.room() == 0
    desk.stop_running(tasks[0])
    assert desk.room() == 1
    desk.stop_running(tasks[2])
    assert desk.room() == 2
    assert len(desk.held()) == 3


def test_tasks_that_start_later_run_beside_those_that_run() -> None:
    desk = Desk(capacity=3, finished_max=1)
    first, second = held(1), held(2)
    desk.take(first)
    desk.take(second)
    assert desk.start([0]) == [first]
    assert desk.start([0]) == [second]
    assert desk.running == [first, second]
    assert desk.room() == 1


def test_task_that_is_offered_again_while_it_is_here_is_not_taken_twice() -> None:
    desk = Desk(capacity=3, finished_max=1)
    first = held(1)
    assert desk.take(first)
    assert not desk.take(held(1))
    desk.start([0])
    assert not desk.take(held(1))
    desk.stop_running(first)
    assert not desk.take(held(1)), "it is on its way out"
    assert (desk.room(), desk.waiting) == (3, [])
    desk.answered(first)
    assert desk.take(held(1)), "it was handed back"


def test_answered_task_is_held_no_longer_wherever_it_was() -> None:
    desk = Desk(capacity=2, finished_max=1)
    first, second = held(1), held(2)
    desk.take(first)
    desk.take(second)
    desk.answered(first)
    assert desk.held() == desk.waiting == [second]
    desk.answered(first)
    assert desk.room() == 1


async def test_bell_rings_for_a_task_and_room_for_one_that_left() -> None:
    desk = Desk(capacity=1, finished_max=1)
    task = held(1)
    desk.take(task)
    await desk.bell.wait()
    waiting = asyncio.create_task(desk.wait_for_room(timeout_s=60.0))
    await asyncio.sleep(0)
    assert not waiting.done()
    desk.start([0])
    desk.stop_running(task)
    await waiting
    await desk.wait_for_room(timeout_s=60.0)


def test_work_is_invested_in_what_was_started_until_it_is_answered() -> None:
    desk = Desk(capacity=3, finished_max=1)
    first, second, third = (held(number) for number in range(3))
    for task in (first, second, third):
        desk.take(task)
    assert invested(desk, now_s=5.0) == (0, 0.0)
    desk.start([0, 1])
    desk.stop_running(first)
    assert invested(desk, now_s=5.0) == (2, 8.0)
    desk.answered(first)
    assert invested(desk, now_s=5.0) == (1, 4.0)
    assert invested(desk, now_s=0.0) == (1, 0.0)
