"""The best version of a run: which it is, by evaluations or else by the training return, and that its file is kept.

A version is held from the moment at which its evaluation begins until its result, so that it is there when it turns out
to be the best one; at most two versions are held besides the newest ``keep_versions``. Where a run makes no evaluations
the mean return (reward) of training decides, measured over its window: the newest version at its highest is held.

A version of a branch that was given up is not considered. One that was the best before an operator rolled the run back
past it is forgotten: the rollback says that what was trained there does not count, whatever its score. The newest
rollback is read from EVENTS as well, so that one whose event this service missed is applied a little later.
"""

import json
from pathlib import Path
from typing import Any, cast

import msgspec

from tidegate.catalogue import learner as learner_stats
from tidegate.core.errors import RecordError, TidegateError
from tidegate.core.ids import PolicyVersion, parse_version
from tidegate.core.staleness import LineageTree
from tidegate.runtime.best_version import BEST_FILE, TRAINING, BestVersion, read_best
from tidegate.runtime.files import replace_file
from tidegate.runtime.service import ServiceContext
from tidegate.runtime.stats_reports import stats_from
from tidegate.weight_distribution.versions import VersionStore

# Published by the task queue with an evaluation's task, by the actor with its result, and by a learner that went back.
BEGUN, RESULT, ROLLED_BACK = "evaluation_begun", "evaluation", "rolled_back"
# What an evaluation says of a version; the first one that it has decides.
MEASURES = ("mean_return", "mean_reward", "solved_share")
# Between two looks for a rollback that was not heard: this service, or its connection, was away.
LOOK_S = 60.0
_TRAINED = (learner_stats.MEAN_RETURN, learner_stats.MEAN_REWARD)


def held_version(folder: Path) -> frozenset[PolicyVersion]:
    """The version to hold at a start."""
    best = read_best(folder)
    try:
        return frozenset() if best is None else frozenset((parse_version(best.version),))
    except ValueError:
        return frozenset()


def is_better(new: BestVersion, old: BestVersion | None) -> bool:
    """Whether it takes its place: by its score among alike; what was evaluated goes before what was trained."""
    if old is None or new.is_evaluated != old.is_evaluated:
        return old is None or new.is_evaluated
    return new.score > old.score


class BestKeeper:
    """Follows evaluations and the learner's statistics; one more version on disk, and one while it is evaluated."""

    def __init__(self, context: ServiceContext, versions: VersionStore) -> None:
        """``versions``: holds what ``held_version`` says."""
        self._context = context
        self._versions = versions
        self._best = read_best(context.data_dir) if held_version(context.data_dir) else None
        self._evaluated: PolicyVersion | None = None

    async def follow(self) -> None:
        """Take what comes until draining."""
        bus, topology = self._context.bus, self._context.topology
        await bus.subscribe(topology.event(BEGUN), self.begun)
        await bus.subscribe(topology.event(RESULT), self.result)
        await bus.subscribe(topology.event(ROLLED_BACK), self.rolled_back)
        await bus.subscribe(topology.stats("learner"), self.trained)
        while True:
            await self._recall_rollback()
            if await self._context.drain.sleep(LOOK_S):
                return

    async def _recall_rollback(self) -> None:
        bus, topology = self._context.bus, self._context.topology
        try:
            stored = await bus.last(topology.stream("EVENTS"), topology.event(ROLLED_BACK))
        except TidegateError as error:
            self._context.log.warning("rollback_not_read", error=str(error))
            return
        if stored is not None:
            await self.rolled_back(stored.data, stored.headers)

    async def begun(self, data: bytes, _headers: dict[str, str]) -> None:
        """An evaluation began: hold its version until the result."""
        version = _version_in(_fields_of(data))
        if version is not None and version in self._versions.kept():
            self._evaluated = version
            self._hold()

    async def result(self, data: bytes, _headers: dict[str, str]) -> None:
        """An evaluation ended."""
        fields = _fields_of(data)
        version = _version_in(fields)
        measure = next((name for name in MEASURES if isinstance(fields.get(name), int | float)), None)
        if version is None or measure is None:
            return
        self._consider(version, float(fields[measure]), measure)
        if version == self._evaluated:
            self._evaluated = None
            self._hold()

    async def rolled_back(self, data: bytes, _headers: dict[str, str]) -> None:
        """The run went back: the best version goes if it is on the branch that ended.

        Not one that was trained since: what a crash cost after the rollback was not given up.
        """
        since = _version_in(_fields_of(data))
        if self._best is None or since is None:
            return
        best = parse_version(self._best.version)
        if self._is_of_the_run(best) or self._is_trained_from(since, best):
            return
        self._context.log.info("best_version_forgotten", version=self._best.version, score=self._best.score)
        self._best = None
        self._hold()
        try:
            (self._context.data_dir / BEST_FILE).unlink(missing_ok=True)
        except OSError as error:
            self._context.log.warning("best_version_not_written", error=str(error))

    async def trained(self, data: bytes, _headers: dict[str, str]) -> None:
        """The learner's statistics, which decide while no version was evaluated."""
        if self._best is not None and self._best.is_evaluated:
            return
        try:
            stats = stats_from("learner", data)
        except RecordError:
            return  # its sender has another version
        name = next((each for each in _TRAINED if each in stats.values), None)
        head = self._versions.head
        if name is not None and head is not None:
            self._consider(head.manifest.version, stats.values[name], f"{name} {TRAINING}")

    def _consider(self, version: PolicyVersion, score: float, measure: str) -> None:
        found = BestVersion(str(version), score, measure, self._context.clock.now_s())
        if version not in self._versions.kept() or not self._is_of_the_run(version):
            return
        if not is_better(found, self._best):
            return
        self._best = found
        self._hold()
        try:
            replace_file(self._context.data_dir / BEST_FILE, msgspec.json.encode(found))
        except OSError as error:  # a full disk: the version is held until the process ends
            self._context.log.warning("best_version_not_written", error=str(error))

    def _is_of_the_run(self, version: PolicyVersion) -> bool:
        """Whether the newest version was trained from it: it is on no branch that was given up."""
        head = self._versions.head
        return head is None or head.manifest.tree.descends(head.manifest.version, version)

    def _is_trained_from(self, ancestor: PolicyVersion, version: PolicyVersion) -> bool:
        head = self._versions.head
        tree = LineageTree() if head is None else head.manifest.tree
        return version.lineage in tree.lineages and tree.descends(version, ancestor)

    def _hold(self) -> None:
        best = None if self._best is None else parse_version(self._best.version)
        self._versions.hold(frozenset(each for each in (best, self._evaluated) if each is not None))


def _fields_of(data: bytes) -> dict[str, Any]:
    try:
        fields = json.loads(data)
    except (ValueError, RecursionError):
        return {}
    return cast("dict[str, Any]", fields) if isinstance(fields, dict) else {}


def _version_in(fields: dict[str, Any]) -> PolicyVersion | None:
    try:
        return parse_version(str(fields.get("version", "")))
    except ValueError:
        return None
