"""All conversations by name; register a new one here."""

from tidegate.environment.conversations.calculator import Calculator
from tidegate.environment.conversations.grid import KeyAndDoor
from tidegate.environment.conversations.guess_number import GuessNumber
from tidegate.environment.conversations.port import ConversationTask
from tidegate.environment.conversations.python_tool import PythonTool

CONVERSATIONS: dict[str, ConversationTask] = {
    "calculator": Calculator(),
    "grid": KeyAndDoor(),
    "guess_number": GuessNumber(),
    "python_tool": PythonTool(),
}
