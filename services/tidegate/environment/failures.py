"""Failures of verifiers, told once and counted: the first of each kind is logged whole, later ones are numbers.

A kind is a verifier with the type of what it raised or returned and the place in its code.
"""

from collections.abc import Mapping, Sequence

import structlog

from tidegate.catalogue import environment as statistics
from tidegate.environment.judgements import Judgement, VerifierFailed
from tidegate.environment.state import AnsweredProblem, OnError
from tidegate.runtime.stats_board import StatsBoard

# Kinds that are counted apart; all others are one.
KINDS_MAX = 64
SAMPLE_CHARS_MAX = 400
OTHERS = ("", "", "")

# What a failed verdict costs, by ``on_error``.
CONSEQUENCES: dict[OnError, str] = {
    "drop": "its group is dropped as failed",
    "zero": "it trains as reward 0",
    "partial": "it trains as partial_credit",
}


class FailureReports:
    """Counts verdicts and failures of one worker, and logs the first failure of each of ``KINDS_MAX`` kinds."""

    def __init__(self, stats: StatsBoard, log: structlog.stdlib.BoundLogger, *, on_error: OnError) -> None:
        """``on_error``: what a failure costs, for the log."""
        self._stats = stats
        self._log = log
        self._on_error: OnError = on_error
        self._counts: dict[tuple[str, str, str], int] = {}
        self._sentences: dict[tuple[str, str, str], str] = {}
        stats.add(statistics.VERDICTS, 0.0)
        stats.add(statistics.VERIFIER_FAILURES, 0.0)

    def judged(self, parts: Mapping[str, Sequence[Judgement]], answers: Sequence[AnsweredProblem]) -> None:
        """Note the verdicts of each verifier, by its name, on ``answers``."""
        for verifier, judgements in parts.items():
            self._stats.add(statistics.VERDICTS, len(judgements))
            for judgement, answer in zip(judgements, answers, strict=True):
                if isinstance(judgement, VerifierFailed):
                    self._failed(verifier, judgement, answer)

    def _failed(self, verifier: str, failed: VerifierFailed, answer: AnsweredProblem) -> None:
        self._stats.add(statistics.VERIFIER_FAILURES)
        kind = (verifier, failed.kind, failed.where)
        if kind not in self._counts:
            if len(self._counts) >= KINDS_MAX:
                kind = OTHERS
            else:
                self._log_first(verifier, failed, answer)
        self._counts[kind] = self._counts.get(kind, 0) + 1
        self._sentences.setdefault(kind, f"{verifier}: {failed.why}")
        most = max(self._counts, key=self._counts.__getitem__)
        self._stats.label(statistics.VERIFIER_FAILURE, self._sentences[most])

    def _log_first(self, verifier: str, failed: VerifierFailed, answer: AnsweredProblem) -> None:
        self._log.error(
            "verifier_failed",
            verifier=verifier,
            error=failed.why,
            consequence=CONSEQUENCES[self._on_error],
            traceback=failed.traceback,
            prompt=_sample(answer.problem.prompt),
            answer=_sample(answer.problem.answer),
            completion=_sample(answer.completion),
            more="further failures of this kind are counted, and not logged",
        )


def _sample(text: str) -> str:
    return text if len(text) <= SAMPLE_CHARS_MAX else f"{text[:SAMPLE_CHARS_MAX]}…"
