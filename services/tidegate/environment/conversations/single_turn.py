"""A text task as an episode of one turn, so that sessions hold any text environment."""

from tidegate.environment.conversations.port import ConversationTurn
from tidegate.environment.tasks.port import Problem, TextTask


class SingleTurn:
    """The episode: the prompt, a completion, its score."""

    def __init__(self, task: TextTask, problem: Problem) -> None:
        self._task = task
        self._problem = problem

    @property
    def opening(self) -> str:
        """The prompt."""
        return self._problem.prompt

    def reply(self, text: str) -> ConversationTurn:
        """The verdict; there is nothing to read after it."""
        return ConversationTurn(observation="", score=self._task.score(self._problem, text))
