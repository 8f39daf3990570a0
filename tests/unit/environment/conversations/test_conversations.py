"""Properties of every conversation: references that win, replays that repeat, episodes that end, texts that score."""

import functools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.core.distributions import parse_distribution
from tidegate.environment.conversations.port import Conversation, ConversationTurn
from tidegate.environment.conversations.registry import CONVERSATIONS
from tidegate.environment.conversations.tools import Conditions, Tools
from tidegate.environment.sandbox.port import SandboxLimits, SandboxResult
from tidegate.environment.tasks.port import Problem
from tidegate.environment.tasks.registry import TASKS
from tidegate.models.char_tokenizer import encode_completion, encode_prompt

FOR_CHARACTERS = ("calculator", "grid", "guess_number")
TURNS: dict[str, tuple[int, int]] = {
    "calculator": (2, 6),
    "grid": (3, 60),
    "guess_number": (1, 10),
    "python_tool": (2, 2),
}


class FakeSandbox:
    """Prints the text of the program's comment: ``# 42``."""

    def __init__(self) -> None:
        self.programs: list[str] = []

    def run_python(self, code: str, *, stdin: str = "", limits: SandboxLimits | None = None) -> SandboxResult:
        self.programs.append(code)
        printed = code.partition("# ")[2].strip()
        return SandboxResult(0, None, printed, "", len(printed), 0, cpu_s=0.0, wall_s=0.0)

    def close(self) -> None:
        """Nothing runs."""


TOOLS = Tools(sandbox=FakeSandbox)


@functools.cache
def problems_of(name: str) -> list[Problem]:
    """The first problems of a conversation; drawing them takes a second of CPU time."""
    return list(CONVERSATIONS[name].problems("train", seed=0)[:200])


def played(conversation: Conversation, texts: list[str]) -> list[ConversationTurn]:
    turns: list[ConversationTurn] = []
    for text in texts:
        turns.append(conversation.reply(text))
        if turns[-1].done:
            break
    return turns


def test_table_has_every_conversation_among_the_tasks() -> None:
    assert TURNS.keys() == CONVERSATIONS.keys()
    assert all(TASKS[name] is task for name, task in CONVERSATIONS.items())


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(CONVERSATIONS))
def test_demonstrations_are_episodes_that_win(name: str) -> None:
    task = CONVERSATIONS[name]
    by_prompt: dict[str, list[Problem]] = {}
    for problem in task.problems("train", seed=0):
        by_prompt.setdefault(problem.prompt, []).append(problem)
    fewest, most = TURNS[name]
    for demonstration in task.demonstrations(seed=0, count=300):
        texts = [demonstration.completion, *(turn for _, turn in demonstration.exchanges)]
        assert fewest <= len(texts) <= most
        replies = [reply for reply, _ in demonstration.exchanges]
        if name == "python_tool":  # its replies are what the sandbox prints
            texts[0] = texts[0].replace("\n```", f"\n# {replies[0]}\n```")
        won = [
            problem
            for problem in by_prompt[demonstration.prompt]
            if is_won(played(task.begin(problem, seed=0, tools=TOOLS), texts), replies)
        ]
        assert won, demonstration


def is_won(turns: list[ConversationTurn], replies: list[str]) -> bool:
    score = turns[-1].score
    return (
        score is not None
        and score.reward == 1.0
        and score.log == "solved"
        and not turns[-1].truncated
        and [turn.observation for turn in turns[:-1]] == replies
    )


@pytest.mark.parametrize("name", sorted(CONVERSATIONS))
@given(
    index=st.integers(0, 199),
    texts=st.lists(
        st.text(max_size=12)
        | st.sampled_from(
            ["[1+2]", "[2*3]", "7", "50", "u", "d", "l", "r", "```python\n1\n```", "answer: 3"]
        ),
        min_size=70,
        max_size=70,
    ),
    seed=st.integers(0, 9),
)
def test_any_texts_end_an_episode_and_the_same_texts_end_it_the_same(
    name: str, index: int, texts: list[str], seed: int
) -> None:
    task, problem = CONVERSATIONS[name], problems_of(name)[index]
    tools = Tools(
        conditions=Conditions(latency=parse_distribution("lognormal:1:2"), error_share=0.3),
        sandbox=FakeSandbox,
    )
    turns = played(task.begin(problem, seed=seed, tools=tools), texts)
    assert turns == played(task.begin(problem, seed=seed, tools=tools), texts)
    assert all(turn.score is None for turn in turns[:-1])
    score = turns[-1].score
    assert score is not None
    assert 0.0 <= score.reward <= 1.0
    assert (score.reward == 1.0) == (score.components["exact"] == 1.0) == (score.log == "solved")
    assert not (turns[-1].truncated and score.reward == 1.0)


@pytest.mark.parametrize("name", sorted(CONVERSATIONS))
@given(index=st.integers(0, 199), completion=st.text(max_size=20))
def test_single_completion_scores_as_an_episode_of_one_turn(name: str, index: int, completion: str) -> None:
    score = CONVERSATIONS[name].score(problems_of(name)[index], completion)
    assert 0.0 <= score.reward <= 1.0
    assert (score.reward == 1.0) == (score.components["exact"] == 1.0)


@pytest.mark.parametrize("name", sorted(CONVERSATIONS))
def test_opening_is_the_prompt_of_the_dataset(name: str) -> None:
    for problem in problems_of(name)[:20]:
        assert CONVERSATIONS[name].begin(problem, seed=5, tools=TOOLS).opening == problem.prompt


@pytest.mark.parametrize("name", FOR_CHARACTERS)
def test_small_models_can_read_and_write_the_conversation(name: str) -> None:
    for demonstration in CONVERSATIONS[name].demonstrations(seed=0, count=100):
        encode_prompt(demonstration.prompt)
        for reply, turn in demonstration.exchanges:
            encode_prompt(reply)
            encode_completion(turn)


@pytest.mark.parametrize("name", sorted(CONVERSATIONS))
def test_only_conversations_whose_tools_always_answer_alike_call_themselves_deterministic(name: str) -> None:
    assert CONVERSATIONS[name].deterministic == (name != "python_tool")
