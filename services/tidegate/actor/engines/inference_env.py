"""Vectorised environments whose actions come from the inference service, as in SEED RL (Espeholt 2020).

The actor keeps environments, episodes and memory, and no weights: each vector step sends observations and waits for
actions. A service that ends costs time only, because the step that waits is sent again to its next process.
"""

from collections.abc import Mapping

import numpy as np

from tidegate.actor.engines.acting import Actions, Outputs
from tidegate.actor.engines.exchange import StepExchange
from tidegate.actor.engines.port import EngineControl
from tidegate.actor.engines.q_acting import q_acting
from tidegate.actor.engines.registry import EngineSetting
from tidegate.actor.engines.vector_env import VectorEnvEngine
from tidegate.catalogue import actor as statistics
from tidegate.core.ids import PolicyVersion
from tidegate.core.records import Array, PolicySnapshot, Task
from tidegate.models.policies import build_policy
from tidegate.models.policy_port import StepPolicy
from tidegate.models.version_runner import check_snapshot
from tidegate.runtime.clock import Clock
from tidegate.runtime.own_policy import load_policy_code
from tidegate.wire.vector_step import ActedStep, ActStep, StepLayout

SEED_MAX = 1 << 63


class RemoteActing:
    """Asks the inference service for each step."""

    def __init__(
        self,
        policy: StepPolicy,
        exchange: StepExchange,
        control: EngineControl,
        clock: Clock,
        *,
        num_envs: int,
        wait_s: float,
    ) -> None:
        """``exchange``: carries the steps. ``wait_s``: as ``actor.inference_wait_s``."""
        self._policy = policy
        self._layout = StepLayout.of(policy, num_envs=num_envs)
        self._exchange = exchange
        self._wait_s = wait_s
        self._control = control
        self._clock = clock
        self._task: Task | None = None
        self._number = 0

    def check_policy(self, snapshot: PolicySnapshot) -> None:
        """Check a policy that an evaluation plays here.

        Raises:
            RecordError: a name, shape or dtype does not fit, or a value is not finite.
        """
        check_snapshot(self._policy, snapshot)

    def begin(self, task: Task) -> PolicyVersion:
        """See ``Acting``."""
        self._task = task
        return self._serve_newest().version

    def act(
        self, observations: Mapping[str, Array], memory_NM: Array, rng: np.random.Generator
    ) -> Actions | None:
        """See ``Acting``; None when the task is cut, the actor stops, or the service stays away."""
        answer = self._ask(observations, memory_NM, seed=int(rng.integers(SEED_MAX)))
        if answer is None:
            return None
        return Actions(answer.actions, answer.logprobs, answer.memory, self._version_of(answer))

    def outputs(self, observations: Mapping[str, Array], memory_NM: Array) -> Outputs | None:
        """See ``GivesOutputs``; None as ``act``. Nothing is drawn from the seed."""
        answer = self._ask(observations, memory_NM, seed=0)
        if answer is None:
            return None
        return Outputs(answer.outputs, answer.memory, self._version_of(answer))

    def _ask(self, observations: Mapping[str, Array], memory_NM: Array, *, seed: int) -> ActedStep | None:
        self._number += 1
        step = ActStep(
            number=self._number,
            seed=seed,
            observations=self._layout.join(observations),
            memory=memory_NM.tobytes(),
        )
        control, clock = self._control, self._clock
        asked_at_s = clock.monotonic_s()
        control.asking = True
        try:
            return self._exchange.ask(
                step, give_up=lambda: self._gives_up(waited_s=clock.monotonic_s() - asked_at_s)
            )
        finally:
            control.asking = False
            control.count(statistics.INFERENCE_WAIT_S, clock.monotonic_s() - asked_at_s)

    def _version_of(self, answer: ActedStep) -> PolicyVersion:
        control = self._control
        # The version of the segment's spans is the one of the answer, whatever was told before or since.
        if control.serving is None or answer.version != control.serving.version:
            control.swapped(PolicySnapshot(answer.version, {}), seconds=0.0)
        serving = control.serving
        assert serving is not None
        return serving.version

    def further_tensors(
        self, observations: Mapping[str, Array], memory_NM: Array, segment: Mapping[str, Array]
    ) -> dict[str, Array]:
        """See ``Acting``: nothing."""
        del observations, memory_NM, segment
        return {}

    def _gives_up(self, *, waited_s: float) -> bool:
        control, task = self._control, self._task
        if control.stop or (task is not None and task.task_id in control.cut):
            return True
        if waited_s >= self._wait_s:
            control.count(statistics.INFERENCE_GIVEN_UP)
            return True
        return False

    def _serve_newest(self) -> PolicySnapshot:
        newest, serving = self._control.newest, self._control.serving
        assert newest is not None, "tasks start once the service told its policy"
        if serving is None or serving.version != newest.version:
            self._control.swapped(newest, seconds=0.0)
        return newest


def open_engine(setting: EngineSetting, control: EngineControl, clock: Clock) -> VectorEnvEngine:
    """Open the engine for the registry."""
    assert setting.description is not None
    assert setting.exchange is not None, "the actor's main makes the exchange for this engine"
    code = load_policy_code(setting.policy, folder=setting.files_dir)
    policy = build_policy(setting.description, setting.policy, code=code)
    acting = RemoteActing(
        policy,
        setting.exchange,
        control,
        clock,
        num_envs=setting.workload.num_envs,
        wait_s=setting.inference_wait_s,
    )
    return VectorEnvEngine(setting, control, clock, acting=q_acting(acting, policy, setting) or acting)
