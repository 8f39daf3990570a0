"""The engine over a real vLLM server, on a tiny random Llama with a tied head. Skipped where vLLM is not installed."""

import os
import signal
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import psutil
import pytest
import pytest_asyncio

from tests.integration.actor.engines.vllm_harness import (
    READY_S,
    SLOTS,
    Versions,
    engine_at,
    make_policy,
    make_setting,
    opened,
    vllm_python,
)
from tests.support.broker import free_port
from tidegate.actor.engines.port import EngineControl
from tidegate.actor.engines.server_config import ServerConfig
from tidegate.actor.engines.server_port import ProbeAnswer, ServerDialect, ServerRequest, TokenPiece
from tidegate.actor.engines.server_process import ServerProcess
from tidegate.actor.engines.server_weights import read_untied, write_folder
from tidegate.actor.engines.token_port import Continuation
from tidegate.actor.engines.vllm_engine import SERVER_ENVIRONMENT, open_engine, server_command
from tidegate.catalogue import inference_server as server_stats
from tidegate.core.errors import UnavailableError
from tidegate.runtime.clock import SystemClock
from tidegate.runtime.config import PolicyConfig

pytestmark = [
    pytest.mark.integration,
    pytest.mark.slow,
    pytest.mark.extended,
    pytest.mark.timeout(1800),  # a server starts in 40 s alone on two cores, in minutes beside others
    pytest.mark.asyncio(loop_scope="module"),
]

# float32 on both sides, other kernels: 1e-4 was the largest of thousands of tokens.
TOLERANCE = 1e-3

# Long enough for an update to find all requests in flight, also where other work slows the actor down.
NUM_TOKENS = 3000


class Server:
    """One server for the tests of this file, because its start is slow."""

    def __init__(self, url: str, policy: PolicyConfig) -> None:
        self.url = url
        self.policy = policy
        self.versions = Versions(policy)


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def server(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Server]:
    folder = tmp_path_factory.mktemp("vllm")
    policy = make_policy(folder / "model")
    start = folder / "start"
    write_folder(start, read_untied(folder / "model"), model=folder / "model", dtype="float32")
    process, url = start_server(policy, start)
    await process.start()
    yield Server(url, policy)
    await process.stop()


def is_at(written: Continuation, step: int) -> bool:
    """Whether its newest token is of a version; also when nothing is left to write."""
    spans = written.spans()
    return len(written.tokens) == NUM_TOKENS or (bool(spans) and spans[-1].version.step == step)


def start_server(policy: PolicyConfig, start: Path) -> tuple[ServerProcess, str]:
    port = free_port()
    command = server_command(policy, start=start, port=port, slots=SLOTS, seed=3)
    process = ServerProcess(
        [str(vllm_python()), *command],
        environment=SERVER_ENVIRONMENT,
        log=start.with_name(f"{start.name}.log"),
    )
    return process, f"http://127.0.0.1:{port}"


async def test_tokens_come_with_the_logprobs_of_the_sampler_that_drew_them(
    server: Server, tmp_path: Path
) -> None:
    control = EngineControl()
    async with opened(engine_at(server.url, server.policy, tmp_path, control), control) as harness:
        await harness.serve(server.versions.random(1))
        written = Continuation()
        assert await harness.write((3, 4, 5), written, num_tokens=20) == "length"
        assert server.versions.error((3, 4, 5), written) < TOLERANCE
        hot = Continuation()
        await harness.write((3, 4, 5), hot, num_tokens=20, temperature=1.5)
        assert server.versions.error((3, 4, 5), hot, temperature=1.5) < TOLERANCE
        greedy, again = Continuation(), Continuation()
        await harness.write((3, 4, 5), greedy, num_tokens=20, temperature=0.0)
        await harness.write((3, 4, 5), again, num_tokens=20, temperature=0.0)
        assert greedy.tokens == again.tokens
        assert set(greedy.logprobs) == {0.0}
        stopped = Continuation()
        stops = frozenset({greedy.tokens[3]})
        assert await harness.write((3, 4, 5), stopped, num_tokens=20, temperature=0.0, stops=stops) == "stop"
        assert stopped.tokens == greedy.tokens[: greedy.tokens.index(greedy.tokens[3]) + 1]


async def test_requests_in_flight_survive_updates_and_each_token_has_its_version(
    server: Server, tmp_path: Path
) -> None:
    control = EngineControl()
    async with opened(engine_at(server.url, server.policy, tmp_path, control), control) as harness:
        await harness.serve(server.versions.random(11))
        contexts = [(3, 4, 5 + index) for index in range(SLOTS)]
        written = [Continuation() for _ in contexts]
        writings = [
            harness.write(context, one, num_tokens=NUM_TOKENS)
            for context, one in zip(contexts, written, strict=True)
        ]
        for step in (12, 13, 14):
            await harness.until(lambda step=step: all(is_at(one, step - 1) for one in written))
            await harness.serve(server.versions.random(step))
        assert {await writing for writing in writings} == {"length"}
        assert {len(one.tokens) for one in written} == {NUM_TOKENS}
        assert min(len(one.spans()) for one in written) >= 2
        # Read again under each version, every token has the logprob of the version it is labelled with.
        errors = [server.versions.error(context, one) for context, one in zip(contexts, written, strict=True)]
        assert max(errors) < TOLERANCE
        assert harness.control.figures[server_stats.STREAMS_CUT] == 0
        assert harness.control.figures[server_stats.PROBE_ERROR] < TOLERANCE


async def test_no_token_of_kept_caches_is_labelled_with_the_version_after_or_before_it(
    server: Server, tmp_path: Path
) -> None:
    control = EngineControl()
    engine = engine_at(server.url, server.policy, tmp_path, control, cache_on_swap="keep")
    async with opened(engine, control) as harness:
        await harness.serve(server.versions.writes_only(20, odd=False))
        written = [Continuation() for _ in range(SLOTS)]
        writings = [
            harness.write((3, 4, 5 + index), one, num_tokens=NUM_TOKENS) for index, one in enumerate(written)
        ]
        for step in (21, 22, 23):
            await harness.until(lambda step=step: all(is_at(one, step - 1) for one in written))
            await harness.serve(server.versions.writes_only(step, odd=step % 2 == 1))
        assert {await writing for writing in writings} == {"length"}
        for one in written:
            for span in one.spans():
                assert {token % 2 for token in one.tokens[span.start : span.stop]} == {span.version.step % 2}
        assert min(len(one.spans()) for one in written) >= 2
        assert harness.control.figures[server_stats.STREAMS_CUT] == 0


async def test_a_wrong_update_is_refused_and_rolled_back_with_requests_in_flight(
    server: Server, tmp_path: Path
) -> None:
    control, spoiling = EngineControl(), list[Spoiling]()

    def around(dialect: ServerDialect) -> ServerDialect:
        spoiling.append(Spoiling(dialect, folder=tmp_path / "spoiled", model=Path(server.policy.path)))
        return spoiling[0]

    engine = engine_at(server.url, server.policy, tmp_path, control, around=around)
    async with opened(engine, control) as harness:
        first = server.versions.random(31)
        await harness.serve(first)
        for number, way in enumerate(("old head", "shuffled"), start=1):
            written = Continuation()
            writing = harness.write((3, 4, 5), written, num_tokens=NUM_TOKENS)
            await harness.until(lambda written=written: len(written.tokens) > 20)
            spoiling[0].way = way
            control.newest = server.versions.random(31 + number)
            await harness.until(
                lambda number=number: harness.control.figures[server_stats.UPDATES_REFUSED] == number
            )
            assert harness.control.figures[server_stats.PROBE_ERROR] > 10 * TOLERANCE
            control.newest = first
            assert await writing == "length"
            assert [span.version for span in written.spans()] == [first.version]
            assert server.versions.error((3, 4, 5), written) < TOLERANCE
        await harness.serve(server.versions.random(39))  # and the next good one is taken
        assert harness.control.figures[server_stats.UPDATES_REFUSED] == 2


async def test_a_server_started_with_a_tied_head_never_serves_wrong_weights(tmp_path: Path) -> None:
    vllm_python()
    policy = make_policy(tmp_path / "model")
    process, url = start_server(policy, tmp_path / "model")
    versions, control = Versions(policy), EngineControl()
    figures = control.figures
    await process.start()
    try:
        async with opened(engine_at(url, policy, tmp_path, control), control) as harness:
            for step in (1, 2):
                wanted = control.newest = versions.random(step)
                await harness.until(
                    lambda wanted=wanted: (
                        control.serving is wanted or figures[server_stats.UPDATES_REFUSED] > 0
                    )
                )
                if control.serving is not wanted:
                    assert figures[server_stats.PROBE_ERROR] > 10 * TOLERANCE
                    return
                written = Continuation()
                await harness.write((3, 4, 5), written, num_tokens=20)
                assert versions.error((3, 4, 5), written) < TOLERANCE
    finally:
        await process.stop()


async def test_a_server_killed_while_it_writes_loses_no_token_and_is_restarted(
    tmp_path: Path,
) -> None:
    python = vllm_python()
    policy = make_policy(tmp_path / "model")
    versions, control = Versions(policy), EngineControl()
    config = ServerConfig(python=str(python), ready_deadline_s=READY_S)
    engine = open_engine(make_setting(policy, tmp_path, config), control, SystemClock())
    async with opened(engine, control) as harness:
        await harness.serve(versions.random(1))
        written = Continuation()
        writing = harness.write((3, 4, 5), written, num_tokens=NUM_TOKENS)
        await harness.until(lambda: len(written.tokens) > 20)
        killed = server_processes()
        for process in killed:
            os.kill(process.pid, signal.SIGKILL)
        with pytest.raises(UnavailableError):
            await writing
        kept = list(written.tokens)
        assert len(kept) > 20
        writing = harness.write(
            (3, 4, 5, *kept), written, num_tokens=10
        )  # waits for the server that is started
        assert await writing == "length"
        assert written.tokens[: len(kept)] == kept
        assert len(written.tokens) == len(kept) + 10
        assert versions.error((3, 4, 5), written) < TOLERANCE
        assert harness.control.figures[server_stats.LOSSES] >= 1
        last = server_processes()
    gone, alive = psutil.wait_procs(last, timeout=30)
    assert gone
    assert alive == []


def server_processes() -> Sequence[psutil.Process]:
    """Children of this process whose command is vLLM's, and theirs."""
    ours = psutil.Process().children(recursive=True)
    roots = [process for process in ours if "vllm.entrypoints.openai.api_server" in process.cmdline()]
    # If another test runs a server too, only the youngest belongs to this test.
    root = max(roots, key=lambda process: process.create_time())
    return [root, *root.children(recursive=True)]


class Spoiling:
    """A proxy between engine and server: the next load silently takes another folder."""

    def __init__(self, dialect: ServerDialect, *, folder: Path, model: Path) -> None:
        self._dialect = dialect
        self._folder = folder
        self._model = model
        self.labels_pieces = dialect.labels_pieces
        self.way = ""

    async def load(self, folder: Path, *, label: str) -> None:
        if self.way:
            folder = self._spoiled(folder)
        await self._dialect.load(folder, label=label)

    def _spoiled(self, folder: Path) -> Path:
        tensors = read_untied(folder)
        if self.way == "old head":
            tensors["lm_head.weight"] = read_untied(self._model)["lm_head.weight"]
        else:
            name = "model.layers.1.self_attn.v_proj.weight"
            tensors[name] = tensors[name].flip(0)
        spoiled = self._folder.with_name(f"{self._folder.name} {self.way}")
        write_folder(spoiled, tensors, model=folder, dtype="float32")
        self.way = ""
        return spoiled

    async def check(self, *, context_length: int) -> None:
        await self._dialect.check(context_length=context_length)

    def stream(self, request: ServerRequest) -> AbstractAsyncContextManager[AsyncIterator[TokenPiece]]:
        return self._dialect.stream(request)

    async def pause(self) -> None:
        await self._dialect.pause()

    async def resume(self) -> None:
        await self._dialect.resume()

    async def label(self) -> str:
        return await self._dialect.label()

    async def tokens_made(self) -> int | None:
        return await self._dialect.tokens_made()

    async def probe(self, tokens: Sequence[int], *, temperature: float) -> ProbeAnswer:
        return await self._dialect.probe(tokens, temperature=temperature)

    async def close(self) -> None:
        await self._dialect.close()
