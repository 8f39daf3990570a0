"""The parts that all server engines share: the model's folder, its tokenizer, the probe, and a folder for weights."""

from pathlib import Path

import torch

from tidegate.actor.engines.port import EngineControl
from tidegate.actor.engines.registry import EngineSetting
from tidegate.actor.engines.server_engine import ServerEngine
from tidegate.actor.engines.server_port import ServerDialect
from tidegate.actor.engines.server_probe import TOLERANCES, LocalProbe
from tidegate.actor.engines.server_process import ServerProcess
from tidegate.actor.engines.server_weights import ServerWeights
from tidegate.models.language_models import open_language_model, open_tokenizer
from tidegate.models.model_folder import pretrained_folder
from tidegate.runtime.clock import Clock

UPDATE_FOLDER = "server-weights"


def open_weights(setting: EngineSetting) -> ServerWeights:
    """Create the folders for versions; the folder to start the server from exists when this returns.

    Raises:
        ConfigError: ``policy.path`` is no model folder that a server can load.
    """
    policy = setting.policy
    root = Path(setting.server.update_dir or Path(setting.data_dir) / UPDATE_FOLDER)
    return ServerWeights(
        pretrained_folder(policy.path),
        root / f"actor-{setting.actor_index}",
        lora=policy.lora,
        dtype=policy.dtype,
    )


def open_server_engine(
    dialect: ServerDialect,
    setting: EngineSetting,
    control: EngineControl,
    clock: Clock,
    *,
    weights: ServerWeights,
    process: ServerProcess | None = None,
) -> ServerEngine:
    """The engine around a dialect.

    Raises:
        ConfigError: the model cannot be loaded for the probe, or has no tokenizer.
    """
    torch.set_num_threads(setting.threads)
    config, policy = setting.server, setting.policy
    probe = None
    if config.probe == "local":
        probe = LocalProbe(open_language_model(policy, trains=False, device=torch.device("cpu")))
    return ServerEngine(
        dialect,
        config=config,
        weights=weights,
        probe=probe,
        tolerance=config.probe_tolerance or TOLERANCES[policy.dtype],
        tokenizer=open_tokenizer(policy),
        context_length=policy.context_length,
        slots=setting.slots,
        control=control,
        clock=clock,
        process=process,
    )
