"""The text engine: whole groups, one version a token, and its logprobs are that version's."""

import msgspec
import numpy as np
import pytest
import torch

from tests.unit.actor.support import (
    CHAR_LM,
    SAMPLER,
    group_task,
    segment_task,
    snapshot,
    text_engine,
    version,
)
from tidegate.actor.engines.port import EngineControl
from tidegate.core.cut_off import as_judged
from tidegate.core.errors import RecordError, UnavailableError
from tidegate.core.records import Array, PolicySnapshot, Sampler, Task
from tidegate.models.char_lm import CharLm, CharLmSpec
from tidegate.models.char_tokenizer import decode, encode_prompt
from tidegate.models.sampling import Generation

SPEC = CharLmSpec(
    d_model=CHAR_LM.d_model,
    num_layers=CHAR_LM.num_layers,
    num_heads=CHAR_LM.num_heads,
    context_length=CHAR_LM.context_length,
)


def model_of(arrays: dict[str, Array]) -> CharLm:
    model = CharLm(SPEC)
    model.load_arrays(arrays)
    return model


def params(seed: int) -> dict[str, Array]:
    return CharLm(SPEC, generator=torch.Generator().manual_seed(seed)).to_arrays()


@torch.no_grad()
def slow_logprobs(arrays: dict[str, Array], prompt: list[int], tokens: list[int]) -> list[float]:
    """Each token's logprob after its prefix, by a separate forward pass."""
    model = model_of(arrays)
    logprobs: list[float] = []
    for position, token in enumerate(tokens):
        hidden, _ = model(torch.tensor([prompt + tokens[:position]]))
        logprobs.append(float(model.next_logprobs(hidden[0, -1])[token]))
    return logprobs


def swap_after(
    num_tokens: int, control: EngineControl, policy: PolicySnapshot, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Offer a policy during generation, once ``num_tokens`` tokens are written."""
    step = Generation.step
    num_steps = 0

    def counted(generation: Generation) -> None:
        nonlocal num_steps
        step(generation)
        num_steps += 1
        if num_steps == num_tokens:
            control.newest = policy

    monkeypatch.setattr(Generation, "step", counted)


def test_groups_come_whole_with_texts_and_logprobs_of_their_tokens() -> None:
    control = EngineControl()
    engine = text_engine(control)
    control.newest = snapshot(3, params(0))
    tasks = [group_task("a", prompt="47+38="), group_task("b", prompt="1+1=", num_samples=3)]
    first, second = engine.generate(tasks)
    assert [rollouts.task.task_id for rollouts in (first, second)] == ["a", "b"]
    for rollouts in (first, second):
        assert len(rollouts.samples) == 3
        prompt = encode_prompt(rollouts.task.prompt)
        for sample in rollouts.samples:
            tokens = sample.tensors["tokens"].tolist()
            assert sample.tensors["prompt_tokens"].tolist() == prompt
            assert 1 <= len(tokens) <= SAMPLER.max_new_tokens
            assert sample.num_steps == len(tokens) == len(sample.tensors["behavior_logprobs"])
            assert sample.completion == decode(tokens)
            assert [(span.version, span.start, span.stop) for span in sample.spans] == [
                (version(3), 0, len(tokens))
            ]
            np.testing.assert_allclose(
                sample.tensors["behavior_logprobs"], slow_logprobs(params(0), prompt, tokens), atol=1e-4
            )


@pytest.mark.parametrize("num_tokens", [1, 2, 3])
def test_policy_offered_between_two_tokens_makes_the_next_one_exactly(
    num_tokens: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, new = params(1), params(2)
    control = EngineControl()
    engine = text_engine(control)
    control.newest = snapshot(0, old)
    swap_after(num_tokens, control, snapshot(1, new), monkeypatch)
    [rollouts] = engine.generate([group_task(num_samples=16)])
    mixed = [sample for sample in rollouts.samples if len(sample.spans) == 2]
    assert mixed, "some completion outlives the swap"
    assert {sample.spans[1].start for sample in mixed} == {num_tokens}
    for sample in rollouts.samples:
        tokens = sample.tensors["tokens"].tolist()
        prompt = encode_prompt("47+38=")
        by_version = {
            version(0): slow_logprobs(old, prompt, tokens),
            version(1): slow_logprobs(new, prompt, tokens),
        }
        expected = [
            by_version[span.version][at] for span in sample.spans for at in range(span.start, span.stop)
        ]
        np.testing.assert_allclose(sample.tensors["behavior_logprobs"], expected, atol=1e-4)


def test_tasks_with_other_samplers_share_no_batch() -> None:
    control = EngineControl()
    engine = text_engine(control)
    control.newest = snapshot(0, params(0))
    short = group_task("short", num_samples=5, sampler=msgspec.structs.replace(SAMPLER, max_new_tokens=1))
    rollouts = {
        str(item.task.task_id): item for item in engine.generate([group_task("a"), short, group_task("b")])
    }
    assert set(rollouts) == {"a", "b", "short"}
    assert [sample.num_steps for sample in rollouts["short"].samples] == [1] * 5


@pytest.mark.parametrize(
    ("task", "problem"),
    [
        (segment_task(), "is a segment of 'CartPole-v1'"),
        (msgspec.structs.replace(group_task(), env_id="maze"), "this actor answers 'arithmetic'"),
        (group_task(prompt="47×38="), "not in the alphabet"),
        (group_task(prompt="1111111+2222222="), "the context holds 12"),
        (group_task(sampler=Sampler(temperature=0.0, max_new_tokens=4)), "at temperature 0"),
        (group_task(sampler=Sampler(top_p=0.9, max_new_tokens=4)), "truncates its samples"),
        (group_task(sampler=Sampler(top_k=5, max_new_tokens=4)), "truncates its samples"),
        (group_task(num_samples=0), "0 samples"),
        (group_task(sampler=Sampler(max_new_tokens=0)), "0 new tokens"),
        (group_task(sampler=Sampler(temperature=float("nan"), max_new_tokens=4)), "temperature nan"),
    ],
)
def test_task_that_cannot_be_sampled_is_refused_alone(task: Task, problem: str) -> None:
    engine = text_engine(EngineControl())
    engine.check_task(group_task())
    with pytest.raises(RecordError, match=problem):
        engine.check_task(task)


def test_policy_that_does_not_fit_is_named_and_the_old_one_stays() -> None:
    engine = text_engine(EngineControl())
    engine.check_policy(snapshot(0, params(0)))
    smaller = CharLm(CharLmSpec(d_model=8, num_layers=2, num_heads=2, context_length=12)).to_arrays()
    with pytest.raises(RecordError, match="shape"):
        engine.check_policy(snapshot(1, smaller))
    name = next(iter(params(0)))
    with pytest.raises(RecordError, match="not finite"):
        engine.check_policy(snapshot(1, params(0) | {name: np.full_like(params(0)[name], np.inf)}))


def test_policy_with_a_critic_is_served() -> None:
    engine = text_engine(EngineControl(), policy=msgspec.structs.replace(CHAR_LM, value_head=True))
    critic = CharLm(msgspec.structs.replace(SPEC, value_head=True))
    engine.check_policy(snapshot(0, critic.to_arrays()))


def test_greedy_evaluation_answers_each_prompt_with_the_likeliest_tokens() -> None:
    control = EngineControl()
    engine = text_engine(control, evaluation_batch=2)
    control.newest = snapshot(7, params(4))
    prompts = ["10+20=", "1+1=", "99+99=", "47+38=", "5+5="]
    completed = engine.complete(prompts, Sampler(temperature=0.0, max_new_tokens=4))
    assert completed.version == version(7)
    model = model_of(params(4))
    for prompt, completion in zip(prompts, completed.completions, strict=True):
        tokens: list[int] = []
        while len(tokens) < 4 and (not tokens or tokens[-1] != 2):
            hidden, _ = model(torch.tensor([encode_prompt(prompt) + tokens]))
            tokens.append(int(model.head(hidden[0, -1]).argmax()))
        assert completion == as_judged(decode(tokens), finish_reason="stop" if tokens[-1] == 2 else "length")


def test_evaluation_keeps_one_version_while_a_newer_one_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    control = EngineControl()
    engine = text_engine(control, evaluation_batch=1)
    control.newest = snapshot(0, params(1))
    swap_after(1, control, snapshot(1, params(2)), monkeypatch)
    completed = engine.complete(["1+1=", "2+2=", "3+3="], SAMPLER)
    assert completed.version == version(0)
    assert control.num_swaps == 1


def test_stop_ends_generation_between_tokens() -> None:
    control = EngineControl()
    engine = text_engine(control)
    control.newest = snapshot(0, params(0))
    control.stop = True
    assert engine.generate([group_task()]) == []
    with pytest.raises(UnavailableError, match="draining"):
        engine.complete(["1+1="], SAMPLER)


@pytest.mark.parametrize("num_tokens", [0, 1, 3])
def test_cut_task_leaves_the_batch_and_the_others_are_unchanged(
    num_tokens: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    control = EngineControl()
    engine = text_engine(control)
    control.newest = snapshot(0, params(0))
    tasks = [group_task("a", num_samples=4), group_task("b", prompt="1+1=", num_samples=4)]
    step = Generation.step

    def counted(generation: Generation) -> None:
        step(generation)
        if generation.num_steps == num_tokens:
            control.cut = frozenset([tasks[0].task_id])

    monkeypatch.setattr(Generation, "step", counted)
    if num_tokens == 0:
        control.cut = frozenset([tasks[0].task_id])
    [rollouts] = engine.generate(tasks)
    assert rollouts.task.task_id == "b"
    assert control.running is None
    for sample in rollouts.samples:
        tokens = sample.tensors["tokens"].tolist()
        expected = slow_logprobs(params(0), encode_prompt("1+1="), tokens)
        np.testing.assert_allclose(sample.tensors["behavior_logprobs"], expected, atol=1e-4)


def test_batch_of_cut_tasks_ends_at_once_without_rollouts() -> None:
    control = EngineControl()
    engine = text_engine(control)
    control.newest = snapshot(0, params(0))
    task = group_task(num_samples=4)
    control.cut = frozenset([task.task_id])
    assert engine.generate([task]) == []
    assert control.position == 0


def test_engine_reports_its_batch_and_position(monkeypatch: pytest.MonkeyPatch) -> None:
    control = EngineControl()
    engine = text_engine(control)
    control.newest = snapshot(0, params(0))
    task = group_task(num_samples=32)
    step = Generation.step
    reported: list[tuple[int, int]] = []

    def looked(generation: Generation) -> None:
        assert control.running is not None
        assert control.running.task_ids == {task.task_id}
        assert control.running.oldest == version(0), "the first version counts, whatever is served later"
        reported.append((control.position, generation.num_steps))
        control.newest = snapshot(generation.num_steps + 1, params(generation.num_steps))
        step(generation)

    monkeypatch.setattr(Generation, "step", looked)
    engine.generate([task])
    assert reported == [(position, position) for position in range(len(reported))]
    assert len(reported) > 1
    assert control.running is None
