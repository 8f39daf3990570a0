"""The one table of engines. A new engine is a file in this folder, a line here, and a name in ``ActorConfig.engine``.

Engines are imported when they are opened: the vector engine's process never loads torch.
"""

from collections.abc import Callable
from importlib import import_module
from typing import Literal, TypeAlias

import msgspec

from tidegate.actor.engines.port import Engine, Steering
from tidegate.core.errors import ConfigError
from tidegate.runtime.clock import Clock
from tidegate.runtime.config import PolicyConfig, WorkloadConfig


class EngineSetting(msgspec.Struct, frozen=True):
    """What an engine is made from. ``threads``: of one torch operation; ``evaluation_batch``: prompts at once."""

    workload: WorkloadConfig
    policy: PolicyConfig
    seed: int
    actor_index: int
    threads: int = 1
    evaluation_batch: int = 512


class EngineEntry(msgspec.Struct, frozen=True):
    """One engine: ``target`` is ``module:function`` that opens it, and what it can run."""

    target: str
    workload: Literal["segments", "text"]
    policy: Literal["mlp_actor_critic", "char_lm"]


EngineName: TypeAlias = Literal["vector_env", "text_generation"]

ENGINES: dict[EngineName, EngineEntry] = {
    "vector_env": EngineEntry(
        "tidegate.actor.engines.vector_env:open_engine", "segments", "mlp_actor_critic"
    ),
    "text_generation": EngineEntry("tidegate.actor.engines.text_generation:open_engine", "text", "char_lm"),
}


def open_engine(
    name: EngineName | Literal["auto"], setting: EngineSetting, steering: Steering, clock: Clock
) -> Engine:
    """Open the named engine, or the one that fits the workload.

    Raises:
        ConfigError: no engine runs this policy on this workload.
    """
    entry = _entry(name, setting)
    if (entry.workload, entry.policy) != (setting.workload.kind, setting.policy.kind):
        raise ConfigError(
            f"The {name} engine cannot run {setting.policy.kind} on {setting.workload.kind}",
            why=f"it runs {entry.policy} on {entry.workload}",
            fix="set actor.engine to auto, and policy.kind to the network of this workload",
        )
    module, _, function = entry.target.partition(":")
    opener: Callable[[EngineSetting, Steering, Clock], Engine] = getattr(import_module(module), function)
    return opener(setting, steering, clock)


def _entry(name: EngineName | Literal["auto"], setting: EngineSetting) -> EngineEntry:
    if name != "auto":
        return ENGINES[name]
    return next(entry for entry in ENGINES.values() if entry.workload == setting.workload.kind)
