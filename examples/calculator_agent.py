"""An ordinary agent: OpenAI's client, one tool, a loop. Nothing in it refers to Tidegate.

OPENAI_BASE_URL=... OPENAI_API_KEY=... python examples/calculator_agent.py "12*(3+45)-7="
"""

import ast
import json
import operator
import sys
from collections.abc import Callable
from typing import Any

import openai

MODEL = "policy"
TURNS_MAX = 12
CALCULATOR: Any = {
    "type": "function",
    "function": {
        "name": "calculator",
        "description": "The value of an expression of two whole numbers and one sign.",
        "parameters": {
            "type": "object",
            "properties": {"expression": {"type": "string"}},
            "required": ["expression"],
        },
    },
}
SIGNS: dict[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
}


def calculate(expression: str) -> str:
    """The value as text; ``?`` for anything else. Only the operations in ``SIGNS`` are evaluated."""
    try:
        parsed = ast.parse(expression[:100], mode="eval").body
    except (SyntaxError, ValueError):
        return "?"
    match parsed:
        case ast.BinOp(ast.Constant(int(left)), sign, ast.Constant(int(right))) if type(sign) in SIGNS:
            return str(SIGNS[type(sign)](left, right))
        case _:
            return "?"


def answer(client: openai.OpenAI, question: str) -> str:
    """Ask the model until it calls no more tools; returns its last message."""
    messages: list[Any] = [{"role": "user", "content": question}]
    for _ in range(TURNS_MAX):
        reply = client.chat.completions.create(model=MODEL, messages=messages, tools=[CALCULATOR])
        message = reply.choices[0].message
        if not message.tool_calls:
            return message.content or ""
        messages.append(message)
        for call in message.tool_calls:
            if call.type != "function":
                continue
            arguments = json.loads(call.function.arguments)
            result = calculate(str(arguments.get("expression", "")))
            messages.append({"role": "tool", "tool_call_id": call.id, "content": result})
    return ""


def main() -> None:
    """Answer the question on the command line."""
    sys.stdout.write(answer(openai.OpenAI(), sys.argv[1]) + "\n")


if __name__ == "__main__":
    main()
