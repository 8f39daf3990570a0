"""Run it with pytest, in this folder. The model is a list of replies."""

from types import SimpleNamespace

import my_agent


def reply(content="", *, expression=None):
    function = SimpleNamespace(arguments=f'{{"expression": "{expression}"}}')
    calls = [] if expression is None else [SimpleNamespace(id="1", function=function)]
    return SimpleNamespace(
        choices=[SimpleNamespace(message=SimpleNamespace(content=content, tool_calls=calls))]
    )


def client_of(*replies):
    """A client that gives one reply a call, and keeps what it was asked."""
    left, asked = list(replies), []

    def create(**request):
        asked.append(list(request["messages"]))
        return left.pop(0)

    return SimpleNamespace(
        chat=SimpleNamespace(completions=SimpleNamespace(create=create)), asked=asked
    )


def test_result_of_the_tool_is_what_the_model_reads_next():
    client = client_of(reply(expression="3+4"), reply("7"))
    assert my_agent.answer(client, "3+4=") == "7"
    assert client.asked[-1][-1] == {"role": "tool", "tool_call_id": "1", "content": "7"}


def test_model_that_only_calls_tools_is_stopped():
    replies = [reply(expression="1+1")] * my_agent.TURNS_MAX
    assert my_agent.answer(client_of(*replies), "1+1=") == ""


def test_tool_answers_whatever_it_is_asked():
    asked = ("2*3", "2-3", "__import__('os')", "")
    assert [my_agent.calculate(each) for each in asked] == ["6", "-1", "?", "?"]


def test_only_the_right_answer_is_rewarded():
    assert [my_agent.reward("3+4=", each, "7") for each in ("7", "8", "")] == [1.0, 0.0, 0.0]
