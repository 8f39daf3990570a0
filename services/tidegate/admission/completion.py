"""Ends the run at its target, in a cluster: admits nothing more, and asks for a checkpoint once the loop ran empty.

``core.completion`` decides, the cluster loop scales. Without a target nothing happens here, and on one machine there
is none: `tidegate up` ends the run.
"""

import asyncio

import msgspec

from tidegate.admission.observations import Observations
from tidegate.admission.state import running_of
from tidegate.admission.state_file import StateFile
from tidegate.catalogue import learner as learner_stats
from tidegate.core.admission import Flow
from tidegate.core.completion import LoopState, RunEnd, advance, is_empty
from tidegate.core.errors import TidegateError
from tidegate.core.targets import RunTarget, parse_target
from tidegate.runtime.evaluations import ALIASES, evaluated_version, is_of_evaluation
from tidegate.runtime.service import ServiceContext
from tidegate.wire.clients.learner import LearnerClient
from tidegate.wire.clients.lifecycle import LifecycleClient

FILE = "completion.json"
# A tick waits for it, and only where the statistics on the broker meet the target.
ASK_TIMEOUT_S = 2.0


class RunCompletion:
    """Advances once a tick; the state is on disk before anything acts on it."""

    def __init__(self, context: ServiceContext) -> None:
        self._context = context
        self._file = StateFile(context.data_dir / FILE, RunEnd())
        self.state = self._file.read()
        # Of the TrainingRun: it ends after this many versions; None without such an end.
        self.max_versions: int | None = None
        # Until the TrainingRun was read: without it, a target of its would look as if it were removed.
        self.waits_for_run = False
        self._writing: asyncio.Task[None] | None = None

    def targets(self) -> list[RunTarget]:
        """Each ends the run: the run file's, and the TrainingRun's."""
        texts = [self._context.live.sections.until or ""]
        if self.max_versions is not None:
            texts.append(f"{learner_stats.VERSION_STEP}>={self.max_versions}")
        return [target for target in map(parse_target, texts) if target.conditions]

    async def tick(self, seen: Observations, flow: Flow, *, now_s: float, wall_s: float) -> None:
        """Advance by one tick. A target that the statistics on the broker meet is confirmed by the learner itself."""
        if self.waits_for_run:
            return
        targets = self.targets()
        learner = next(iter(seen.latest("learner", now_s=now_s)), None)
        values = target_values(seen, now_s=now_s)
        if not self.state.target and any(target.reached(values) for target in targets):
            own = await self._own_values()
            if own is None:
                return
            values |= own
        due_s = learner.values.get(learner_stats.UPDATE_DUE_AT_S, 0.0) if learner is not None else 0.0
        loop = LoopState(
            running=running_of(seen, flow, now_s=now_s),
            step=learner.values.get(learner_stats.VERSION_STEP) if learner is not None else None,
            updating=due_s > 0,
        )
        self.keep(advance(self.state, targets, values, loop, now_s=wall_s))
        if is_empty(self.state, now_s=wall_s) and self._writing is None:
            self._writing = asyncio.create_task(self._checkpoint(), name="last-checkpoint")
        elif self._writing is not None and self._writing.done():
            self._writing = None

    def keep(self, state: RunEnd) -> None:
        """Put a state in force, after it was written."""
        if state == self.state:
            return
        if state.target != self.state.target:
            self._context.log.info("run_completed" if state.target else "run_goes_on", target=state.target)
        try:
            self._file.write(state)
        except OSError as error:  # on a full disk it is decided again after a restart
            self._context.log.warning("completion_not_saved", error=str(error))
        self.state = state

    async def close(self) -> None:
        """Abandon the request for a checkpoint; the next process asks again."""
        if self._writing is not None:
            self._writing.cancel()
            await asyncio.gather(self._writing, return_exceptions=True)

    async def _own_values(self) -> dict[str, float] | None:
        """The learner's counters from itself, None without an answer: statistics on the broker may be another's.

        Those of other services are taken as the broker has them, which takes them from the service's own user only
        (``wire.permissions``); to ask for an evaluation would be to ask the actor that reported it.
        """
        try:
            async with asyncio.timeout(ASK_TIMEOUT_S):
                client = LifecycleClient(self._context.channel("learner"), service="learner")
                return (await client.stats(now_s=self._context.clock.now_s())).values
        except (TidegateError, TimeoutError) as error:
            self._context.log.warning("target_not_confirmed", error=str(error) or "no answer in time")
            return None

    async def _checkpoint(self) -> None:
        try:
            await LearnerClient(self._context.channel("learner")).checkpoint()
        except TidegateError as error:  # the next tick asks again
            self._context.log.warning("last_checkpoint_failed", error=str(error))
            return
        if self.state.target:  # and was not changed meanwhile
            at_s = self._context.clock.now_s()
            self.keep(msgspec.structs.replace(self.state, checkpointed=True, checkpointed_at_s=at_s))


def target_values(seen: Observations, *, now_s: float) -> dict[str, float]:
    """Every statistic by its name, as ``--until`` names it; of evaluations the newest version's."""
    values = {name.partition(".")[2]: value for name, value in seen.merged(now_s=now_s).items()}
    actors = [
        stats for stats in seen.latest("actor", now_s=now_s) if any(map(is_of_evaluation, stats.values))
    ]
    if actors:
        newest = max(actors, key=evaluated_version)
        values |= {name: value for name, value in newest.values.items() if is_of_evaluation(name)}
    return values | {alias: values[name] for alias, name in ALIASES.items() if name in values}
