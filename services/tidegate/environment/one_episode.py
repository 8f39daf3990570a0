"""One episode of a text workload outside of any run, for `tidegate check --play`: given turns, and the verdict on them.

Task, conversation and verifiers are called as in a run, in the same child processes.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from functools import partial

import msgspec

from tidegate.core.errors import ConfigError
from tidegate.environment.config import EnvironmentConfig
from tidegate.environment.conversations.port import ConversationTurn
from tidegate.environment.conversations.registry import CONVERSATIONS
from tidegate.environment.conversations.tools import Tools
from tidegate.environment.judgements import Judgement, VerifierFailed
from tidegate.environment.opened_scoring import open_scoring
from tidegate.environment.own_code.episodes import OwnEpisodes
from tidegate.environment.parts import tools_of
from tidegate.environment.scoring import checked, judged_by
from tidegate.environment.state import TASK, AnsweredProblem, combined
from tidegate.environment.tasks.port import Problem, Score
from tidegate.runtime.config import WorkloadConfig


class PlayedText(msgspec.Struct, frozen=True):
    """One episode: what the policy would have read and what stood for it, in order, and the verdict.

    ``turns``: each turn with the reply to it, which is empty at the end. ``end``: why it ended. ``parts``: the score
    of each verifier by its name. ``took_s``: of the environment and the verifiers. ``env``: its name, where a run has
    several.
    """

    prompt: str
    turns: list[tuple[str, str]]
    end: str
    reward: float
    components: dict[str, float]
    parts: dict[str, float]
    took_s: float
    env: str = ""


async def play_text(
    workload: WorkloadConfig,
    config: EnvironmentConfig,
    problem: Problem,
    scripts: Sequence[Sequence[str]],
    *,
    folder: str,
) -> list[PlayedText]:
    """An episode about ``problem`` for each script, whose texts are the turns; the last one is repeated.

    ``folder``: of the run file.

    Raises:
        ConfigError: something cannot be loaded or opened, or a verifier or the conversation failed; with file and line.
    """
    async with AsyncExitStack() as stack:
        scoring = await stack.enter_async_context(
            open_scoring(workload, config, folder=folder, num_processes=1)
        )
        own = scoring.envs.own.get(workload.env)
        converse = None
        if workload.turns_max > 1 and own is not None:
            episodes = OwnEpisodes(own, scoring.bounds, report=lambda _failed, _problem, _text: None)
            stack.push_async_callback(episodes.close)
            await episodes.start()
            converse = partial(_converse_own, episodes, problem)
        elif workload.turns_max > 1:
            converse = partial(_converse, workload.env, problem, tools_of(config, sandbox=scoring.sandbox))
        played: list[PlayedText] = []
        for script in scripts:
            began_s = time.monotonic()
            if converse is None:
                turns, last, opening = [(script[0], "")], None, problem.prompt
            else:
                opening, turns, last = await converse(script, workload.turns_max)
            answer = AnsweredProblem(problem, "\n".join(text for turn in turns for text in turn if text))
            parts: dict[str, Judgement] = {}
            if TASK in config.weights():
                own_score = None if last is None else last.score
                parts[TASK] = (
                    (await scoring.scorer.judge(workload.env, [answer]))[0]
                    if converse is None
                    else checked(own_score or Score(0.0, {}, "its turns are used up"))
                )
            for name, verifier in scoring.verifiers.items():
                parts[name] = await judged_by(verifier, answer)
            end = "scored" if converse is None or last is None else _end_of(last, num=len(turns))
            played.append(_verdict(config, opening, turns, end, parts, took_s=time.monotonic() - began_s))
    return played


def _verdict(
    config: EnvironmentConfig,
    prompt: str,
    turns: list[tuple[str, str]],
    end: str,
    parts: dict[str, Judgement],
    *,
    took_s: float,
) -> PlayedText:
    scores: dict[str, Score] = {}
    for name, part in parts.items():
        if isinstance(part, VerifierFailed):
            raise ConfigError(
                f"The verifier {name} failed on {turns[-1][0]!r} for {prompt[:200]!r}",
                why=part.why,
                fix="correct its code",
            )
        scores[name] = part
    whole = combined(scores, config.weights(), partial_credit=None)
    assert isinstance(whole, Score), "no part failed"
    return PlayedText(
        prompt,
        turns,
        end,
        whole.reward,
        whole.components,
        {name: score.reward for name, score in scores.items()},
        took_s,
    )


Conversed = tuple[str, list[tuple[str, str]], ConversationTurn | None]


async def _converse_own(
    episodes: OwnEpisodes, problem: Problem, script: Sequence[str], turns_max: int
) -> Conversed:
    episode = await episodes.begin(problem, seed=0)
    try:
        return await _turns(partial(episodes.reply, episode), episode.opening, script, turns_max)
    finally:
        await episodes.end(episode)


async def _converse(
    env_id: str, problem: Problem, tools: Tools, script: Sequence[str], turns_max: int
) -> Conversed:
    conversation = CONVERSATIONS[env_id].begin(problem, seed=0, tools=tools)

    async def reply(text: str) -> ConversationTurn:
        return await asyncio.to_thread(conversation.reply, text)

    return await _turns(reply, conversation.opening, script, turns_max)


async def _turns(
    reply: Callable[[str], Awaitable[ConversationTurn]], opening: str, script: Sequence[str], turns_max: int
) -> Conversed:
    turns: list[tuple[str, str]] = []
    turn: ConversationTurn | None = None
    for index in range(turns_max):
        text = script[min(index, len(script) - 1)]
        turn = await reply(text)
        turns.append((text, turn.observation))
        if turn.done:
            break
    return opening, turns, turn


def _end_of(last: ConversationTurn, *, num: int) -> str:
    if not last.done:
        return f"cut after {num} turns (workload.turns_max)"
    return f"{'its turns were used up' if last.truncated else 'ended'} after {num} turns"
