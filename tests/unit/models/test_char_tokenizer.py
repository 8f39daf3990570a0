import hypothesis.strategies as st
import pytest
from hypothesis import given

from tidegate.core.errors import RecordError
from tidegate.models.char_tokenizer import (
    ALPHABET,
    BOS,
    EOS,
    NUM_SPECIALS,
    PAD,
    UNREADABLE,
    VOCABULARY_SIZE,
    UnknownCharacterError,
    decode,
    encode,
    encode_completion,
    encode_prompt,
)


@given(st.text(alphabet=ALPHABET))
def test_decoding_returns_what_was_encoded(text: str) -> None:
    assert decode(encode(text)) == text
    assert decode(encode_completion(text)) == text


def test_every_character_has_its_own_token_behind_the_specials() -> None:
    tokens = encode(ALPHABET)
    assert tokens == list(range(NUM_SPECIALS, VOCABULARY_SIZE))


def test_ids_of_published_checkpoints_stay() -> None:
    assert (PAD, BOS, EOS) == (0, 1, 2)
    assert encode("0123456789+-*/= ") == [3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 30]


def test_prompt_begins_and_completion_ends() -> None:
    assert encode_prompt("") == [BOS]
    assert encode_prompt("1") == [BOS, *encode("1")]
    assert encode_completion("1") == [*encode("1"), EOS]


def test_unknown_character_is_named_with_its_position() -> None:
    with pytest.raises(UnknownCharacterError, match="'é' at position 2") as caught:
        encode("1+é=")
    assert (caught.value.character, caught.value.position) == ("é", 2)


@pytest.mark.parametrize("special", [PAD, BOS, EOS])
def test_special_token_inside_of_a_completion_never_vanishes(special: int) -> None:
    tokens = [*encode("08"), special, *encode("5"), EOS]
    assert decode(tokens) == f"08{UNREADABLE}5"


def test_completion_cut_by_length_keeps_its_last_character() -> None:
    assert decode(encode("085")) == "085"


@pytest.mark.parametrize("token", [-1, VOCABULARY_SIZE])
def test_decoding_refuses_ids_outside_of_the_vocabulary(token: int) -> None:
    with pytest.raises(RecordError, match="outside of the vocabulary"):
        decode([token])
