"""The engine ``sglang``: an SGLang server that an operator starts."""

from tidegate.actor.engines.port import EngineControl
from tidegate.actor.engines.registry import EngineSetting
from tidegate.actor.engines.server_engine import ServerEngine
from tidegate.actor.engines.server_http import ServerHttp
from tidegate.actor.engines.server_opening import open_server_engine, open_weights
from tidegate.actor.engines.sglang_dialect import SglangDialect
from tidegate.core.errors import ConfigError
from tidegate.runtime.clock import Clock


def open_engine(setting: EngineSetting, control: EngineControl, clock: Clock) -> ServerEngine:
    """The engine.

    Raises:
        ConfigError: the model's folder is unsuitable, or the config asks to start the server, which only vLLM supports.
    """
    config = setting.server
    if config.python:
        raise ConfigError(
            "actor.server.python starts vLLM servers, and actor.engine is sglang",
            fix="start the SGLang server as docs/engines.md describes, and set actor.server.url",
        )
    http = ServerHttp(
        config.url,
        name="SGLang",
        num_streams=setting.slots,
        deadline_s=config.control_deadline_s,
        stall_s=config.stall_deadline_s,
    )
    dialect = SglangDialect(
        http, cache_on_swap=setting.cache_on_swap, update_deadline_s=config.update_deadline_s
    )
    return open_server_engine(dialect, setting, control, clock, weights=open_weights(setting))
