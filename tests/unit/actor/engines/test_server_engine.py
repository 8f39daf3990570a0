"""An engine over a server: versions, failed updates, lost servers. Only the server is a fake."""

import asyncio
import errno
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from safetensors import SafetensorError
from safetensors.torch import save_file  # pyright: ignore[reportUnknownVariableType] (safetensors)

from tests.unit.actor.engines.toy_server import ToyServer
from tests.unit.models.tiny_llama import CONTEXT, make_folder, open_model
from tidegate.actor.engines import server_engine, server_weights
from tidegate.actor.engines.port import EngineControl
from tidegate.actor.engines.server_config import ServerConfig
from tidegate.actor.engines.server_engine import ServerEngine, UpdateRefusedError
from tidegate.actor.engines.server_probe import LocalProbe
from tidegate.actor.engines.server_weights import ServerWeights, read_untied, write_folder
from tidegate.actor.engines.token_port import Continuation, FinishReason, TokenRequest
from tidegate.catalogue import inference_server as server_stats
from tidegate.catalogue.services import statistics_of
from tidegate.core.errors import CorruptionError, RecordError, UnavailableError
from tidegate.core.ids import LineageName, PolicyVersion
from tidegate.core.records import PolicySnapshot, Sampler
from tidegate.models.char_tokenizer import CharTokenizer
from tidegate.runtime.clock import SystemClock
from tidegate.runtime.config import LoraConfig

NO_STOP: frozenset[int] = frozenset()
# The deadlines are for a server that fails: a loaded machine misses none of them.
CONFIG = ServerConfig(retry_delay_s=0.02, drain_deadline_s=60.0, ready_deadline_s=60.0)


class Harness:
    """An engine, its server, and its control."""

    def __init__(self, folder: Path, server: ToyServer, config: ServerConfig = CONFIG) -> None:
        self.server = server
        self.control = EngineControl()
        self.model_folder = make_folder(folder / "model", tied=True)
        self.weights = ServerWeights(
            self.model_folder, folder / "weights", lora=LoraConfig(), dtype="float32"
        )
        self.arrays = open_model(self.model_folder).to_arrays()
        self.engine = ServerEngine(
            server,
            config=config,
            weights=self.weights,
            probe=LocalProbe(open_model(self.model_folder, trains=False)),
            tolerance=1e-3,
            tokenizer=CharTokenizer(),
            context_length=CONTEXT,
            slots=8,
            control=self.control,
            clock=SystemClock(),
        )
        self.running = asyncio.create_task(self.engine.run())

    def snapshot(self, step: int) -> PolicySnapshot:
        noise = np.random.default_rng(step)
        tensors = {
            name: (array + 0.05 * noise.standard_normal(array.shape)).astype(np.float32)
            for name, array in self.arrays.items()
        }
        return PolicySnapshot(PolicyVersion(LineageName("0-a"), step), tensors)

    async def serve(self, step: int) -> PolicySnapshot:
        snapshot = self.snapshot(step)
        self.control.newest = snapshot
        await self.until(lambda: self.control.serving is snapshot)
        return snapshot

    async def until(self, holds: object) -> None:
        assert callable(holds)
        while not holds():
            if self.running.done():
                self.running.result()
            await asyncio.sleep(0.002)

    def write(
        self, written: Continuation, *, num_tokens: int, stop_ids: frozenset[int] = NO_STOP
    ) -> "asyncio.Task[FinishReason]":
        request = TokenRequest("r", (3, 4), Sampler(max_new_tokens=num_tokens), stop_ids)
        return asyncio.create_task(self.engine.generate(request, written))

    async def close(self) -> None:
        self.control.stop = True
        await asyncio.gather(self.running, return_exceptions=True)
        await self.engine.close()


@pytest.fixture
async def harness(tmp_path: Path) -> AsyncIterator[Harness]:
    harness = Harness(tmp_path, ToyServer())
    yield harness
    await harness.close()


def assert_each_token_is_its_versions(written: Continuation) -> None:
    labels = [span.version.step for span in written.spans() for _ in range(span.start, span.stop)]
    assert labels == written.tokens


async def test_no_request_is_sent_before_a_version_passes_the_probe(harness: Harness) -> None:
    writing = harness.write(written := Continuation(), num_tokens=3)
    await asyncio.sleep(0.05)
    assert harness.server.num_requests == 0
    assert harness.control.away, "a task would only age"
    await harness.serve(1)
    await harness.until(lambda: not harness.control.away)
    assert await writing == "length"
    assert written.tokens == [1, 1, 1]
    assert harness.server.calls.index("probe") < harness.server.calls.index("stream")


async def test_a_stop_token_ends_a_continuation(harness: Harness) -> None:
    await harness.serve(7)
    written = Continuation()
    assert await harness.write(written, num_tokens=9, stop_ids=frozenset({7})) == "stop"
    assert written.tokens == [7]


@pytest.mark.parametrize("labels_pieces", [True, False])
async def test_requests_in_flight_survive_updates_and_each_token_keeps_its_version(
    tmp_path: Path, labels_pieces: bool
) -> None:
    harness = Harness(tmp_path, ToyServer(labels_pieces=labels_pieces))
    harness.server.wire_s = 0.02
    await harness.serve(1)
    written = [Continuation() for _ in range(6)]
    harness.server.tokens_allowed = 15
    writings = [harness.write(one, num_tokens=45) for one in written]
    for step in (2, 3):
        await harness.until(lambda step=step: all(step - 1 in one.tokens for one in written))
        await harness.serve(step)
        harness.server.tokens_allowed += 15
    assert {await writing for writing in writings} == {"length"}
    for one in written:
        assert len(one.tokens) == 45
        assert_each_token_is_its_versions(one)
    assert harness.server.num_requests == 6
    assert harness.control.figures[server_stats.STREAMS_CUT] == 0
    await harness.close()


async def test_tokens_without_proof_of_arrival_are_dropped_and_requests_continue(
    tmp_path: Path,
) -> None:
    class PromptAfterLoad(ToyServer):
        """What it makes after a load arrives at once."""

        async def load(self, folder: Path, *, label: str) -> None:
            await super().load(folder, label=label)
            self.wire_s = 0.0

    harness = Harness(tmp_path, PromptAfterLoad(counts=False))
    await harness.serve(1)
    harness.server.tokens_allowed = 15
    writing = harness.write(written := Continuation(), num_tokens=40)
    await harness.until(lambda: len(written.tokens) == 15)
    harness.server.wire_s = 3600.0
    harness.server.tokens_allowed = 25
    await harness.until(lambda: harness.server.num_made == 25)
    await harness.serve(2)
    assert await writing == "length"
    assert written.tokens == [1] * 15 + [2] * 25
    assert_each_token_is_its_versions(written)
    assert harness.server.num_requests == 2
    await harness.close()


async def test_a_cancelled_caller_does_not_change_later_labels(tmp_path: Path) -> None:
    # Tokens of a caller that is gone never arrive: an update that waited for them would do so until its deadline.
    harness = Harness(tmp_path, ToyServer(), msgspec.structs.replace(CONFIG, drain_deadline_s=600.0))
    harness.server.wire_s = 0.02
    await harness.serve(1)
    gone = harness.write(Continuation(), num_tokens=40)
    await asyncio.sleep(0.03)
    gone.cancel()
    writing = harness.write(written := Continuation(), num_tokens=40)
    await harness.until(lambda: len(written.tokens) > 3)
    await harness.serve(2)
    await writing
    assert_each_token_is_its_versions(written)
    writing = harness.write(written := Continuation(), num_tokens=40)
    await harness.until(lambda: len(written.tokens) > 3)
    num_cut = harness.control.figures[server_stats.STREAMS_CUT]
    await harness.serve(3)
    await writing
    assert_each_token_is_its_versions(written)
    assert harness.control.figures[server_stats.STREAMS_CUT] == num_cut
    await harness.close()


async def test_wrong_weights_are_refused_and_their_tokens_discarded(harness: Harness, tmp_path: Path) -> None:
    await harness.serve(1)
    # What vLLM did with a tied head: the body is the new one, the head the old.
    old = read_untied(harness.model_folder)
    wrong = harness.weights.merge(harness.snapshot(2).tensors) | {"lm_head.weight": old["lm_head.weight"]}
    write_folder(tmp_path / "wrong", wrong, model=harness.model_folder, dtype="float32")
    writing = harness.write(written := Continuation(), num_tokens=45)
    await harness.until(lambda: len(written.tokens) > 3)
    harness.server.loads_instead = tmp_path / "wrong"
    harness.control.newest = harness.snapshot(2)
    await harness.until(lambda: harness.control.figures[server_stats.UPDATES_REFUSED] > 0)
    harness.control.newest = newer = harness.snapshot(3)
    assert await writing == "length"
    assert 2 not in written.tokens
    assert_each_token_is_its_versions(written)
    await harness.until(lambda: harness.control.serving is newer)
    assert harness.control.figures[server_stats.UPDATES_REFUSED] == 1
    assert not harness.server.paused


async def test_a_shuffled_tensor_is_refused(harness: Harness, tmp_path: Path) -> None:
    await harness.serve(1)
    wrong = harness.weights.merge(harness.snapshot(2).tensors)
    name = "model.layers.1.self_attn.v_proj.weight"
    wrong[name] = wrong[name].flip(0)
    write_folder(tmp_path / "wrong", wrong, model=harness.model_folder, dtype="float32")
    harness.server.loads_instead = tmp_path / "wrong"
    harness.control.newest = harness.snapshot(2)
    await harness.until(lambda: harness.control.figures[server_stats.UPDATES_REFUSED] > 0)
    assert harness.control.serving is not None
    assert harness.control.serving.version.step == 1


@pytest.mark.parametrize("call", ["pause", "load", "resume", "probe"])
async def test_a_failed_call_keeps_the_previous_version_and_resumes_the_server(
    harness: Harness, call: str
) -> None:
    await harness.serve(1)
    harness.server.refusals.append(call)
    harness.control.newest = second = harness.snapshot(2)
    await harness.until(lambda: harness.control.figures[server_stats.UPDATES_REFUSED] > 0)
    written = Continuation()
    assert await harness.write(written, num_tokens=2) == "length"
    await harness.until(lambda: harness.control.serving is second)  # it was tried again
    assert not harness.server.paused
    assert_each_token_is_its_versions(written)


async def test_a_full_disk_keeps_the_previous_version_until_there_is_space(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    await harness.serve(1)
    refused = iter([SafetensorError("I/O error: No space left on device (os error 28)")])

    def save(*args: Any, **options: Any) -> None:
        for error in refused:
            raise error
        save_file(*args, **options)

    monkeypatch.setattr(server_weights, "save_file", save)
    await harness.serve(2)
    assert harness.control.figures[server_stats.UPDATES_REFUSED] == 1
    writing = harness.write(written := Continuation(), num_tokens=3)
    assert await writing == "length"
    assert written.tokens == [2, 2, 2]


async def test_versions_that_cannot_be_removed_end_no_engine(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    def busy(*kept: Path) -> None:
        raise OSError(errno.ENOTEMPTY, "Directory not empty")

    monkeypatch.setattr(harness.weights, "drop_all_but", busy)
    for step in (1, 2, 3):
        await harness.serve(step)
    harness.server.refusals.append("load")
    await harness.serve(4)
    assert harness.control.figures[server_stats.UPDATES_REFUSED] == 1
    writing = harness.write(written := Continuation(), num_tokens=3)
    assert await writing == "length"
    assert written.tokens == [4, 4, 4]


async def test_the_engine_fails_after_updates_that_fail_in_a_row(tmp_path: Path) -> None:
    harness = Harness(tmp_path, ToyServer())
    await harness.serve(1)
    harness.server.refuses = "0-a@2"
    harness.control.newest = harness.snapshot(2)
    with pytest.raises(UpdateRefusedError):
        await harness.running
    assert harness.control.figures[server_stats.UPDATES_REFUSED] == CONFIG.failures_max
    assert not harness.server.paused
    assert harness.server.weights == "0-a@1"
    with pytest.raises(UnavailableError):
        await harness.write(Continuation(), num_tokens=1)
    await harness.close()


async def test_a_lost_server_fails_its_requests_and_its_weights_are_reloaded(harness: Harness) -> None:
    await harness.serve(1)
    writing = harness.write(written := Continuation(), num_tokens=45)
    await harness.until(lambda: len(written.tokens) > 3)
    harness.server.die()
    with pytest.raises(UnavailableError):
        await writing
    kept = list(written.tokens)
    assert len(kept) > 3
    await harness.until(lambda: harness.control.away)
    harness.server.up = True
    await harness.until(lambda: not harness.control.away)
    writing = harness.write(written, num_tokens=5)
    assert await writing == "length"
    assert written.tokens == [*kept, 1, 1, 1, 1, 1]
    assert harness.server.weights == "0-a@1"
    assert harness.control.figures[server_stats.LOSSES] >= 1


async def test_a_server_that_refuses_to_say_what_it_serves_is_lost_and_does_not_end_the_engine(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_engine, "PING_PERIOD_S", 0.01)
    await harness.serve(1)
    harness.server.refusals.append("label")
    await harness.until(lambda: harness.control.figures[server_stats.LOSSES] >= 1)
    await harness.until(lambda: not harness.control.away)
    writing = harness.write(written := Continuation(), num_tokens=3)
    assert await writing == "length"
    assert written.tokens == [1, 1, 1]


async def test_every_statistic_is_a_metric(harness: Harness) -> None:
    await harness.serve(1)
    shown = {
        each for each in statistics_of("actor") if each.startswith("server_") and each.export is not None
    }
    assert harness.control.figures.keys() == shown


async def test_requests_in_flight_during_updates_are_counted(harness: Harness) -> None:
    await harness.serve(1)
    written = [Continuation(), Continuation()]
    harness.server.tokens_allowed = 15
    writings = [harness.write(one, num_tokens=45) for one in written]
    for step in (2, 3):
        await harness.until(lambda step=step: min(len(one.tokens) for one in written) > 3 * step)
        await harness.serve(step)
        harness.server.tokens_allowed += 15
    assert {await writing for writing in writings} == {"length"}
    assert harness.control.figures[server_stats.REQUESTS_KEPT] == 4


async def test_a_server_that_does_not_come_back_ends_the_engine(tmp_path: Path) -> None:
    harness = Harness(tmp_path, ToyServer(), ServerConfig(ready_deadline_s=0.05))
    await harness.serve(1)
    harness.server.die()
    with pytest.raises(UnavailableError):
        await harness.running
    await harness.close()


async def test_an_update_by_another_client_is_detected(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The question for the label, once a second, would find it as well, and take it for a restart.
    monkeypatch.setattr(server_engine, "PING_PERIOD_S", 3600.0)
    await harness.serve(5)
    harness.server.tokens_allowed = 15
    writing = harness.write(written := Continuation(), num_tokens=30)
    await harness.until(lambda: len(written.tokens) > 3)
    harness.server.weights = "0-a@6"
    harness.server.tokens_allowed = CONTEXT
    with pytest.raises(CorruptionError):
        await writing
    with pytest.raises(CorruptionError):
        await harness.running


async def test_stopping_ends_requests_with_their_tokens_so_far(harness: Harness) -> None:
    await harness.serve(1)
    harness.server.tokens_allowed = 15
    writing = harness.write(written := Continuation(), num_tokens=45)
    await harness.until(lambda: len(written.tokens) > 3)
    harness.control.stop = True
    with pytest.raises(UnavailableError):
        await writing
    await harness.running
    assert_each_token_is_its_versions(written)


async def test_a_context_that_does_not_fit_is_refused(harness: Harness) -> None:
    request = TokenRequest("r", tuple([3] * CONTEXT), Sampler(max_new_tokens=1), NO_STOP)
    with pytest.raises(RecordError):
        await harness.engine.generate(request, Continuation())
