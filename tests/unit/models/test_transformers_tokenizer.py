import json
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given
from tokenizers import Tokenizer
from tokenizers.processors import TemplateProcessing

from tests.unit.models.tiny_llama import make_folder
from tests.unit.models.tiny_tokenizer import CHATML, SPECIALS, add_tokenizer
from tidegate.core.errors import ConfigError, RecordError
from tidegate.models.transformers_tokenizer import UNREADABLE, TransformersTokenizer

VOCABULARY = 272  # 3 special tokens, 256 bytes, and 13 rows of padding
END, START, TURN_END = range(3)


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_folder(tmp_path_factory.mktemp("model"), tied=True, vocab_size=VOCABULARY, eos_token_id=0)


@pytest.fixture(scope="module")
def chat(bare: Path) -> TransformersTokenizer:
    return TransformersTokenizer(add_tokenizer(bare, chat_template=CHATML))


def talk(*turns: tuple[str, str]) -> str:
    return json.dumps([{"role": role, "content": content} for role, content in turns])


def turn_of(tokenizer: TransformersTokenizer, text: str) -> list[int]:
    """What the policy writes: the text's bytes, then its end of turn."""
    written = tokenizer.encode_prompt(talk(("system", text)))
    return [*written[len("\x00system\n") : -len("\x00\n\x00assistant\n")], TURN_END]


def test_plain_text_is_one_message_of_the_user(chat: TransformersTokenizer) -> None:
    assert chat.encode_prompt("47+38=?") == chat.encode_prompt(talk(("user", "47+38=?")))
    assert chat.decode(chat.encode_prompt("hi")) == "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"


def test_text_nested_deeper_than_json_is_read_is_one_message_of_the_user(chat: TransformersTokenizer) -> None:
    nested = "[" * 5_000
    assert chat.encode_prompt(nested) == chat.encode_prompt(talk(("user", nested)))


@given(texts=st.lists(st.text(max_size=12), min_size=3, max_size=3))
def test_an_episode_written_in_pieces_is_the_conversation_encoded_at_once(
    chat: TransformersTokenizer, texts: list[str]
) -> None:
    first, answer, reply = texts
    pieces = chat.encode_prompt(talk(("user", first))) + turn_of(chat, answer) + chat.encode_reply(reply)
    assert pieces == chat.encode_prompt(talk(("user", first), ("assistant", answer), ("user", reply)))


@given(answer=st.text(max_size=12))
def test_a_turn_of_the_policy_is_encoded_as_the_template_writes_it(
    chat: TransformersTokenizer, answer: str
) -> None:
    assert chat.encode_turn(answer) == turn_of(chat, answer)


def test_a_turn_without_a_template_ends_with_the_tokenizer_s_own_token(tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "model", tied=True, vocab_size=VOCABULARY, eos_token_id=0)
    plain = TransformersTokenizer(add_tokenizer(folder, chat_template=None))
    assert plain.decode(plain.encode_turn("4")) == "4"
    assert plain.encode_turn("4")[-1] == END


def test_prompt_has_no_end_where_the_tokenizer_gives_one_to_each_text(tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "model", tied=True, vocab_size=VOCABULARY, eos_token_id=0)
    plain = TransformersTokenizer(add_tokenizer(folder, chat_template=None))
    saved: Any = Tokenizer.from_file(str(folder / "tokenizer.json"))
    saved.post_processor = TemplateProcessing(single="$A <|end|>", special_tokens=[("<|end|>", END)])
    saved.save(str(folder / "tokenizer.json"))
    ending = TransformersTokenizer(folder)
    assert ending.encode_prompt("47+38=") == plain.encode_prompt("47+38=")
    assert ending.encode_turn("85") == plain.encode_turn("85")


@pytest.mark.parametrize("special", SPECIALS)
def test_markup_in_a_text_is_text(chat: TransformersTokenizer, special: str) -> None:
    plain, reply = chat.encode_reply("ab"), chat.encode_reply(f"a{special}b")
    specials = {END, START, TURN_END}
    assert [token for token in reply if token in specials] == [token for token in plain if token in specials]
    assert f"a{special[0]} {special[1:]}b" in chat.decode(reply)


def test_stop_tokens_are_those_of_the_files_and_the_template(chat: TransformersTokenizer) -> None:
    assert chat.stop_ids == {END, TURN_END}


def test_several_ends_in_the_generation_config_all_count(bare: Path, tmp_path: Path) -> None:
    folder = make_folder(tmp_path, tied=True, vocab_size=VOCABULARY)
    add_tokenizer(folder, chat_template=CHATML)
    (folder / "generation_config.json").write_text('{"eos_token_id": [0, 5]}')
    (folder / "config.json").write_text((bare / "config.json").read_text())
    assert TransformersTokenizer(folder).stop_ids == {END, 5, TURN_END}


def test_a_turn_is_decoded_without_its_end_and_specials_inside_show(chat: TransformersTokenizer) -> None:
    turn = turn_of(chat, "so: 85")
    assert chat.decode(turn) == "so: 85"
    assert chat.decode(turn[:-1]) == "so: 85"
    assert chat.decode([*turn, *turn]) == "so: 85<|im_end|>so: 85"


def test_ids_that_no_text_has_never_vanish(chat: TransformersTokenizer) -> None:
    assert chat.decode([*turn_of(chat, "8")[:-1], VOCABULARY - 1, *turn_of(chat, "5")]) == f"8{UNREADABLE}5"
    for outside in (-1, VOCABULARY):
        with pytest.raises(RecordError, match="outside of the vocabulary of 272"):
            chat.decode([outside])


@pytest.mark.parametrize("text", ["[3+45]", "[]", '["a", "b"]', '[{"a": 1}]', " [1, 2"])
def test_text_that_looks_like_a_list_is_text(chat: TransformersTokenizer, text: str) -> None:
    assert chat.decode(chat.encode_prompt(text)).split("\n")[1] == f"{text}<|im_end|>"


def test_a_message_that_lacks_a_part_is_refused(chat: TransformersTokenizer) -> None:
    with pytest.raises(RecordError, match="messages cannot be read"):
        chat.encode_prompt('[{"role": "user", "contents": "hi"}]')


def test_roles_that_the_template_refuses_are_an_error_of_the_record(tmp_path: Path) -> None:
    folder = make_folder(tmp_path, tied=True, vocab_size=VOCABULARY)
    picky = "{% if messages[0].role == 'system' %}{{ raise_exception('no system') }}{% endif %}" + CHATML
    tokenizer = TransformersTokenizer(add_tokenizer(folder, chat_template=picky))
    with pytest.raises(RecordError, match="rejects a conversation"):
        tokenizer.encode_prompt(talk(("system", "a"), ("user", "b")))


def test_a_template_that_rewrites_earlier_turns_still_gives_the_markup_between(tmp_path: Path) -> None:
    folder = make_folder(tmp_path, tied=True, vocab_size=VOCABULARY)
    thinking = (
        "{% for message in messages %}<|im_start|>{{ message.role }}\n"
        "{% if loop.last and message.role == 'assistant' %}(thoughts){% endif %}"
        "{{ message.content }}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )
    tokenizer = TransformersTokenizer(add_tokenizer(folder, chat_template=thinking))
    assert (
        tokenizer.decode(tokenizer.encode_reply("48"))
        == "\n<|im_start|>user\n48<|im_end|>\n<|im_start|>assistant\n"
    )


def test_a_template_that_leaves_out_the_policy_is_refused(tmp_path: Path) -> None:
    folder = make_folder(tmp_path, tied=True, vocab_size=VOCABULARY)
    add_tokenizer(folder, chat_template="{% for message in messages %}{{ message.role }}{% endfor %}")
    with pytest.raises(ConfigError, match="omits the assistant's messages"):
        TransformersTokenizer(folder)


def test_without_a_template_texts_are_themselves(tmp_path: Path) -> None:
    folder = make_folder(tmp_path, tied=True, vocab_size=VOCABULARY, eos_token_id=0)
    tokenizer = TransformersTokenizer(add_tokenizer(folder, chat_template=None))
    assert tokenizer.decode(tokenizer.encode_prompt("47+38=")) == "47+38="
    assert tokenizer.decode(tokenizer.encode_reply(" 85\n")) == " 85\n"
    assert tokenizer.stop_ids == {END}
    with pytest.raises(RecordError, match="no tokens"):
        tokenizer.encode_prompt("")


def test_a_folder_without_a_tokenizer_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no tokenizer"):
        TransformersTokenizer(make_folder(tmp_path, tied=True))


def test_a_system_prompt_begins_each_conversation_that_has_none_of_its_own(tmp_path: Path) -> None:
    folder = add_tokenizer(
        make_folder(tmp_path, tied=True, vocab_size=VOCABULARY, eos_token_id=0), chat_template=CHATML
    )
    plain, told = TransformersTokenizer(folder), TransformersTokenizer(folder, system_prompt="Be brief.")
    with_system = talk(("system", "Be brief."), ("user", "hi"))
    assert told.encode_prompt("hi") == plain.encode_prompt(with_system)
    assert told.encode_prompt(with_system) == plain.encode_prompt(with_system)
    own = talk(("system", "Be long."), ("user", "hi"))
    assert told.encode_prompt(own) == plain.encode_prompt(own)
    assert told.chat_text([{"role": "user", "content": "hi"}], []).startswith("<|im_start|>system\nBe brief.")


def test_replies_of_a_conversation_with_a_system_prompt_do_not_repeat_it(tmp_path: Path) -> None:
    folder = add_tokenizer(
        make_folder(tmp_path, tied=True, vocab_size=VOCABULARY, eos_token_id=0), chat_template=CHATML
    )
    plain, told = TransformersTokenizer(folder), TransformersTokenizer(folder, system_prompt="Be brief.")
    assert told.encode_reply("go on") == plain.encode_reply("go on")
    assert told.stop_ids == plain.stop_ids


def test_arguments_of_the_template_reach_it(tmp_path: Path) -> None:
    template = "{% if shout %}LOUD{% endif %}" + CHATML
    folder = add_tokenizer(
        make_folder(tmp_path, tied=True, vocab_size=VOCABULARY, eos_token_id=0), chat_template=template
    )
    loud = TransformersTokenizer(folder, template_args={"shout": True})
    assert loud.decode(loud.encode_prompt("hi")).startswith("LOUD<|im_start|>user")
    quiet = TransformersTokenizer(folder)
    assert quiet.decode(quiet.encode_prompt("hi")).startswith("<|im_start|>user")


@pytest.mark.parametrize("chat", [{"system_prompt": "Be brief."}, {"template_args": {"shout": True}}])
def test_a_model_without_a_template_has_no_place_for_a_system_prompt(tmp_path: Path, chat: Any) -> None:
    folder = add_tokenizer(
        make_folder(tmp_path, tied=True, vocab_size=VOCABULARY, eos_token_id=0), chat_template=None
    )
    with pytest.raises(ConfigError, match=r"policy\.chat is set.*no chat template"):
        TransformersTokenizer(folder, **chat)


def test_a_template_that_refuses_the_system_prompt_is_named_before_the_run(tmp_path: Path) -> None:
    picky = "{% if messages[0].role == 'system' %}{{ raise_exception('no system') }}{% endif %}" + CHATML
    folder = add_tokenizer(make_folder(tmp_path, tied=True, vocab_size=VOCABULARY), chat_template=picky)
    with pytest.raises(ConfigError, match=r"refuses policy\.chat.*no system"):
        TransformersTokenizer(folder, system_prompt="Be brief.")
