"""The engine over the contract of SGLang's interface (``sglang_server``); not tested against a real one."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Literal

import numpy as np
import pytest

from tests.integration.actor.engines.sglang_server import SglangServer
from tests.integration.actor.engines.vllm_harness import Harness, make_setting, opened, save_tokenizer
from tests.unit.models.tiny_llama import CONTEXT, make_folder, open_model
from tidegate.actor.engines.port import EngineControl
from tidegate.actor.engines.registry import open_token_engine
from tidegate.actor.engines.server_config import ServerConfig
from tidegate.actor.engines.server_engine import ServerEngine
from tidegate.actor.engines.token_port import Continuation
from tidegate.catalogue import inference_server as server_stats
from tidegate.core.errors import ConfigError
from tidegate.core.ids import LineageName, PolicyVersion
from tidegate.core.records import Array, PolicySnapshot
from tidegate.runtime.clock import SystemClock
from tidegate.runtime.config import PolicyConfig

pytestmark = pytest.mark.integration


class World:
    """A contract server, an engine on it, and versions of its model."""

    def __init__(self, server: SglangServer, harness: Harness, arrays: dict[str, Array]) -> None:
        self.server = server
        self.harness = harness
        self._arrays = arrays

    def snapshot(self, step: int) -> PolicySnapshot:
        noise = np.random.default_rng(step)
        tensors = {
            name: (array + 0.05 * noise.standard_normal(array.shape)).astype(np.float32)
            for name, array in self._arrays.items()
        }
        return PolicySnapshot(PolicyVersion(LineageName("0-a"), step), tensors)


@asynccontextmanager
async def world(
    folder: Path, *, cache_on_swap: Literal["recompute", "keep"] = "recompute", **server: bool
) -> AsyncGenerator[World]:
    model = make_folder(folder / "model", tied=True)
    save_tokenizer(model)
    contract = SglangServer(model, **server)
    async with contract.served() as url:
        control = EngineControl()
        policy = PolicyConfig(kind="transformers", path=str(model), context_length=CONTEXT)
        config = ServerConfig(url=url, retry_delay_s=0.02, drain_deadline_s=0.1)
        setting = make_setting(policy, folder, config, cache_on_swap=cache_on_swap)
        engine = open_token_engine("sglang", setting, control, SystemClock())
        assert isinstance(engine, ServerEngine)
        async with opened(engine, control) as harness:
            yield World(contract, harness, open_model(model).to_arrays())


def assert_each_token_is_its_versions(written: Continuation) -> None:
    labels = [span.version.step for span in written.spans() for _ in range(span.start, span.stop)]
    assert labels == written.tokens


@pytest.mark.parametrize("incremental", [False, True])
@pytest.mark.parametrize("cache_on_swap", ["recompute", "keep"])
async def test_requests_in_flight_survive_updates_and_each_token_keeps_its_version(
    tmp_path: Path, incremental: bool, cache_on_swap: Literal["recompute", "keep"]
) -> None:
    async with world(tmp_path, cache_on_swap=cache_on_swap, incremental=incremental) as at:
        await at.harness.serve(at.snapshot(1))
        written = [Continuation() for _ in range(4)]
        at.server.tokens_allowed = 10
        writings = [at.harness.write((3, 4, 5), one, num_tokens=40) for one in written]
        for step in (2, 3):
            await at.harness.until(lambda step=step: all(step - 1 in one.tokens for one in written))
            await at.harness.serve(at.snapshot(step))
            at.server.tokens_allowed += 15
        assert {await writing for writing in writings} == {"length"}
        for one in written:
            assert len(one.tokens) == 40
            assert_each_token_is_its_versions(one)
        assert len(at.server.requests) == 4


async def test_without_labels_requests_continue_as_new_ones(tmp_path: Path) -> None:
    async with world(tmp_path, labels=False) as at:
        await at.harness.serve(at.snapshot(1))
        at.server.tokens_allowed = 10
        writing = at.harness.write((3, 4, 5), written := Continuation(), num_tokens=40)
        await at.harness.until(lambda: len(written.tokens) > 5)
        await at.harness.serve(at.snapshot(2))
        at.server.tokens_allowed = CONTEXT
        assert await writing == "length"
        assert len(written.tokens) == 40
        assert_each_token_is_its_versions(written)
        assert len(at.server.requests) == 2


async def test_a_stop_token_ends_a_continuation(tmp_path: Path) -> None:
    async with world(tmp_path) as at:
        await at.harness.serve(at.snapshot(7))
        writing = at.harness.write((3, 4), written := Continuation(), num_tokens=9, stops=frozenset({7}))
        assert await writing == "stop"
        assert written.tokens == [7]


async def test_unloadable_weights_keep_the_previous_version(tmp_path: Path) -> None:
    async with world(tmp_path) as at:
        folders = tmp_path / "server-weights" / "actor-0"
        before, served, refused = at.snapshot(0), at.snapshot(1), at.snapshot(2)
        for snapshot in (before, served):
            await at.harness.serve(snapshot)
        # A version is in force before the folders of others are removed, which would take the next one's.
        await at.harness.until(lambda: not (folders / str(before.version)).exists())
        # The folder is missing on the server's disk.
        emptied = folders / str(refused.version)
        await asyncio.to_thread(emptied.mkdir)
        at.harness.control.newest = refused
        await at.harness.until(lambda: at.harness.control.figures[server_stats.UPDATES_REFUSED] > 0)
        written = Continuation()
        assert await at.harness.write((3, 4), written, num_tokens=3) == "length"
        assert_each_token_is_its_versions(written)
        await at.harness.until(lambda: at.harness.control.serving is refused)  # written again, and retried
        assert at.server.paused is None


async def test_only_vllm_servers_are_started_by_an_actor(tmp_path: Path) -> None:
    model = make_folder(tmp_path / "model", tied=True)
    policy = PolicyConfig(kind="transformers", path=str(model), context_length=CONTEXT)
    setting = make_setting(policy, tmp_path, ServerConfig(python="python"))
    with pytest.raises(ConfigError):
        open_token_engine("sglang", setting, EngineControl(), SystemClock())
