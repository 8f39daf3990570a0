"""The best version: which one it is, and that neither pruning nor a restart takes it."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from structlog import get_logger

from tests.unit.weight_distribution.offers import ROOT, TREE, offer, take_in, version
from tidegate.core.ids import LineageName, PolicyVersion, RunId
from tidegate.core.staleness import Lineage
from tidegate.runtime.best_version import BestVersion, read_best
from tidegate.runtime.bus import Handler
from tidegate.runtime.drain import Drain
from tidegate.runtime.service import ServiceContext
from tidegate.runtime.streams import Stored
from tidegate.weight_distribution.best import BestKeeper, held_version, is_better
from tidegate.weight_distribution.versions import VersionStore
from tidegate.wire.stats import ServiceStats, encode_stats
from tidegate.wire.subjects import Topology

KEEP = 2


@pytest.fixture
def store(tmp_path: Path) -> VersionStore:
    return VersionStore(tmp_path / "versions", keep_versions=KEEP)


class Broker:
    """No publisher; EVENTS holds one message, or none."""

    stored: bytes | None = None

    async def subscribe(self, _subject: str, _handler: Handler) -> None: ...

    async def last(self, _stream: str, _subject: str) -> Stored | None:
        return None if self.stored is None else Stored(self.stored, {}, 1)


@pytest.fixture
def broker() -> Broker:
    return Broker()


@pytest.fixture
def keeper(tmp_path: Path, store: VersionStore, broker: Broker) -> BestKeeper:
    drain = Drain()
    drain.request()
    context = SimpleNamespace(
        data_dir=tmp_path,
        clock=SimpleNamespace(now_s=lambda: 1.0),
        log=get_logger(),
        bus=broker,
        topology=Topology(RunId("run-t")),
        drain=drain,
    )
    return BestKeeper(cast("ServiceContext", context), store)


def publish(store: VersionStore, *steps: int) -> None:
    for step in steps:
        take_in(store, offer(version(step)))
        store.prune()


def steps(store: VersionStore) -> list[int]:
    return [each.step for each in store.kept()]


def evaluation(at: PolicyVersion, **figures: Any) -> bytes:
    return json.dumps({"kind": "evaluation", "version": str(at), **figures}).encode()


async def test_version_with_the_best_evaluation_outlives_the_newest(
    tmp_path: Path, store: VersionStore, keeper: BestKeeper
) -> None:
    publish(store, 1, 2)
    await keeper.result(evaluation(version(2), mean_return=10.0), {})
    publish(store, 3, 4)
    await keeper.result(evaluation(version(4), mean_return=9.0), {})
    publish(store, 5, 6, 7)
    assert steps(store) == [2, 6, 7]
    assert read_best(tmp_path) == BestVersion(str(version(2)), 10.0, "mean_return", 1.0)
    await keeper.result(evaluation(version(7), mean_return=11.0), {})
    publish(store, 8, 9, 10)
    assert steps(store) == [7, 9, 10]


async def test_version_is_there_until_its_evaluation_ends(store: VersionStore, keeper: BestKeeper) -> None:
    publish(store, 1)
    await keeper.begun(evaluation(version(1)), {})
    publish(store, 2, 3, 4, 5)
    assert steps(store) == [1, 4, 5]
    await keeper.result(evaluation(version(1), solved_share=0.5), {})
    publish(store, 6)
    assert steps(store) == [1, 5, 6]


async def test_version_that_was_not_better_goes_after_its_evaluation(
    store: VersionStore, keeper: BestKeeper
) -> None:
    publish(store, 1)
    await keeper.result(evaluation(version(1), mean_reward=0.9), {})
    publish(store, 2)
    await keeper.begun(evaluation(version(2)), {})
    publish(store, 3, 4, 5)
    assert steps(store) == [1, 2, 4, 5]
    await keeper.result(evaluation(version(2), mean_reward=0.1), {})
    publish(store, 6)
    assert steps(store) == [1, 5, 6]


async def test_training_decides_until_a_version_was_evaluated(
    tmp_path: Path, store: VersionStore, keeper: BestKeeper
) -> None:
    def report(value: float) -> bytes:
        values = {"mean_return": value}
        return encode_stats(ServiceStats("learner", "learner", "running", 1.0, 1.0, values=values))

    publish(store, 1)
    await keeper.trained(report(50.0), {})
    publish(store, 2, 3, 4)
    await keeper.trained(report(40.0), {})
    publish(store, 5)
    assert steps(store) == [1, 4, 5]
    best = read_best(tmp_path)
    assert best is not None
    assert (best.score, best.measure) == (50.0, "mean_return of training")
    await keeper.result(evaluation(version(5), mean_return=3.0), {})
    await keeper.trained(report(99.0), {})
    publish(store, 6, 7, 8)
    assert steps(store) == [5, 7, 8]


async def test_best_version_survives_a_restart(
    tmp_path: Path, store: VersionStore, keeper: BestKeeper
) -> None:
    publish(store, 1)
    await keeper.result(evaluation(version(1), mean_return=1.0), {})
    publish(store, 2, 3, 4)
    again = VersionStore(tmp_path / "versions", keep_versions=KEEP, held=held_version(tmp_path))
    assert steps(again) == [1, 3, 4]
    assert steps(VersionStore(tmp_path / "versions", keep_versions=KEEP)) == [3, 4]


def roll_back(store: VersionStore, *, to: int) -> PolicyVersion:
    """What the learner publishes when it goes back: a lineage that forks there."""
    after = version(to, LineageName("1-bbbb"))
    take_in(store, offer(after, tree=TREE.add(Lineage(after.lineage, parent=ROOT, fork_step=to))))
    store.prune()
    return after


def rollback_to(after: PolicyVersion) -> bytes:
    """The event of a rollback, by the first version since."""
    return json.dumps({"kind": "rolled_back", "version": str(after)}).encode()


async def test_best_version_is_forgotten_when_the_run_goes_back_past_it(
    tmp_path: Path, store: VersionStore, keeper: BestKeeper
) -> None:
    publish(store, 1, 2, 3)
    await keeper.result(evaluation(version(3), mean_return=90.0), {})
    after = roll_back(store, to=2)
    await keeper.rolled_back(rollback_to(after), {})
    assert read_best(tmp_path) is None
    await keeper.result(evaluation(version(3), mean_return=95.0), {})
    assert read_best(tmp_path) is None, "nor does an evaluation that ends later bring it back"
    await keeper.result(evaluation(after, mean_return=10.0), {})
    best = read_best(tmp_path)
    assert best is not None
    assert best.version == str(after)


async def test_best_version_before_the_one_that_a_run_goes_back_to_stays(
    tmp_path: Path, store: VersionStore, keeper: BestKeeper
) -> None:
    publish(store, 1, 2)
    await keeper.result(evaluation(version(2), mean_return=90.0), {})
    publish(store, 3)
    await keeper.rolled_back(rollback_to(roll_back(store, to=2)), {})
    best = read_best(tmp_path)
    assert best is not None
    assert best.version == str(version(2))
    assert version(2) in store.kept()


async def test_best_version_is_forgotten_after_a_rollback_whose_event_was_missed(
    tmp_path: Path, store: VersionStore, keeper: BestKeeper, broker: Broker
) -> None:
    publish(store, 1, 2, 3)
    await keeper.result(evaluation(version(3), mean_return=90.0), {})
    broker.stored = rollback_to(roll_back(store, to=2))
    await keeper.follow()
    assert read_best(tmp_path) is None


async def test_best_version_since_the_last_rollback_outlives_a_crash_that_costs_its_branch(
    tmp_path: Path, store: VersionStore, keeper: BestKeeper, broker: Broker
) -> None:
    publish(store, 1, 2)
    after = roll_back(store, to=1)
    best = version(2, after.lineage)
    tree = TREE.add(Lineage(after.lineage, parent=ROOT, fork_step=1))
    take_in(store, offer(best, tree=tree))
    await keeper.result(evaluation(best, mean_return=50.0), {})
    restored = version(1, LineageName("2-cccc"))
    take_in(
        store, offer(restored, tree=tree.add(Lineage(restored.lineage, parent=after.lineage, fork_step=1)))
    )
    broker.stored = rollback_to(after)
    await keeper.follow()
    found = read_best(tmp_path)
    assert found is not None
    assert found.version == str(best)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"[]",
        b"\xff",
        b'{"version": "x"}',
        evaluation(version(9), mean_return=1.0),
        evaluation(version(1)),
    ],
)
async def test_event_that_says_nothing_of_a_kept_version_changes_nothing(
    tmp_path: Path, store: VersionStore, keeper: BestKeeper, data: bytes
) -> None:
    publish(store, 1)
    await keeper.result(data, {})
    await keeper.trained(data, {})
    publish(store, 2, 3)
    assert steps(store) == [2, 3]
    assert read_best(tmp_path) is None


def test_damaged_record_holds_nothing(tmp_path: Path) -> None:
    assert held_version(tmp_path) == frozenset()
    for text in ("{", '{"version": "x", "score": 1.0, "measure": "", "at_s": 1.0}'):
        (tmp_path / "best.json").write_text(text)
        assert held_version(tmp_path) == frozenset()


def test_equal_score_leaves_the_older_version() -> None:
    old = BestVersion("0-a@1", 1.0, "mean_return", 1.0)
    assert not is_better(BestVersion("0-a@2", 1.0, "mean_return", 2.0), old)
    assert not is_better(BestVersion("0-a@2", 9.0, "mean_return of training", 2.0), old)
