"""The one table of engines. A new engine is a file in this folder, a line here, and a name in ``ActorConfig.engine``.

Engines are imported when they are opened: the vector engine's process never loads torch, and only an actor that uses a
server's engine needs its client.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, Literal, TypeAlias

import msgspec

from tidegate.actor.engines.exchange import StepExchange
from tidegate.actor.engines.port import Engine, EngineControl
from tidegate.actor.engines.server_config import ServerConfig
from tidegate.actor.engines.token_port import TokenEngine
from tidegate.algorithms.actor_critic_settings import ActorCriticSettings
from tidegate.algorithms.q_learning_settings import QActingSettings
from tidegate.core.errors import ConfigError, TidegateError
from tidegate.core.spaces import EnvironmentDescription
from tidegate.runtime.clock import Clock
from tidegate.runtime.config import PolicyConfig, WorkloadConfig
from tidegate.runtime.loading import load
from tidegate.runtime.own_code.loading import described, load_own
from tidegate.runtime.own_code.references import OwnReference, resolve


class EngineSetting(msgspec.Struct, frozen=True):
    """What an engine is made from.

    ``threads``: of one torch operation. ``device``: of an engine that computes with torch. ``evaluation_batch``:
    prompts at once. ``slots`` and ``cache_on_swap``: of engines that write tokens, as the config has them. ``server``:
    of engines that talk to one. ``data_dir``: the actor's folder, for what they keep on disk. ``description``: of the
    environment of segments; None for text. ``actor_critic``: the objective of an engine that sends gradients.
    ``q_learning``: exploration and first priorities of a Q-network. ``one_version``: a segment keeps the version that
    it starts with. ``exchange`` and ``inference_wait_s``: of an engine whose actions come from the inference service.
    ``files_dir``: the folder of the run file's own code.
    """

    workload: WorkloadConfig
    policy: PolicyConfig
    seed: int
    actor_index: int
    threads: int = 1
    device: Literal["auto", "cpu", "cuda"] = "auto"
    evaluation_batch: int = 512
    slots: int = 1
    cache_on_swap: Literal["recompute", "keep"] = "recompute"
    server: ServerConfig = ServerConfig()
    data_dir: str = ""
    description: EnvironmentDescription | None = None
    actor_critic: ActorCriticSettings = ActorCriticSettings()
    q_learning: QActingSettings = QActingSettings()
    one_version: bool = False
    exchange: StepExchange | None = None
    inference_wait_s: float = 30.0
    files_dir: str = ""


EngineName: TypeAlias = Literal[
    "vector_env", "gradient_env", "inference_env", "text_generation", "torch", "vllm", "sglang"
]


class EngineEntry(msgspec.Struct, frozen=True):
    """One engine: ``target`` is ``module:function`` that opens it; which port it serves, and what it can run.

    ``batch``: ``engines.port.Engine``, whole batches of tasks. ``tokens``: ``engines.token_port.TokenEngine``.
    ``service``: the service that a run has for this engine only; empty for none.
    """

    target: str
    port: Literal["batch", "tokens"]
    workload: Literal["segments", "text"]
    policies: tuple[str, ...]
    service: str = ""

    @property
    def many_turns(self) -> bool:
        """Whether its rollouts may be episodes of several turns: a token engine can read replies between turns."""
        return self.port == "tokens"


AUTO = "auto"
# `auto` takes the first that can run policy and workload.
ENGINES: dict[EngineName, EngineEntry] = {
    "vector_env": EngineEntry(
        "tidegate.actor.engines.vector_env:open_engine",
        "batch",
        "segments",
        ("mlp", "cnn", "q_mlp", "q_cnn", "squashed_mlp", "squashed_cnn", "own", "q_own"),
    ),
    "gradient_env": EngineEntry(
        "tidegate.actor.engines.gradient_env:open_engine", "batch", "segments", ("mlp",)
    ),
    "inference_env": EngineEntry(
        "tidegate.actor.engines.inference_env:open_engine",
        "batch",
        "segments",
        ("mlp", "cnn", "q_mlp", "q_cnn", "squashed_mlp", "squashed_cnn", "own", "q_own"),
        service="inference",
    ),
    "text_generation": EngineEntry(
        "tidegate.actor.engines.text_generation:open_engine", "batch", "text", ("char_lm",)
    ),
    "torch": EngineEntry(
        "tidegate.actor.engines.torch_engine:open_engine", "tokens", "text", ("char_lm", "transformers")
    ),
    "vllm": EngineEntry(
        "tidegate.actor.engines.vllm_engine:open_engine", "tokens", "text", ("transformers",)
    ),
    "sglang": EngineEntry(
        "tidegate.actor.engines.sglang_engine:open_engine", "tokens", "text", ("transformers",)
    ),
}


# What an engine has to have, by its port: ``engines.port.Engine``, ``engines.token_port.TokenEngine``.
METHODS = {
    "batch": ("check_policy", "check_task", "generate", "complete", "close"),
    "tokens": ("tokenizer", "context_length", "check_policy", "check_task", "run", "generate", "close"),
}


def is_own_engine(name: str) -> bool:
    """Whether it is a user's own code."""
    return name != AUTO and name not in ENGINES


def own_engine_of(name: str, *, folder: str) -> OwnReference | None:
    """The code of ``actor.engine``; None for one of this package. ``folder``: of the run file.

    Raises:
        ConfigError: there is no such code.
    """
    if not is_own_engine(name):
        return None
    return resolve(name, kind="engines", folder=folder, known=(AUTO, *ENGINES))


def find_engine(name: str, *, workload: WorkloadConfig, policy: PolicyConfig) -> EngineEntry:
    """The named engine, or the one that fits. One of a user's own writes tokens of text, and plays batches of segments.

    Raises:
        ConfigError: it, or none, runs this policy on this workload.
    """
    if is_own_engine(name):
        port = "tokens" if workload.kind == "text" else "batch"
        return EngineEntry(name, port, workload.kind, (policy.family,))
    known = {str(each): entry for each, entry in ENGINES.items()}
    named = list(known.values()) if name == AUTO else [known[name]]
    fitting = [entry for entry in named if _fits(entry, workload, policy)]
    if fitting:
        return fitting[0]
    turns = " in several turns" if workload.turns_max > 1 else ""
    raise ConfigError(
        f"The {name} engine cannot run {policy.kind} on {workload.kind}{turns}",
        why="; ".join(_told(engine, entry) for engine, entry in ENGINES.items() if entry in named),
        fix="set actor.engine to auto, and policy.kind to a network of this workload",
    )


def _fits(entry: EngineEntry, workload: WorkloadConfig, policy: PolicyConfig) -> bool:
    return (
        entry.workload == workload.kind
        and policy.family in entry.policies
        and (entry.many_turns or workload.turns_max == 1)
    )


def _told(name: str, entry: EngineEntry) -> str:
    turns = "in one turn or several" if entry.many_turns else "in one turn"
    return f"{name} runs {' or '.join(entry.policies)} on {entry.workload} {turns}"


def open_engine(name: str, setting: EngineSetting, control: EngineControl, clock: Clock) -> Engine:
    """Open an engine of batches.

    Raises:
        ConfigError: it does not fit, or it is one that writes tokens.
    """
    entry = find_engine(name, workload=setting.workload, policy=setting.policy)
    if entry.port != "batch":
        raise ConfigError(f"The {name} engine writes tokens", fix="open it by open_token_engine")
    return _opener(name, entry)(setting, control, clock)


def open_token_engine(name: str, setting: EngineSetting, control: EngineControl, clock: Clock) -> TokenEngine:
    """Open an engine that writes tokens.

    Raises:
        ConfigError: it does not fit, it is one of batches, or what it needs is not there.
    """
    entry = find_engine(name, workload=setting.workload, policy=setting.policy)
    if entry.port != "tokens":
        raise ConfigError(f"The {name} engine runs whole batches", fix="open it by open_engine")
    return _opener(name, entry)(setting, control, clock)


def _opener(name: str, entry: EngineEntry) -> Callable[[EngineSetting, EngineControl, Clock], Any]:
    return partial(open_own_engine, name, entry.port) if is_own_engine(name) else load(entry.target)


def open_own_engine(
    name: str, port: Literal["batch", "tokens"], setting: EngineSetting, control: EngineControl, clock: Clock
) -> Any:
    """Load a user's engine into this process and open it.

    Raises:
        ConfigError: there is no such code, it cannot be loaded or opened, or is no engine of this port.
    """
    reference = own_engine_of(name, folder=setting.files_dir)
    assert reference is not None, "it is not of this package"
    opener = load_own(reference)
    try:
        engine = opener(setting, control, clock)
    except TidegateError:
        raise
    except Exception as error:  # own code may raise anything
        raise ConfigError(
            f"actor.engine {name} cannot be opened",
            why=described(error, file=reference.source),
            fix="correct it: docs/engines.md",
        ) from error
    missing = [each for each in METHODS[port] if not hasattr(engine, each)]
    if missing:
        raise ConfigError(
            f"actor.engine {name} is no engine",
            why=f"what it opened has no {', '.join(missing)}",
            fix="define what docs/engines.md lists",
        )
    return engine
