"""The engine ``vllm``: a vLLM server, external or this actor's own child, with the arguments it needs."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from tidegate.actor.engines.port import EngineControl
from tidegate.actor.engines.registry import EngineSetting
from tidegate.actor.engines.server_config import ServerConfig
from tidegate.actor.engines.server_engine import ServerEngine
from tidegate.actor.engines.server_http import ServerHttp
from tidegate.actor.engines.server_opening import open_server_engine, open_weights
from tidegate.actor.engines.server_process import ServerProcess
from tidegate.actor.engines.vllm_dialect import VllmDialect
from tidegate.runtime.clock import Clock
from tidegate.runtime.config import PolicyConfig
from tidegate.runtime.ports import LOOPBACK, pick_ports

LOG_FILE = "server.log"

# The development mode opens the calls that pause and update. The rest is for the build for CPUs: no thread is pinned to
# a core, and the cache is one GiB and not all free memory.
SERVER_ENVIRONMENT = {
    "VLLM_SERVER_DEV_MODE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_CPU_KVCACHE_SPACE": "1",
}


def server_command(
    policy: PolicyConfig, *, start: Path, port: int, slots: int, seed: int, arguments: Sequence[str] = ()
) -> list[str]:
    """The module and arguments of a server, to follow the path of a Python that has vLLM.

    ``start``: the folder that ``server_weights`` wrote. ``seed``: of its random generator; equal seeds draw equal
    completions. ``arguments`` come last and override the others.
    """
    return [
        *("-m", "vllm.entrypoints.openai.api_server"),
        *("--model", str(start), "--dtype", policy.dtype),
        *("--host", LOOPBACK, "--port", str(port)),
        *("--max-model-len", str(policy.context_length), "--max-num-seqs", str(slots), "--seed", str(seed)),
        # Logprobs under the sampler that drew the tokens, and not at temperature 1.
        *("--logprobs-mode", "processed_logprobs"),
        # Requests by token ids, with the versions of their tokens in the answer.
        "--enable-scale-out",
        *("--skip-tokenizer-init", "--disable-uvicorn-access-log"),
        *arguments,
    ]


def open_engine(setting: EngineSetting, control: EngineControl, clock: Clock) -> ServerEngine:
    """The engine; ``run`` starts the actor's own server.

    Raises:
        ConfigError: the model's folder is unsuitable.
    """
    config = setting.server
    weights = open_weights(setting)
    url, process = config.url, None
    if config.python:
        url, process = _own_server(config, setting, start=weights.start, now_s=clock.now_s())
    http = ServerHttp(
        url,
        name="vLLM",
        num_streams=setting.slots,
        deadline_s=config.control_deadline_s,
        stall_s=config.stall_deadline_s,
    )
    dialect = VllmDialect(
        http, cache_on_swap=setting.cache_on_swap, update_deadline_s=config.update_deadline_s
    )
    return open_server_engine(dialect, setting, control, clock, weights=weights, process=process)


def _own_server(
    config: ServerConfig, setting: EngineSetting, *, start: Path, now_s: float
) -> tuple[str, ServerProcess]:
    [port] = pick_ports(1)
    # The clock's part prevents a restarted actor from drawing the same completions again.
    seeds = np.random.SeedSequence([setting.seed, setting.actor_index, int(now_s * 1e3)])
    command = server_command(
        setting.policy,
        start=start,
        port=port,
        slots=setting.slots,
        seed=int(seeds.generate_state(1)[0]),
        arguments=config.arguments,
    )
    process = ServerProcess(
        # Not resolved: the interpreter of a virtual environment is a link, and its path selects the environment.
        [str(Path(config.python).absolute()), *command],
        environment={**SERVER_ENVIRONMENT, "OMP_NUM_THREADS": str(setting.threads)},
        log=start.with_name(LOG_FILE),
    )
    return f"http://{LOOPBACK}:{port}", process
