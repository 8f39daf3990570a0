"""Turns as actions, by the schemas that servers publish."""

from typing import Any

import pytest

from tidegate.core.errors import ConfigError
from tidegate.environment.libraries.action_texts import ActionReader, NoActionError

METADATA = {"metadata": {"type": "object"}}


def reader(
    properties: dict[str, Any], *required: str, field: str = "", pattern: str = "", **fixed: Any
) -> ActionReader:
    schema = {
        "properties": {**METADATA, **properties},
        "required": list(required),
        "$defs": {"Move": {"enum": ["UP", "DOWN"], "type": "string"}},
    }
    return ActionReader(schema, field=field, fixed=fixed, pattern=pattern)


@pytest.mark.parametrize(
    ("part", "text", "value"),
    [
        ({"type": "string"}, " as it is\n", " as it is\n"),
        ({"type": "integer"}, " 3\n", 3),
        ({"type": "number"}, "0.5", 0.5),
        ({"type": "boolean"}, "True", True),
        ({"$ref": "#/$defs/Move"}, " up ", "UP"),
        ({"allOf": [{"$ref": "#/$defs/Move"}]}, "DOWN", "DOWN"),
        ({"anyOf": [{"type": "null"}, {"type": "integer"}]}, "7", 7),
        ({"type": "array"}, "[1, 2]", [1, 2]),
    ],
)
def test_a_turn_is_the_value_of_the_one_field_that_is_demanded(
    part: dict[str, Any], text: str, value: Any
) -> None:
    assert reader({"move": part, "comment": {"type": "string"}}, "move").read(text) == {"move": value}


@pytest.mark.parametrize(
    ("part", "text", "said"),
    [
        ({"type": "integer"}, "three", "of type integer"),
        ({"type": "integer"}, "9" * 5000, "of type integer"),
        ({"type": "boolean"}, "perhaps", "of type boolean"),
        ({"$ref": "#/$defs/Move"}, "left", "one of UP, DOWN"),
        ({"type": "array"}, "[1,", "JSON"),
        ({"type": "array"}, "[" * 100_000, "JSON"),
    ],
)
def test_a_text_that_is_no_action_says_what_one_is(part: dict[str, Any], text: str, said: str) -> None:
    with pytest.raises(NoActionError, match=said):
        reader({"move": part}, "move").read(text)


def test_a_single_field_needs_no_demand() -> None:
    assert reader({"message": {"type": "string"}}).read("hello") == {"message": "hello"}


def test_several_demanded_fields_are_written_as_json() -> None:
    tool = reader({"tool": {"type": "string"}, "arguments": {"type": "object"}}, "tool", "arguments")
    assert tool.read('{"tool": "echo", "arguments": {}}') == {"tool": "echo", "arguments": {}}
    with pytest.raises(NoActionError, match="JSON object"):
        tool.read("[]")


def test_a_run_file_may_choose_the_field_and_fix_the_others() -> None:
    fields = {"tool": {"type": "string"}, "code": {"type": "string"}}
    assert reader(fields, "tool", "code", tool="python").read("1+1") == {"code": "1+1", "tool": "python"}
    assert reader(fields, "tool", "code", field="tool").read("x") == {"tool": "x"}


@pytest.mark.parametrize("settings", [{"field": "kode"}, {"kode": 1}])
def test_a_field_that_the_schema_does_not_have_is_refused_with_those_it_has(settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"no field 'kode'.*has code"):
        reader({"code": {"type": "string"}}, "code", **settings)


@pytest.mark.parametrize(
    ("pattern", "text", "value"),
    [("UP|DOWN", "Not UP, so DOWN.", "DOWN"), (r"move (\w+)", "I move up then stop", "UP")],
)
def test_the_action_is_the_last_match_of_a_pattern_or_its_group(pattern: str, text: str, value: str) -> None:
    moves = reader({"move": {"$ref": "#/$defs/Move"}}, "move", pattern=pattern)
    assert moves.read(text) == {"move": value}
    with pytest.raises(NoActionError, match="no action in it"):
        moves.read("nothing")
