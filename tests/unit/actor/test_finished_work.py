"""The queue of finished work: bounded, in order, and closed without a wait."""

import asyncio

from tidegate.actor.finished_work import FinishedWork


async def test_items_come_in_their_order_and_the_end_after_the_last() -> None:
    queue = FinishedWork[int](capacity=3)
    for item in (1, 2, 3):
        await queue.put(item)
    queue.close()
    assert [await queue.take() for _ in range(5)] == [1, 2, 3, None, None]


async def test_writer_waits_for_a_place_and_every_item_arrives() -> None:
    queue = FinishedWork[int](capacity=1)
    writers = [asyncio.create_task(queue.put(item)) for item in range(4)]
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert [writer.done() for writer in writers] == [True, False, False, False]
    taken = [await queue.take() for _ in range(4)]
    await asyncio.gather(*writers)
    assert sorted(item for item in taken if item is not None) == [0, 1, 2, 3]


async def test_offer_is_refused_while_there_is_no_place() -> None:
    queue = FinishedWork[int](capacity=1)
    assert [queue.offer(1), queue.offer(2)] == [True, False]
    assert await queue.take() == 1
    assert queue.offer(3)
    assert await queue.take() == 3


async def test_readers_that_wait_end_when_it_is_closed() -> None:
    queue = FinishedWork[int](capacity=1)
    readers = [asyncio.create_task(queue.take()) for _ in range(3)]
    await asyncio.sleep(0)
    queue.close()
    assert await asyncio.gather(*readers) == [None, None, None]


async def test_readers_end_although_it_was_full_when_it_was_closed() -> None:
    """One takes the item, and the other, woken for nothing, must not wait for a mark that found no place."""
    queue = FinishedWork[int](capacity=1)
    readers = [asyncio.create_task(queue.take()) for _ in range(2)]
    await asyncio.sleep(0)
    await queue.put(1)
    queue.close()
    async with asyncio.timeout(10.0):
        assert sorted(await asyncio.gather(*readers), key=str) == [1, None]


async def test_full_queue_without_readers_is_closed_at_once_and_a_cancelled_writer_adds_nothing() -> None:
    queue = FinishedWork[int](capacity=1)
    await queue.put(1)
    writer = asyncio.create_task(queue.put(2))
    await asyncio.sleep(0)
    writer.cancel()
    await asyncio.gather(writer, return_exceptions=True)
    queue.close()
    assert [await queue.take(), await queue.take()] == [1, None]
