"""Scores as values: the cache of them, what a failed verifier means, the record once it is scored."""

import hashlib
from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Literal, TypeAlias

import msgspec

from tidegate.core.cut_off import as_judged
from tidegate.core.errors import RecordError
from tidegate.core.records import StageTiming, Trajectory
from tidegate.environment.judgements import LOG_CHARS_MAX, Judgement, VerifierFailed
from tidegate.environment.tasks.port import Problem, Score

STAGE_SCORE = "reward.score"
# The name of a task's own score among the parts of a reward.
TASK = "task"
DIGEST_BYTES = 16


class AnsweredProblem(msgspec.Struct, frozen=True):
    """A completion and the problem it answers."""

    problem: Problem
    completion: str


OnError: TypeAlias = Literal["zero", "drop", "partial"]
# From an environment's name and a problem of the run to that problem as the environment itself wrote it.
ProblemOf: TypeAlias = Callable[[str, Problem], Problem]


class ScoreCache:
    """Scores by (verifier, problem, completion), least recently used out first. Failures are not kept.

    The verifier of a task's own score is its environment; others have their names.

    At most ``num_max`` entries; a new one evicts the least recently used one. Texts are kept as their digests: 65,536
    answers of 8,000 tokens are 2 GB.
    """

    def __init__(self, *, num_max: int) -> None:
        """Start with an empty cache; with ``num_max`` 0 it keeps nothing."""
        self._num_max = num_max
        self._scores: OrderedDict[bytes, Score] = OrderedDict()

    def __len__(self) -> int:
        """Scores kept now."""
        return len(self._scores)

    def get(self, source: str, answer: AnsweredProblem) -> Score | None:
        """A score given before. The whole problem counts: its id alone could come with another answer."""
        if not self._num_max:
            return None
        key = _digest(source, answer)
        score = self._scores.get(key)
        if score is not None:
            self._scores.move_to_end(key)
        return score

    def put(self, source: str, answer: AnsweredProblem, score: Score) -> None:
        """Keep a score."""
        if not self._num_max:
            return
        self._scores[_digest(source, answer)] = score
        while len(self._scores) > self._num_max:
            self._scores.popitem(last=False)


def _digest(source: str, answer: AnsweredProblem) -> bytes:
    return hashlib.blake2b(msgspec.msgpack.encode((source, answer)), digest_size=DIGEST_BYTES).digest()


def answer_of(record: Trajectory) -> AnsweredProblem:
    """What a verifier needs of a record."""
    problem = Problem(
        prompt_id=record.prompt_id, prompt=record.prompt, answer=record.answer, bin=record.curriculum_bin
    )
    return AnsweredProblem(problem, as_judged(record.completion, finish_reason=record.finish_reason))


def check_group(records: Sequence[Trajectory], *, envs: Collection[str]) -> None:
    """Whether the records of one message are one whole group of one environment (I6).

    Raises:
        RecordError: samples are missing, doubled, or belong elsewhere.
    """
    first = records[0]
    other = next((record for record in records if record.env_id not in envs), None)
    if other is not None:
        raise RecordError(
            f"Group {other.group_id} belongs to environment {other.env_id!r}",
            why=f"this worker scores {', '.join(map(repr, sorted(envs)))}",
        )
    if any(record.env_id != first.env_id for record in records):
        raise RecordError(f"Group {first.group_id} is of several environments")
    if any(record.group_id != first.group_id for record in records):
        raise RecordError(f"A message mixes group {first.group_id} with others")
    ids = {record.trajectory_id for record in records}
    if len(ids) != len(records) or any(record.group_size != len(records) for record in records):
        raise RecordError(
            f"Group {first.group_id} of {first.group_size} came as {len(ids)} samples in {len(records)} records",
            why="a group travels whole, or it is not trained",
        )


def combined(
    parts: Mapping[str, Judgement], weights: Mapping[str, float], *, partial_credit: float | None
) -> Judgement:
    """One judgement of the parts: the weighted sum of their scores, with every part kept.

    ``parts`` and ``weights`` have the same names. A task's own components keep their names, a verifier's follow its
    own. A failed part counts as ``partial_credit``; where that is None, it fails the whole.
    """
    failed = {name: part for name, part in parts.items() if isinstance(part, VerifierFailed)}
    if failed and partial_credit is None:
        return VerifierFailed("; ".join(f"{name}: {part.why}" for name, part in failed.items()))
    if weights == {TASK: 1.0} and not failed:
        return parts[TASK]
    reward, components, logs = 0.0, dict[str, float](), list[str]()
    for name, part in parts.items():
        match part:
            case Score():
                score = part
            case VerifierFailed(why):
                credit = partial_credit or 0.0
                score = Score(credit, {}, f"failed and counts as {credit:g}: {why}")
        reward += weights[name] * score.reward
        components |= {
            component if name == TASK else f"{name}.{component}": value
            for component, value in score.components.items()
        }
        components[name] = score.reward
        logs.append(f"{name}: {score.log}")
    return Score(reward, components, " | ".join(logs))


def resolve_failure(judgement: Judgement, *, on_error: OnError) -> Score | None:
    """The score to write; None when a failed verifier means that the rollout is dropped."""
    match judgement:
        case Score():
            return judgement
        case VerifierFailed(why):
            if on_error == "drop":
                return None
            return Score(reward=0.0, components={}, log=f"verifier failed: {why}")


def scored(records: Sequence[Trajectory], scores: Sequence[Score], *, stage: StageTiming) -> list[Trajectory]:
    """The records of one group with their rewards, one hop older."""
    return [
        msgspec.structs.replace(
            record,
            reward=score.reward,
            reward_components=score.components,
            verifier_log=score.log[:LOG_CHARS_MAX],
        ).with_stage(stage)
        for record, score in zip(records, scores, strict=True)
    ]


def with_trace(record: Trajectory, trace_parent: str) -> Trajectory:
    """The record with another parent for its next spans."""
    return msgspec.structs.replace(record, trace_parent=trace_parent)
