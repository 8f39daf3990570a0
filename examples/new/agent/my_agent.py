"""An agent: OpenAI's client, one tool, a loop. Nothing in it knows of Tidegate; replace it by your own.

`answer` is called with a client and a question, `reward` with what it returned. `worker.py` calls both.
"""

import json
import re

MODEL = "policy"
TURNS_MAX = 8
CALCULATOR = {
    "type": "function",
    "function": {
        "name": "calculator",
        "description": "The value of two whole numbers with a sign between them.",
        "parameters": {
            "type": "object",
            "properties": {"expression": {"type": "string"}},
            "required": ["expression"],
        },
    },
}


def calculate(expression):
    """The value as text; ``?`` for anything else."""
    found = re.fullmatch(r"(-?\d{1,9})([-+*])(-?\d{1,9})", expression)
    if found is None:
        return "?"
    left, sign, right = int(found[1]), found[2], int(found[3])
    return str({"+": left + right, "-": left - right, "*": left * right}[sign])


def answer(client, question):
    """Ask the model until it calls no more tools; returns its last message."""
    messages = [{"role": "user", "content": question}]
    for _ in range(TURNS_MAX):
        reply = client.chat.completions.create(model=MODEL, messages=messages, tools=[CALCULATOR])
        message = reply.choices[0].message
        if not message.tool_calls:
            return message.content or ""
        messages.append(message)
        for call in message.tool_calls:
            expression = str(json.loads(call.function.arguments).get("expression", ""))
            result = calculate(expression)
            messages.append({"role": "tool", "tool_call_id": call.id, "content": result})
    return ""


def reward(question, answered, expected):
    """Any number is a reward."""
    return float(answered == expected)
