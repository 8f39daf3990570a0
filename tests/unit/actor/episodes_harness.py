"""An actor of episodes without a broker: its runner on a scripted engine, scripted environments and stored messages."""

import asyncio
import itertools
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import structlog

from tests.support.settings import make_settings
from tests.support.token_engine import ScriptedTokenEngine
from tests.unit.actor.support import LINEAGE, group_task, snapshot
from tidegate.actor.engines.port import EngineControl
from tidegate.actor.rollouts.deadlines import DeadlineWatch
from tidegate.actor.rollouts.environment_sessions import EpisodeSessions
from tidegate.actor.rollouts.episode_player import EpisodePlayer
from tidegate.actor.rollouts.episode_runner import EpisodeRunner
from tidegate.actor.rollouts.outcomes import RolloutResult
from tidegate.actor.rollouts.predictions import Predictions
from tidegate.actor.rollouts.progress_checkpoints import ProgressCheckpoints
from tidegate.actor.rollouts.served_policy import ServedPolicy
from tidegate.actor.rollouts.time_accounting import TimeAccounting
from tidegate.catalogue.kinds import Counter, Gauge
from tidegate.core.errors import BackpressureError, NotFoundError, TidegateError, UnavailableError
from tidegate.core.records import Sampler, Task, ToolCall
from tidegate.core.staleness import Lineage, LineageTree
from tidegate.runtime.clock import SystemClock
from tidegate.runtime.config import LongTailConfig, Settings, WorkloadConfig
from tidegate.runtime.drain import Drain
from tidegate.runtime.live_settings import LiveSections, LiveSettings
from tidegate.runtime.policy_watch import PolicyWatch
from tidegate.runtime.service import ServiceContext
from tidegate.runtime.stats_board import StatsBoard
from tidegate.runtime.streams import Stored
from tidegate.wire.clients.environment import EnvironmentStep, EpisodeProblem
from tidegate.wire.subjects import Topology

TREE = LineageTree().add(Lineage(LINEAGE))


class Notes:
    """The broker as far as progress goes through it: the last message of each subject."""

    def __init__(self) -> None:
        self.last_of: dict[str, Stored] = {}
        self.num_published = 0
        self.away = False

    async def publish(self, subject: str, data: bytes, **_options: object) -> None:
        if self.away:
            raise UnavailableError("away")
        self.num_published += 1
        self.last_of[subject] = Stored(data, {}, self.num_published)

    async def last(self, _stream: str, subject: str) -> Stored | None:
        if self.away:
            raise UnavailableError("away")
        return self.last_of.get(subject)


class Echo:
    """A worker whose environment repeats each turn, and ends an episode after ``num_turns``."""

    def __init__(self, *, num_turns: int = 3, opening: str = "") -> None:
        self.num_turns = num_turns
        self.opening = opening
        self.voice = "you said "
        self.sessions: dict[str, list[str]] = {}
        self.resets: list[tuple[str, ...]] = []
        self.steps: list[str] = []
        self.slots = 1000
        # What the next calls of a kind fail with, in order.
        self.failing: dict[str, list[TidegateError]] = {"reset": [], "step": []}
        self._names = itertools.count()

    async def reset(
        self, env_id: str, *, seed: int, problem: EpisodeProblem | None = None, actions: Sequence[str] = ()
    ) -> tuple[str, str]:
        assert problem is not None
        self._fail("reset")
        if len(self.sessions) >= self.slots:
            raise BackpressureError("full")
        self.resets.append(tuple(actions))
        name = f"s{next(self._names)}"
        self.sessions[name] = list(actions)
        return name, self._said(actions) if actions else self.opening or problem.prompt

    async def step(self, session_id: str, *, action: str) -> EnvironmentStep:
        await asyncio.sleep(0)
        self._fail("step")
        if session_id not in self.sessions:
            raise NotFoundError("gone")
        self.steps.append(action)
        heard = self.sessions[session_id]
        heard.append(action)
        done = len(heard) >= self.num_turns
        return EnvironmentStep(
            observation=self._said(heard),
            reward=1.0 if done else 0.25,
            terminated=done,
            truncated=False,
            tool_calls=(ToolCall("echo", action, self._said(heard), 1.0, 2.0),),
            components={"right": 1.0} if done else {},
            log="all said" if done else "",
        )

    async def close(self, session_id: str) -> None:
        self.sessions.pop(session_id, None)

    def _said(self, heard: Sequence[str]) -> str:
        return f"{self.voice}{len(heard)} times"

    def _fail(self, kind: str) -> None:
        if self.failing[kind]:
            raise self.failing[kind].pop(0)


class Harness:
    """One actor. Several may share ``notes``, as actors share a broker."""

    def __init__(
        self,
        *,
        notes: Notes | None = None,
        workers: Sequence[Echo] = (),
        turns_max: int = 1,
        num_samples: int = 3,
        slots: int = 64,
        long_tail: LongTailConfig | None = None,
        latency: str = "",
        policy_step: int = 0,
        stop_share: float = 0.05,
        token_s: float = 0.0,
        context_length: int = 4096,
    ) -> None:
        self.notes = notes or Notes()
        settings = _settings(
            turns_max=turns_max, num_samples=num_samples, long_tail=long_tail, latency=latency
        )
        self.stats = StatsBoard(service="actor", instance="actor-0", started_at_s=0.0)
        self.drain = Drain()
        self.context = cast(
            "ServiceContext",
            cast(
                "Any",
                SimpleNamespace(
                    settings=settings,
                    topology=Topology(settings.run),
                    clock=SystemClock(),
                    stats=self.stats,
                    drain=self.drain,
                    bus=self.notes,
                    log=structlog.get_logger("test"),
                    instance="actor-0",
                    index=0,
                    channel=_no_channel,
                    live=LiveSettings(LiveSections(settings.staleness)),
                ),
            ),
        )
        self.control = EngineControl()
        self.engine = ScriptedTokenEngine(
            self.control, token_s=token_s, stop_share=stop_share, context_length=context_length
        )
        self.predictions = Predictions(settings.long_tail)
        self.head = SimpleNamespace(head=None)
        watch = cast("PolicyWatch", cast("Any", self.head))
        self.deadlines = DeadlineWatch(self.context, watch, self.control, self.predictions)
        self.served_policy = ServedPolicy(self.control, asyncio.Event())
        self.checkpoints = ProgressCheckpoints(self.context, period_s=0.05)
        sessions = EpisodeSessions(self.context, workers) if workers else None
        time_accounting = TimeAccounting(self.context)
        self.runner = EpisodeRunner(
            self.context,
            time_accounting=time_accounting,
            engine=self.engine,
            player=EpisodePlayer(
                self.context,
                turns_max=settings.workload.turns_max,
                engine=self.engine,
                control=self.control,
                sessions=sessions,
                time_accounting=time_accounting,
            ),
            control=self.control,
            predictions=self.predictions,
            deadlines=self.deadlines,
            checkpoints=self.checkpoints,
            served_policy=self.served_policy,
            slots=slots,
        )
        self.publish(policy_step)

    def publish(self, step: int) -> None:
        """Announce a policy and serve it."""
        self.head.head = SimpleNamespace(version=snapshot(step, {}).version, tree=TREE)
        self.served_policy.offer(snapshot(step, {}), TREE, now_s=0.0)

    async def run(self, task: Task) -> RolloutResult | None:
        """The result of a task."""
        async with asyncio.timeout(60.0):
            made_ones = [made async for made in self.runner.run([task])]
        assert len(made_ones) <= 1
        return made_ones[0] if made_ones else None

    async def run_until(self, task: Task, num_tokens: int) -> "asyncio.Task[RolloutResult | None]":
        """Run a task until its samples have so many tokens each, where the engine holds them."""
        self.engine.hold_at = num_tokens
        running = asyncio.create_task(self.run(task))
        async with asyncio.timeout(60.0):
            while len(self.engine.held) < task.num_samples:
                assert not running.done(), running.result()
                await asyncio.sleep(0.001)
        return running

    def value(self, statistic: Counter | Gauge) -> float:
        return self.stats.value(statistic)


def task_of(
    name: str = "t-1", *, num_samples: int = 3, max_new_tokens: int = 60, prompt: str = "47+38="
) -> Task:
    return group_task(
        name, num_samples=num_samples, prompt=prompt, sampler=Sampler(max_new_tokens=max_new_tokens)
    )


def _settings(
    *, turns_max: int, num_samples: int, long_tail: LongTailConfig | None, latency: str
) -> Settings:
    workload = WorkloadConfig(
        kind="text", env="echo", num_samples=num_samples, turns_max=turns_max, latency=latency
    )
    return msgspec.structs.replace(
        make_settings(Path(), broker_url="", writes_credentials=False),
        workload=workload,
        long_tail=long_tail or LongTailConfig(),
    )


class _NoChannel:
    """A channel that is never used."""

    def unary_unary(self, *_method: object, **_options: object) -> None:
        """A call that is never made."""


def _no_channel(*_service: object) -> _NoChannel:
    return _NoChannel()
