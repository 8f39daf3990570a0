"""Token accounting: each written token is published, dropped, released or held."""

import asyncio

import pytest

from tests.unit.actor.episodes_harness import Echo, Harness, Notes, task_of
from tidegate.actor.engines.port import Rollouts
from tidegate.actor.rollouts.outcomes import DroppedTask
from tidegate.catalogue import actor as statistics
from tidegate.core.errors import NotFoundError


async def test_tokens_of_finished_groups_are_published_and_counted_once() -> None:
    harness = Harness()
    made = await harness.run(task_of())
    assert isinstance(made, Rollouts)
    assert harness.value(statistics.TOKENS_WRITTEN) == sum(sample.num_steps for sample in made.samples) > 0
    assert harness.value(statistics.TOKENS_RELEASED) == harness.value(statistics.TOKENS_DROPPED) == 0


async def test_tokens_are_on_the_board_while_they_are_written() -> None:
    harness = Harness(stop_share=0.0)
    running = await harness.run_until(task_of(), 13)
    accounting = asyncio.create_task(harness.runner.account())
    async with asyncio.timeout(60.0):
        while harness.value(statistics.TOKENS_WRITTEN) < 3 * 13:
            await asyncio.sleep(0.001)
    assert not running.done()
    assert harness.value(statistics.TOKENS_WRITTEN) == 3 * 13
    harness.drain.request()
    harness.runner.stop()
    await asyncio.gather(running, accounting)


@pytest.mark.parametrize("num_tokens", [1, 40])
async def test_released_tokens_are_resumed_and_not_generated_again(num_tokens: int) -> None:
    notes, task = Notes(), task_of()
    first = Harness(notes=notes, stop_share=0.0)
    running = await first.run_until(task, num_tokens)
    first.runner.stop()
    assert await running is None
    assert first.value(statistics.TOKENS_RELEASED) == first.value(statistics.TOKENS_WRITTEN) == 3 * num_tokens
    second = Harness(notes=notes, stop_share=0.0)
    made = await second.run(task)
    assert isinstance(made, Rollouts)
    assert second.value(statistics.TOKENS_RESUMED) == 3 * num_tokens
    published = sum(sample.num_steps for sample in made.samples)
    assert published == second.value(statistics.TOKENS_WRITTEN) + second.value(statistics.TOKENS_RESUMED)


async def test_replies_are_not_counted_as_tokens_of_the_policy_after_a_resume() -> None:
    notes, task = Notes(), task_of(num_samples=2, max_new_tokens=400)
    workers = [Echo(num_turns=4)]
    first = Harness(notes=notes, workers=workers, turns_max=9, num_samples=2, token_s=0.001)
    running = asyncio.create_task(first.run(task))
    while len(workers[0].steps) < 5:
        await asyncio.sleep(0.001)
    first.runner.stop()
    assert await running is None
    second = Harness(notes=notes, workers=workers, turns_max=9, num_samples=2)
    made = await second.run(task)
    assert isinstance(made, Rollouts)
    assert any("chosen" in sample.tensors for sample in made.samples)
    published = sum(sample.num_steps for sample in made.samples)
    assert second.value(statistics.TOKENS_RESUMED) == first.value(statistics.TOKENS_RELEASED) > 0
    assert published == second.value(statistics.TOKENS_WRITTEN) + second.value(statistics.TOKENS_RESUMED)


async def test_tokens_of_an_episode_that_cannot_end_are_dropped() -> None:
    worker = Echo()

    async def moody_step(session_id: str, *, action: str):  # type: ignore[no-untyped-def]  # as the one it replaces
        if len(worker.steps) == 1 and worker.voice == "you said ":
            worker.voice = "you mumbled "
            raise NotFoundError("gone")
        return await Echo.step(worker, session_id, action=action)

    worker.step = moody_step  # type: ignore[method-assign]  # this one worker only
    harness = Harness(workers=[worker], turns_max=5, num_samples=1)
    assert isinstance(await harness.run(task_of(num_samples=1)), DroppedTask)
    assert harness.value(statistics.TOKENS_DROPPED) == harness.value(statistics.TOKENS_WRITTEN) > 0
