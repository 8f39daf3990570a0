"""Whatever joins and leaves around a text, it is written as if it were alone."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.examples import num_examples
from tests.unit.models.continuous_support import (
    SPEC,
    CountingLm,
    Text,
    collect,
    make_model,
    new_row,
    open_batch,
    slow_logprobs,
    write_all,
)
from tidegate.core.errors import BackpressureError, ConfigError, RecordError
from tidegate.models.char_tokenizer import EOS, VOCABULARY_SIZE
from tidegate.models.completion_batch import completion_logprobs, pack_completions
from tidegate.models.continuous import GenerationRow

TOLERANCE = 1e-5
CONTEXTS = st.sampled_from([(1, 5, 6, 7), (1, 9), (1, 4, 4, 4, 8, 10), (1, *range(3, 30))])
ROWS = st.builds(
    GenerationRow,
    context=CONTEXTS,
    max_new_tokens=st.integers(1, 12),
    temperature=st.sampled_from([1.0, 0.7, 1.3]),
    stop_ids=st.sampled_from([frozenset({EOS}), frozenset[int](), frozenset({EOS, 5})]),
    seed=st.integers(0, 2**64 - 1),
)
# What happens before a step: rows come, the policy is replaced, or one of the rows is stopped.
EVENTS = st.one_of(st.lists(ROWS, max_size=5), st.just("swap"), st.integers(0, 7))


@pytest.mark.slow
@settings(max_examples=num_examples(60), deadline=None)
@given(
    schedule=st.lists(EVENTS, min_size=1, max_size=14),
    slots=st.integers(1, 6),
    tokens_per_pass=st.sampled_from([8, 16, 64]),
)
def test_each_logprob_is_its_versions_whatever_comes_goes_and_is_swapped(
    schedule: list[list[GenerationRow] | str | int], slots: int, tokens_per_pass: int
) -> None:
    policies = [make_model(seed, eos_bias=2.0) for seed in (0, 1)]
    arrays = [policy.to_arrays() for policy in policies]
    model = make_model(0, eos_bias=2.0)
    batch = open_batch(model, slots=slots, tokens_per_pass=tokens_per_pass)
    texts: dict[int, Text] = {}
    stopped: set[int] = set()
    serving = 0
    steps = 0
    while steps < len(schedule) or batch.num_rows:
        match schedule[steps] if steps < len(schedule) else None:
            case list(rows):
                texts |= dict(zip(batch.add(rows), map(Text, rows), strict=True))
            case "swap":
                serving = 1 - serving
                model.load_arrays(arrays[serving])
                batch.refresh_cache()
            case int(row):
                batch.stop(row)
                stopped |= {row} & {key for key, text in texts.items() if not text.reason}
            case _:
                pass
        collect(batch.step(), texts, policy=serving)
        assert batch.num_live <= slots
        assert batch.cache_bytes <= batch.cache_bytes_max
        steps += 1
        assert steps < 2000, "a batch gets done"
    for key, text in texts.items():
        assert bool(text.reason) == (key not in stopped)
        if text.reason == "stop":
            assert text.tokens[-1] in text.new.stop_ids
        elif text.reason == "length":
            assert len(text.tokens) == text.new.max_new_tokens
            assert not text.new.stop_ids & set(text.tokens)
        if text.tokens:
            by_policy = [slow_logprobs(policy, text) for policy in policies]
            expected = [by_policy[policy][position] for position, policy in enumerate(text.policies)]
            np.testing.assert_allclose(text.logprobs, expected, atol=TOLERANCE)


def test_a_learner_computes_the_same_logprobs_in_one_padded_batch() -> None:
    model = make_model(0, eos_bias=2.0)
    contexts = [(1, 5, 6, 7), (1, 9), (1, 4, 4, 4, 8, 10)]
    rows = [new_row(contexts[index % 3], seed=index, max_new_tokens=4 + index) for index in range(12)]
    texts = write_all(open_batch(model), rows)
    packed = pack_completions(
        contexts, [text.tokens for text in texts], group_index=[index % 3 for index in range(12)]
    )
    with torch.no_grad():
        logprobs_BT = completion_logprobs(model, packed).numpy()
    assert len({len(text.tokens) for text in texts}) > 3
    for row, text in enumerate(texts):
        np.testing.assert_allclose(text.logprobs, logprobs_BT[row, : len(text.tokens)], atol=TOLERANCE)


def test_a_text_is_the_same_alone_and_in_company() -> None:
    model = make_model(0)
    rows = [new_row((1, 5, 6 + index % 3), seed=index, max_new_tokens=3 + index) for index in range(10)]
    together = write_all(open_batch(model, slots=3), rows)
    alone = [write_all(open_batch(model, slots=1), [row])[0] for row in rows]
    assert [text.tokens for text in together] == [text.tokens for text in alone]


@pytest.mark.parametrize("written", [1, 3, 7])
def test_a_text_that_was_interrupted_goes_on_as_it_would_have(written: int) -> None:
    model = make_model(0)
    row = new_row(seed=11, max_new_tokens=8, stop_ids=frozenset())
    [whole] = write_all(open_batch(model), [row])
    rest = new_row(
        (*row.context, *whole.tokens[:written]), seed=11, max_new_tokens=8 - written, stop_ids=frozenset()
    )
    [resumed] = write_all(open_batch(model), [rest])
    assert resumed.tokens == whole.tokens[written:]
    np.testing.assert_allclose(resumed.logprobs, whole.logprobs[written:], atol=TOLERANCE)


@pytest.mark.slow
def test_samples_follow_the_policys_probabilities() -> None:
    model = make_model(3)
    num_samples = 20_000
    rows = [
        new_row((1, 5, 6), seed=seed, max_new_tokens=1, temperature=0.8, stop_ids=frozenset())
        for seed in range(num_samples)
    ]
    texts = write_all(open_batch(model, slots=num_samples, cache_bytes_max=1 << 28), rows)
    counts_V = np.bincount([text.tokens[0] for text in texts], minlength=VOCABULARY_SIZE)
    with torch.no_grad():
        hidden, _ = model(torch.tensor([[1, 5, 6]]))
        probabilities_V = model.next_logprobs(hidden[0, -1], temperature=0.8).exp().double().numpy()
    expected_V = probabilities_V * num_samples
    likely_V = expected_V >= 5
    observed = [*counts_V[likely_V], counts_V[~likely_V].sum()]
    expected = [*expected_V[likely_V], expected_V[~likely_V].sum()]
    chi_square = sum((o - e) ** 2 / e for o, e in zip(observed, expected, strict=True) if e > 0)
    degrees = len(observed) - 1
    assert degrees > 5, "the policy must leave something to draw"
    # The seeds are fixed: three standard deviations, checked once.
    assert chi_square < degrees + 3 * (2 * degrees) ** 0.5


def test_greedy_and_sampled_rows_share_a_batch() -> None:
    model = make_model(0)
    greedy, sampled = write_all(
        open_batch(model),
        [new_row(temperature=0.0, stop_ids=frozenset()), new_row(temperature=0.9, stop_ids=frozenset())],
    )
    assert greedy.logprobs == [0.0] * 8
    context = list(greedy.new.context)
    for position, token in enumerate(greedy.tokens):
        with torch.no_grad():
            hidden, _ = model(torch.tensor([context + greedy.tokens[:position]]))
        assert int(model.next_logprobs(hidden[0, -1]).argmax()) == token
    np.testing.assert_allclose(sampled.logprobs, slow_logprobs(model, sampled), atol=TOLERANCE)


def test_equal_contexts_are_read_once_even_when_some_of_them_wait_for_a_slot() -> None:
    model = CountingLm(make_model(0))
    batch = open_batch(model, slots=2)
    model.num_tokens_read = 0
    context = (1, 5, 6, 7, 8, 9)
    texts = write_all(
        batch, [new_row(context, seed=seed, max_new_tokens=3, stop_ids=frozenset()) for seed in range(6)]
    )
    # The first token of each follows from the context; the second and third from reading the one before.
    assert model.num_tokens_read == len(context) + 2 * len(texts)


def test_what_contexts_begin_with_is_read_once_for_all_of_them() -> None:
    model = CountingLm(make_model(0))
    batch = open_batch(model, slots=8)
    model.num_tokens_read = 0
    stem = (1, *range(5, 24))
    contexts = [(*stem, 30 + number) for number in range(6)]
    texts = write_all(batch, [new_row(context, max_new_tokens=1) for context in contexts])
    assert model.num_tokens_read == len(stem) + len(contexts)
    for text in texts:
        assert text.logprobs == pytest.approx(slow_logprobs(model.model, text), abs=1e-5)


@given(
    st.lists(st.tuples(st.integers(0, 24), st.integers(1, 6)), min_size=1, max_size=12), st.integers(8, 64)
)
@settings(max_examples=num_examples(40), deadline=None)
def test_stems_of_any_length_change_no_logprob(shapes: list[tuple[int, int]], tokens_per_pass: int) -> None:
    """Contexts that share more or less of their beginning, some the beginning of others, and passes of any size."""
    model = make_model(0)
    batch = open_batch(model, slots=4, tokens_per_pass=tokens_per_pass)
    common = (1, *range(5, 29))
    rows = [
        new_row((*common[: 1 + shared], *([30 + number % 3] * extra)), max_new_tokens=2)
        for number, (shared, extra) in enumerate(shapes)
    ]
    for text in write_all(batch, rows):
        assert text.logprobs == pytest.approx(slow_logprobs(model, text), abs=1e-5)
    assert batch.cache_bytes <= batch.cache_bytes_max


def test_a_stem_that_an_older_policy_read_is_not_gone_on_from() -> None:
    model = make_model(0)
    batch = open_batch(model, slots=4)
    stem = (1, *range(5, 24))
    write_all(batch, [new_row((*stem, 30), max_new_tokens=1), new_row((*stem, 31), max_new_tokens=1)])
    model.load_arrays(make_model(1).to_arrays())
    batch.keep_cache()
    [text] = write_all(batch, [new_row((*stem, 32), max_new_tokens=2)])
    assert text.logprobs == pytest.approx(slow_logprobs(model, text), abs=1e-5)


def test_a_context_longer_than_a_pass_is_read_in_parts_while_others_are_written() -> None:
    model = make_model(0)
    batch = open_batch(model, slots=2, tokens_per_pass=8)
    short, long = new_row((1, 5), max_new_tokens=20), new_row((1, *range(3, 30)), max_new_tokens=3)
    texts = dict(zip(batch.add([short]), [Text(short)], strict=True))
    collect(batch.step(), texts)
    texts |= dict(zip(batch.add([long]), [Text(long)], strict=True))
    for _ in range(3):
        collect(batch.step(), texts)
    assert [len(text.tokens) for text in texts.values()] == [4, 0]
    collect(batch.step(), texts)
    assert [len(text.tokens) for text in texts.values()] == [5, 1]
    np.testing.assert_allclose(
        [text.logprobs[-1] for text in texts.values()],
        [slow_logprobs(model, text)[-1] for text in texts.values()],
        atol=TOLERANCE,
    )


def test_a_context_that_a_swap_finds_partly_read_is_read_by_one_policy() -> None:
    new = make_model(1)
    model = make_model(0)
    batch = open_batch(model, tokens_per_pass=8)
    row = new_row((1, *range(3, 30)), max_new_tokens=3, stop_ids=frozenset())
    text = Text(row)
    [key] = batch.add([row])
    assert not batch.step().rows
    model.load_arrays(new.to_arrays())
    batch.refresh_cache()
    while batch.num_rows:
        collect(batch.step(), {key: text})
    np.testing.assert_allclose(text.logprobs, slow_logprobs(new, text), atol=TOLERANCE)


def test_a_free_slot_is_taken_at_the_next_step() -> None:
    batch = open_batch(make_model(0), slots=1)
    first, second = batch.add([new_row(max_new_tokens=2, stop_ids=frozenset()), new_row(max_new_tokens=1)])
    assert [batch.step().rows for _ in range(3)] == [[first], [first], [second]]
    third, fourth = batch.add([new_row(), new_row()])
    assert batch.step().rows == [third]
    batch.stop(third)
    assert batch.step().rows == [fourth]


def test_a_row_that_waits_can_be_stopped_and_a_row_that_is_done_is_let_be() -> None:
    batch = open_batch(make_model(0), slots=1)
    first, second, third = batch.add([new_row(max_new_tokens=1)] * 3)
    batch.stop(second)
    assert [batch.step().rows for _ in range(2)] == [[first], [third]]
    batch.stop(first)
    assert batch.num_rows == 0


def test_keeping_the_cache_over_a_swap_samples_with_the_reported_logprobs() -> None:
    old, new = make_model(0), make_model(1)
    model = make_model(0)
    batch = open_batch(model)
    row = new_row(max_new_tokens=6, stop_ids=frozenset())
    text = Text(row)
    [key] = batch.add([row])
    for _ in range(3):
        collect(batch.step(), {key: text})
    model.load_arrays(new.to_arrays())
    for _ in range(3):
        collect(batch.step(), {key: text})
    with torch.no_grad():
        _, cache = old(torch.tensor([[*row.context, *text.tokens[:2]]]))
        for position in range(3, 6):
            # The new parameters over the keys and values that the old ones left.
            hidden, cache = new(torch.tensor([[text.tokens[position - 1]]]), cache=cache)
            logprob = float(new.next_logprobs(hidden[0, -1])[text.tokens[position]])
            assert text.logprobs[position] == pytest.approx(logprob, abs=TOLERANCE)
    assert np.abs(np.array(text.logprobs) - slow_logprobs(new, text))[3:].max() > 1e-3


def test_long_rows_take_turns_where_the_cache_is_bounded_and_none_exceeds_it() -> None:
    model = make_model(0)
    bytes_per_token = 2 * SPEC.num_layers * SPEC.d_model * 4
    batch = open_batch(model, slots=8, cache_bytes_max=2 * SPEC.context_length * bytes_per_token)
    rows = [new_row(seed=seed, max_new_tokens=36, stop_ids=frozenset()) for seed in range(4)]
    rows += [new_row((1,), seed=seed, max_new_tokens=2, stop_ids=frozenset()) for seed in range(9)]
    texts = dict(zip(batch.add(rows), map(Text, rows), strict=True))
    most = 0
    while batch.num_rows:
        collect(batch.step(), texts)
        most = max(most, batch.num_live)
        assert batch.cache_bytes <= 2 * SPEC.context_length * bytes_per_token
    assert most == 2
    for text in texts.values():
        np.testing.assert_allclose(text.logprobs, slow_logprobs(model, text), atol=TOLERANCE)


def test_what_cannot_be_written_is_refused_and_nothing_of_its_batch_begins() -> None:
    batch = open_batch(make_model(0), slots=2, waiting_max=1)
    for bad in (
        new_row(()),
        new_row((1, VOCABULARY_SIZE)),
        new_row((1, -1)),
        new_row(max_new_tokens=0),
        new_row(temperature=float("nan")),
        new_row(max_new_tokens=SPEC.context_length),
    ):
        with pytest.raises(RecordError):
            batch.add([new_row(), bad])
    with pytest.raises(BackpressureError):
        batch.add([new_row()] * 4)
    assert batch.num_rows == 0
    assert len(batch.add([new_row()] * 3)) == 3


def test_a_cache_that_holds_no_whole_text_is_refused() -> None:
    with pytest.raises(ConfigError, match="context_length"):
        open_batch(make_model(0), cache_bytes_max=1000)


def test_a_policy_that_diverged_writes_nothing() -> None:
    model = make_model(0)
    batch = open_batch(model)
    batch.add([new_row()])
    with torch.no_grad():
        model.head.weight.fill_(float("nan"))
    with pytest.raises(RecordError, match="diverged"):
        batch.step()
