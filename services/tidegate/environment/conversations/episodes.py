"""Scripted episodes: demonstrations, and the score of a single completion as an episode of one turn."""

from collections.abc import Sequence

from tidegate.environment.conversations.port import Conversation
from tidegate.environment.tasks.port import Demonstration, Score


def demonstrate(conversation: Conversation, turns: Sequence[str]) -> Demonstration:
    """The episode in which the policy writes ``turns``, each reply as the conversation gives it."""
    replies = [conversation.reply(text) for text in turns]
    assert replies[-1].done, "a demonstration ends its episode"
    exchanges = zip([reply.observation for reply in replies], turns[1:], strict=False)
    return Demonstration(prompt=conversation.opening, completion=turns[0], exchanges=tuple(exchanges))


def score_of_one_turn(conversation: Conversation, completion: str) -> Score:
    """The score of an episode that ends after its first turn."""
    turn = conversation.reply(completion)
    if turn.score is not None:
        return turn.score
    return Score(reward=0.0, components={"exact": 0.0}, log="the episode was not over after its first turn")
