"""What the store's calls may ask for."""

import math
from collections.abc import Callable

import pytest

from tidegate.core.errors import RecordError
from tidegate.core.ids import LineageName, PolicyVersion
from tidegate.v1 import policy_pb2
from tidegate.v1 import trajectory_store_service_pb2 as pb
from tidegate.wire.bounds import IDS_MAX, LINEAGES_MAX
from tidegate.wire.store_requests import (
    HELD_MAX,
    STEPS_AHEAD_MAX,
    check_checkpointed,
    check_commit,
    check_dropped,
    check_next_batch,
    check_opening,
    check_watch,
)

HEAD = PolicyVersion(LineageName("0-aaaa"), 7)


def at(step: int, lineage: str = "0-aaaa") -> policy_pb2.PolicyVersion:
    return policy_pb2.PolicyVersion(lineage=lineage, step=step)


def lease(**changes: object) -> pb.LeaseBatchRequest:
    request = pb.LeaseBatchRequest(
        version=at(7), batch_size=4, max_lag=2, max_age_s=60.0, max_wait_s=1.0, learner_id="learner-0"
    )
    request.MergeFrom(pb.LeaseBatchRequest(**changes))  # pyright: ignore[reportArgumentType]  # a field each
    return request


def opening(**changes: object) -> pb.OpenLineageRequest:
    return pb.OpenLineageRequest(
        lineage=policy_pb2.Lineage(**{"name": "1-bbbb", "parent": "0-aaaa", "fork_step": 3, **changes}),  # pyright: ignore[reportArgumentType]  # a field each
        learner_id="learner-0",
    )


def test_requests_of_a_learner_pass() -> None:
    check_next_batch(lease(), head=HEAD)
    check_next_batch(lease(version=at(7 + STEPS_AHEAD_MAX)), head=HEAD)
    check_next_batch(lease(version=at(10**9, "1-bbbb")), head=HEAD)
    check_next_batch(lease(held_batch_ids=["b1", "b2", "b3", "b4"]), head=None)
    check_opening(opening(), num_lineages=1, newest_of_parent=7)
    check_opening(opening(fork_step=7 + STEPS_AHEAD_MAX), num_lineages=1, newest_of_parent=7)
    check_opening(opening(fork_step=10**9), num_lineages=0, newest_of_parent=None)
    check_checkpointed(at(7 + STEPS_AHEAD_MAX), newest=7)
    check_watch(pb.WatchOutcomesRequest(cursor=0, limit=512, max_wait_s=5.0))
    check_watch(pb.WatchOutcomesRequest(cursor=-(200_000 << 31 | 4096), limit=512, max_wait_s=5.0))
    # Of the least number there is the ledger cannot hold the opposite.
    check_watch(pb.WatchOutcomesRequest(cursor=-(2**63 - 1), limit=1))
    with pytest.raises(RecordError, match="cursor"):
        check_watch(pb.WatchOutcomesRequest(cursor=-(2**63), limit=1))
    check_commit(pb.CommitBatchRequest(batch_id="b1", version=at(7)), head=HEAD)
    check_commit(pb.CommitBatchRequest(batch_id="b1", version=at(7 + STEPS_AHEAD_MAX)), head=HEAD)


@pytest.mark.parametrize(
    "changes",
    [
        {"version": at(10**9)},
        {"held_batch_ids": ["b1"] * (HELD_MAX + 1)},
        {"version": at(7 + STEPS_AHEAD_MAX + 1)},
        {"version": at(2**62)},
        {"version": at(-1)},
        {"version": at(7, "a b")},
        {"batch_size": -1},
        {"batch_size": 2**31 - 1},
        {"max_lag": -1},
        {"max_age_s": math.nan},
        {"max_age_s": -1.0},
        {"max_wait_s": math.nan},
        {"max_wait_s": math.inf},
        {"learner_id": "l" * 1000},
    ],
)
def test_batch_that_no_learner_requests_is_refused(changes: dict[str, object]) -> None:
    request = pb.LeaseBatchRequest(version=at(7), batch_size=4, max_age_s=60.0, max_wait_s=1.0)
    if "version" in changes:
        request.ClearField("version")
    request.MergeFrom(pb.LeaseBatchRequest(**changes))  # pyright: ignore[reportArgumentType]  # a field each
    with pytest.raises(RecordError):
        check_next_batch(request, head=HEAD)


@pytest.mark.parametrize(
    "changes", [{"name": ""}, {"name": "a/b"}, {"fork_step": -5}, {"fork_step": 2**62}, {"parent": "1-bbbb"}]
)
def test_lineage_that_no_learner_opens_is_refused(changes: dict[str, object]) -> None:
    with pytest.raises(RecordError):
        check_opening(opening(**changes), num_lineages=1, newest_of_parent=7)


def test_lineage_beyond_those_that_a_tree_may_have_is_refused() -> None:
    check_opening(opening(), num_lineages=LINEAGES_MAX, newest_of_parent=7)
    with pytest.raises(RecordError, match=r"started 4,096 times.*begin_from"):
        check_opening(opening(), num_lineages=LINEAGES_MAX + 1, newest_of_parent=7)


def test_three_hundred_thousand_drops_are_refused_before_one_is_read() -> None:
    class Unread(list[pb.DroppedTrajectory]):
        def __len__(self) -> int:
            return 300_000

        def __iter__(self) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]  # it must not be called
            pytest.fail("an entry was read")

    with pytest.raises(RecordError, match="300000 dropped"):
        check_dropped(None, Unread())


@pytest.mark.parametrize("name", ["", "a b", "t" * 200, "t/../x"])
def test_drop_of_what_can_be_no_trajectory_is_refused(name: str) -> None:
    with pytest.raises(RecordError, match="is no id"):
        check_dropped(None, [pb.DroppedTrajectory(trajectory_id=name, reason="failed")])


def test_as_many_drops_as_a_message_of_ids_holds_pass() -> None:
    check_dropped(None, [pb.DroppedTrajectory(trajectory_id=f"t{n}.0") for n in range(IDS_MAX)])


def test_batch_of_any_size_may_be_dropped_as_a_whole() -> None:
    check_dropped("b1", [pb.DroppedTrajectory(trajectory_id=f"t{n}.0") for n in range(IDS_MAX + 1)])


def poll(request: pb.WatchOutcomesRequest) -> Callable[[], None]:
    return lambda: check_watch(request)


def commit(request: pb.CommitBatchRequest) -> Callable[[], None]:
    return lambda: check_commit(request, head=HEAD)


@pytest.mark.parametrize(
    "check",
    [
        poll(pb.WatchOutcomesRequest(limit=-1)),
        poll(pb.WatchOutcomesRequest(limit=0)),
        poll(pb.WatchOutcomesRequest(cursor=2**62, limit=1)),
        poll(pb.WatchOutcomesRequest(limit=1, max_wait_s=math.nan)),
        commit(pb.CommitBatchRequest(batch_id="", version=at(7))),
        commit(pb.CommitBatchRequest(batch_id="b1", version=at(-7))),
        commit(pb.CommitBatchRequest(batch_id="b1", version=at(10**9))),
        commit(pb.CommitBatchRequest(batch_id="b1", version=at(7 + STEPS_AHEAD_MAX + 1))),
        commit(
            pb.CommitBatchRequest(
                batch_id="b1",
                version=at(7),
                consumptions=[pb.Consumption(trajectory_id="t1.0", stale_by_versions=-1)],
            )
        ),
        lambda: check_checkpointed(at(-1), newest=7),
        lambda: check_checkpointed(at(7 + STEPS_AHEAD_MAX + 1), newest=7),
    ],
)
def test_poll_commit_or_checkpoint_out_of_range_is_refused(check: Callable[[], None]) -> None:
    with pytest.raises(RecordError):
        check()
