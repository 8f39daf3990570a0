"""The engine in process: tokens from a thread to the loop, versions by token, and an end for every request."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager

import msgspec
import numpy as np
import pytest
import torch

from tests.unit.actor.support import CHAR_LM, SAMPLER, group_task, snapshot, version
from tidegate.actor.engines.port import EngineControl
from tidegate.actor.engines.registry import EngineSetting
from tidegate.actor.engines.token_port import Continuation, TokenRequest
from tidegate.actor.engines.torch_engine import TorchEngine, open_engine
from tidegate.core.errors import RecordError, TidegateError, UnavailableError
from tidegate.core.records import Array, PolicySnapshot, Sampler
from tidegate.models.causal_lm import AttentionContext
from tidegate.models.char_lm import CharLm, CharLmSpec
from tidegate.models.char_tokenizer import EOS, CharTokenizer
from tidegate.runtime.clock import SystemClock
from tidegate.runtime.config import WorkloadConfig

SPEC = CharLmSpec(d_model=16, num_layers=2, num_heads=2, context_length=4096)
CONTEXT = (1, 5, 6, 7)


def params(seed: int) -> dict[str, Array]:
    model = CharLm(SPEC, generator=torch.Generator().manual_seed(seed))
    with torch.no_grad():
        model.token_embedding.weight.mul_(50.0)
        model.final_norm.bias.fill_(1.0)
    return model.to_arrays()


def request(
    name: str, *, max_new_tokens: int = 6, stop_ids: frozenset[int] = frozenset(), seed: int = 0
) -> TokenRequest:
    return TokenRequest(name, CONTEXT, Sampler(max_new_tokens=max_new_tokens), stop_ids, seed)


@asynccontextmanager
async def running(
    control: EngineControl, *, slots: int = 4, model: CharLm | None = None
) -> AsyncGenerator[TorchEngine]:
    engine = TorchEngine(
        model or CharLm(SPEC), CharTokenizer(), slots=slots, control=control, clock=SystemClock()
    )
    run = asyncio.create_task(engine.run())
    try:
        yield engine
    finally:
        control.stop = True
        await asyncio.wait({run})
        await engine.close()


async def until(holds: Callable[[], bool]) -> None:
    """Waits for conditions and not for times, because the engine runs in a thread."""
    while not holds():
        await asyncio.sleep(0.001)


@torch.no_grad()
def slow_logprobs(arrays: dict[str, Array], tokens: list[int]) -> list[float]:
    model = CharLm(SPEC)
    model.load_arrays(arrays)
    hidden, _ = model(torch.tensor([[*CONTEXT, *tokens[:-1]]]))
    logprobs_TV = model.next_logprobs(hidden[0, len(CONTEXT) - 1 :])
    return [float(logprobs_TV[position, token]) for position, token in enumerate(tokens)]


async def test_requests_wait_for_the_first_policy_and_are_written_under_it() -> None:
    control = EngineControl()
    async with running(control, slots=2) as engine:
        texts = [Continuation() for _ in range(5)]
        calls = [
            asyncio.create_task(engine.generate(request(str(seed), seed=seed, max_new_tokens=4 + seed), text))
            for seed, text in enumerate(texts)
        ]
        await asyncio.sleep(0)
        assert not any(text.tokens for text in texts)
        control.newest = snapshot(3, params(0))
        assert await asyncio.gather(*calls) == ["length"] * 5
        for seed, text in enumerate(texts):
            assert len(text.tokens) == 4 + seed
            assert [(span.version, span.start, span.stop) for span in text.spans()] == [
                (version(3), 0, 4 + seed)
            ]
            np.testing.assert_allclose(text.logprobs, slow_logprobs(params(0), text.tokens), atol=1e-5)
        assert control.num_swaps == 1
        assert control.serving is control.newest


async def test_a_stop_token_ends_a_text_and_belongs_to_it() -> None:
    control = EngineControl()
    control.newest = snapshot(0, params(0))
    async with running(control) as engine:
        free, stopped = Continuation(), Continuation()
        await engine.generate(request("free", max_new_tokens=20), free)
        stop_ids = frozenset({free.tokens[7]})
        reason = await engine.generate(request("stopped", max_new_tokens=20, stop_ids=stop_ids), stopped)
        assert reason == "stop"
        assert stopped.tokens == free.tokens[: free.tokens.index(free.tokens[7]) + 1]


class Swapping(CharLm):
    """Offers another policy during its tenth pass."""

    def __init__(self, control: EngineControl, policy: PolicySnapshot) -> None:
        super().__init__(SPEC)
        self.control = control
        self.policy = policy
        self.num_passes = 0

    def read(self, tokens_BT: torch.Tensor, attention: AttentionContext) -> torch.Tensor:
        self.num_passes += 1
        if self.num_passes == 10:
            self.control.newest = self.policy
        return super().read(tokens_BT, attention)


async def test_a_policy_offered_while_texts_are_written_makes_their_next_tokens_exactly() -> None:
    control = EngineControl()
    control.newest = snapshot(0, params(0))
    texts = [Continuation() for _ in range(6)]
    async with running(control, model=Swapping(control, snapshot(1, params(1)))) as engine:
        calls = [
            engine.generate(request(str(seed), seed=seed, max_new_tokens=40), text)
            for seed, text in enumerate(texts)
        ]
        await asyncio.gather(*calls)
    mixed = [text for text in texts if len(text.spans()) == 2]
    assert mixed, "the swap meets texts in flight"
    for text in texts:
        by_version = {
            version(0): slow_logprobs(params(0), text.tokens),
            version(1): slow_logprobs(params(1), text.tokens),
        }
        expected = [
            by_version[span.version][at] for span in text.spans() for at in range(span.start, span.stop)
        ]
        np.testing.assert_allclose(text.logprobs, expected, atol=2e-5)


async def test_a_cancelled_request_frees_its_slot_and_is_written_no_more() -> None:
    control = EngineControl()
    control.newest = snapshot(0, params(0))
    async with running(control, slots=1) as engine:
        first, second = Continuation(), Continuation()
        long = asyncio.create_task(engine.generate(request("long", max_new_tokens=4000), first))
        await until(lambda: len(first.tokens) > 3)
        next_one = asyncio.create_task(engine.generate(request("next"), second))
        waiting = asyncio.create_task(engine.generate(request("waiting"), Continuation()))
        await asyncio.sleep(0)
        waiting.cancel()
        long.cancel()
        await asyncio.wait({long, waiting})
        kept = list(first.tokens)
        assert await next_one == "length"
        assert first.tokens == kept
        assert len(kept) < 4000


async def test_a_text_resumes_from_the_tokens_of_a_stopped_engine() -> None:
    control = EngineControl()
    control.newest = snapshot(0, params(0))
    async with running(control) as engine:
        text = Continuation()
        call = asyncio.create_task(engine.generate(request("text", max_new_tokens=4000), text))
        await until(lambda: len(text.tokens) > 3)
        control.stop = True
        with pytest.raises(UnavailableError):
            await call
        with pytest.raises(UnavailableError):
            await engine.generate(request("late"), Continuation())
    written = text.tokens[:]
    other = EngineControl()
    other.newest = snapshot(0, params(0))
    async with running(other) as engine:
        rest = Continuation()
        resumed = msgspec.structs.replace(request("text", max_new_tokens=10), context=(*CONTEXT, *written))
        await engine.generate(resumed, rest)
    np.testing.assert_allclose(
        text.logprobs + rest.logprobs, slow_logprobs(params(0), written + rest.tokens), atol=2e-5
    )


async def test_a_failed_engine_reports_its_error_to_every_waiting_caller() -> None:
    control = EngineControl()
    control.newest = snapshot(0, params(0))
    engine = TorchEngine(CharLm(SPEC), CharTokenizer(), slots=1, control=control, clock=SystemClock())
    run = asyncio.create_task(engine.run())
    texts = [Continuation(), Continuation()]
    calls = [
        asyncio.create_task(engine.generate(request(str(index), max_new_tokens=4000), text))
        for index, text in enumerate(texts)
    ]
    await until(lambda: len(texts[0].tokens) > 3)
    control.newest = snapshot(1, {})
    with pytest.raises(TidegateError):
        await run
    for call in calls:
        with pytest.raises(UnavailableError):
            await call


async def test_exceptions_of_the_library_become_errors_of_the_service() -> None:
    class Broken(CharLm):
        def next_logprobs(
            self, hidden: torch.Tensor, *, temperature: float | torch.Tensor = 1.0
        ) -> torch.Tensor:
            raise RuntimeError("out of memory")

    control = EngineControl()
    control.newest = snapshot(0, params(0))
    engine = TorchEngine(Broken(SPEC), CharTokenizer(), slots=1, control=control, clock=SystemClock())
    run = asyncio.create_task(engine.run())
    with pytest.raises(UnavailableError):
        await engine.generate(request("any"), Continuation())
    with pytest.raises(TidegateError, match="out of memory"):
        await run


async def test_cancelling_the_loop_ends_its_thread_and_its_requests() -> None:
    control = EngineControl()
    control.newest = snapshot(0, params(0))
    engine = TorchEngine(CharLm(SPEC), CharTokenizer(), slots=1, control=control, clock=SystemClock())
    run = asyncio.create_task(engine.run())
    text = Continuation()
    call = asyncio.create_task(engine.generate(request("long", max_new_tokens=4000), text))
    await until(lambda: len(text.tokens) > 3)
    run.cancel()
    with pytest.raises(asyncio.CancelledError):
        await run
    with pytest.raises(UnavailableError):
        await call


async def test_oversized_requests_are_refused_before_they_wait() -> None:
    engine = TorchEngine(CharLm(SPEC), CharTokenizer(), slots=1, control=EngineControl(), clock=SystemClock())
    with pytest.raises(RecordError, match="context"):
        await engine.generate(request("long", max_new_tokens=SPEC.context_length), Continuation())
    cut_off = TokenRequest("cut-off", CONTEXT, Sampler(top_k=5), frozenset({EOS}))
    with pytest.raises(RecordError, match="truncates"):
        await engine.generate(cut_off, Continuation())


def test_policies_and_tasks_are_checked_before_they_are_served() -> None:
    setting = EngineSetting(
        workload=WorkloadConfig(kind="text", env="arithmetic", num_samples=3, sampler=SAMPLER),
        policy=CHAR_LM,
        seed=0,
        actor_index=0,
        slots=2,
    )
    engine = open_engine(setting, EngineControl(), SystemClock())
    assert engine.context_length == CHAR_LM.context_length
    spec = CharLmSpec(
        d_model=CHAR_LM.d_model,
        num_layers=CHAR_LM.num_layers,
        num_heads=CHAR_LM.num_heads,
        context_length=CHAR_LM.context_length,
    )
    arrays = CharLm(spec).to_arrays()
    engine.check_policy(snapshot(0, arrays))
    with pytest.raises(RecordError, match="not finite"):
        engine.check_policy(snapshot(0, arrays | {"final_norm.bias": np.full(16, np.nan, np.float32)}))
    with pytest.raises(RecordError):
        engine.check_policy(snapshot(0, params(0)))
    engine.check_task(group_task())
    with pytest.raises(RecordError, match="truncates"):
        engine.check_task(group_task(sampler=Sampler(top_p=0.9)))
    with pytest.raises(RecordError, match="prompt of 13 tokens"):
        engine.check_task(group_task(prompt="1" * 12))
