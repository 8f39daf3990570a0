"""A task of short prompts and long answers, for both sides of the bench ``trl``: write many different words."""

import json
from collections.abc import Sequence

from tidegate.environment.tasks.port import Problem, Score, Split
from tidegate.environment.tasks.splits import split_of

TOPICS = (
    "rain", "rivers", "bread", "ships", "clocks", "winter", "music", "chess", "birds", "trains", "maps",
    "gardens", "paper", "stars", "salt", "glass", "bridges", "horses", "markets", "kites", "iron", "tea",
    "forests", "letters", "lamps", "stones", "dogs", "wheels", "snow", "islands", "boats", "books", "fire",
    "apples", "wool", "coins",
)  # fmt: skip
TONES = ("Tell me about", "Write a story about", "Explain", "Describe")
# Words of a completion that is as good as it gets; about 128 tokens.
WORDS_MAX = 90


class LongAnswers:
    """Prompts of a dozen tokens; a verifier that reads the whole answer and never gives all of a group the same."""

    def problems(self, split: Split, *, seed: int) -> Sequence[Problem]:
        """All problems of a split, shuffled by ``seed``."""
        pairs = ((tone, topic) for tone in TONES for topic in TOPICS)
        return split_of((_problem(tone, topic) for tone, topic in pairs), split, seed=seed)

    def score(self, problem: Problem, completion: str) -> Score:
        """The share of ``WORDS_MAX`` that the answer has in different words."""
        different = len(set(completion.lower().split()))
        reward = min(1.0, different / WORDS_MAX)
        return Score(reward, {"different": float(different)}, f"{different} different words")


def _problem(tone: str, topic: str) -> Problem:
    messages = [{"role": "user", "content": f"{tone} {topic}."}]
    return Problem(prompt_id=f"{tone} {topic}", prompt=json.dumps(messages), answer=topic, bin="all")
