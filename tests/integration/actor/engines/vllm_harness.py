"""Helpers for tests with vLLM: a tiny model, distinguishable versions of it, an engine."""

import asyncio
import os
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.unit.models.tiny_llama import make_folder
from tidegate.actor.engines.port import EngineControl
from tidegate.actor.engines.registry import EngineSetting
from tidegate.actor.engines.server_config import ServerConfig
from tidegate.actor.engines.server_engine import ServerEngine
from tidegate.actor.engines.server_http import ServerHttp
from tidegate.actor.engines.server_opening import open_server_engine, open_weights
from tidegate.actor.engines.server_port import ServerDialect
from tidegate.actor.engines.token_port import Continuation, FinishReason, TokenRequest
from tidegate.actor.engines.vllm_dialect import VllmDialect
from tidegate.core.ids import LineageName, PolicyVersion
from tidegate.core.records import PolicySnapshot, Sampler
from tidegate.models.language_models import open_language_model
from tidegate.runtime.clock import SystemClock
from tidegate.runtime.config import PolicyConfig, WorkloadConfig

ROOT = Path(__file__).parents[4]
CONTEXT = 4096
SLOTS = 4
NO_STOP: frozenset[int] = frozenset()
# A head of 32 is the smallest that vLLM's attention for CPUs computes.
SIZES: dict[str, Any] = {
    "hidden_size": 64,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "max_position_embeddings": CONTEXT,
}
# A server starts in 40 s on two free cores, and has taken more than 600 s on cores that others keep busy.
READY_S = 1500.0
# Of anything else, on such a machine.
DEADLINE_S = 240.0


def vllm_python() -> Path:
    """An interpreter that has vLLM; the test is skipped where there is none."""
    python = Path(os.environ.get("TIDEGATE_VLLM_PYTHON") or ROOT / ".build" / "vllm" / "bin" / "python")
    if not python.exists():
        pytest.skip("no vLLM here: `make vllm` installs it into .build/vllm (6 GB)")
    return python


def make_policy(folder: Path) -> PolicyConfig:
    """A tied model, as small ones are, with a tokenizer."""
    make_folder(folder, tied=True, **SIZES)
    save_tokenizer(folder)
    return PolicyConfig(kind="transformers", path=str(folder), context_length=CONTEXT)


def save_tokenizer(folder: Path) -> None:
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    words = {f"w{index}": index for index in range(64)}
    library: Any = PreTrainedTokenizerFast
    library(
        tokenizer_object=Tokenizer(models.WordLevel(words, unk_token="w0")), unk_token="w0", eos_token="w2"
    ).save_pretrained(folder)


class Versions:
    """Policies of one model, and their logprobs of a text."""

    def __init__(self, policy: PolicyConfig) -> None:
        self._model = open_language_model(policy, trains=False, device=torch.device("cpu"))
        self._base = self._model.to_arrays()
        self.made: dict[int, PolicySnapshot] = {}

    def random(self, step: int) -> PolicySnapshot:
        """A version with random weights."""
        noise = np.random.default_rng(step)
        tensors = {
            name: (array + 0.1 * noise.standard_normal(array.shape)).astype(np.float32)
            for name, array in self._base.items()
        }
        return self._keep(step, tensors)

    def writes_only(self, step: int, *, odd: bool) -> PolicySnapshot:
        """One that writes only odd, or only even tokens, whatever it read before: no layer adds to the embedding."""
        tensors = {name: array.copy() for name, array in self._base.items()}
        for name in tensors:
            if name.endswith(("o_proj.weight", "down_proj.weight")):
                tensors[name][:] = 0.0
        head = tensors["model.embed_tokens.weight"]
        head[:] = 0.0
        # Whatever token was read, the first place of what the head sees is the same, and is all that it sees.
        head[:, 0] = np.where(np.arange(len(head)) % 2 == int(odd), 8.0, 1.0)
        tensors["model.norm.weight"][:] = 0.0
        tensors["model.norm.weight"][0] = 1.0
        return self._keep(step, tensors)

    def _keep(self, step: int, tensors: dict[str, Any]) -> PolicySnapshot:
        self.made[step] = PolicySnapshot(PolicyVersion(LineageName("0-a"), step), tensors)
        return self.made[step]

    @torch.no_grad()
    def error(self, context: Sequence[int], written: Continuation, *, temperature: float = 1.0) -> float:
        """The largest difference between a token's logprob and what the version named for it gives it, read again."""
        worst = 0.0
        for span in written.spans():
            self._model.load_arrays(self.made[span.version.step].tensors)
            hidden, _ = self._model(torch.tensor([[*context, *written.tokens]]))
            logprobs = self._model.next_logprobs(hidden[0], temperature=temperature)
            for position in range(span.start, span.stop):
                given = float(logprobs[len(context) + position - 1, written.tokens[position]])
                worst = max(worst, abs(given - written.logprobs[position]))
        return worst


class Harness:
    """An engine on a server, and its control."""

    def __init__(self, engine: ServerEngine, control: EngineControl) -> None:
        self.engine = engine
        self.control = control
        self.running = asyncio.create_task(engine.run())

    async def until(self, holds: Callable[[], bool]) -> None:
        deadline_s = READY_S if self.control.serving is None else DEADLINE_S
        async with asyncio.timeout(deadline_s):
            while not holds():
                if self.running.done():
                    self.running.result()
                await asyncio.sleep(0.01)

    async def serve(self, snapshot: PolicySnapshot) -> None:
        self.control.newest = snapshot
        await self.until(lambda: self.control.serving is snapshot)

    def write(
        self,
        context: tuple[int, ...],
        written: Continuation,
        *,
        num_tokens: int,
        temperature: float = 1.0,
        stops: frozenset[int] = NO_STOP,
    ) -> "asyncio.Task[FinishReason]":
        sampler = Sampler(max_new_tokens=num_tokens, temperature=temperature)
        request = TokenRequest(f"r{context}", context, sampler, stops)
        return asyncio.create_task(self.engine.generate(request, written))


def make_setting(policy: PolicyConfig, folder: Path, server: ServerConfig, **changes: Any) -> EngineSetting:
    return EngineSetting(
        workload=WorkloadConfig(kind="text", env="arithmetic"),
        policy=policy,
        seed=1,
        actor_index=0,
        slots=SLOTS,
        server=server,
        data_dir=str(folder),
        **changes,
    )


@asynccontextmanager
async def opened(engine: ServerEngine, control: EngineControl) -> AsyncGenerator[Harness]:
    harness = Harness(engine, control)
    try:
        yield harness
    finally:
        control.stop = True
        await asyncio.gather(harness.running, return_exceptions=True)
        await engine.close()


def engine_at(
    url: str,
    policy: PolicyConfig,
    folder: Path,
    control: EngineControl,
    *,
    around: Callable[[VllmDialect], ServerDialect] = lambda dialect: dialect,
    cache_on_swap: Any = "recompute",
) -> ServerEngine:
    """An engine on a server that runs; ``around`` may wrap the dialect."""
    config = ServerConfig(url=url, retry_delay_s=0.2, ready_deadline_s=READY_S)
    setting = make_setting(policy, folder, config, cache_on_swap=cache_on_swap)
    http = ServerHttp(url, name="vLLM", num_streams=SLOTS, deadline_s=60.0, stall_s=300.0)
    dialect = VllmDialect(http, cache_on_swap=cache_on_swap, update_deadline_s=120.0)
    return open_server_engine(around(dialect), setting, control, SystemClock(), weights=open_weights(setting))
