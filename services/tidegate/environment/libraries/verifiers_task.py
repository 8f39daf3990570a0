"""The dataset of an environment of `verifiers` as the problems of a run; its episodes are played by the worker.

A problem's id says which row it is: ``train-12`` or ``eval-3``.
"""

import random
from collections.abc import Sequence
from typing import Any

import msgspec

from tidegate.core.errors import ConfigError
from tidegate.environment.libraries.verifiers_env import VerifiersEnv, text_of
from tidegate.environment.libraries.verifiers_settings import VerifiersSettings
from tidegate.environment.tasks.port import SPLITS, Problem, Score, Split
from tidegate.environment.tasks.splits import split_of

ROWS_MAX = 1_000_000


class VerifiersTask:
    """As own code: ``problems``. A score outside of an episode there is not."""

    def __init__(self, **settings: Any) -> None:
        """``settings``: the fields of ``VerifiersSettings``. Nothing is loaded before its problems are asked for."""
        self._settings = msgspec.convert(settings, VerifiersSettings)
        self._env: VerifiersEnv | None = None

    def problems(self, split: Split, *, seed: int) -> Sequence[Problem]:
        """The rows to train on, and those to evaluate on where the environment has some.

        Raises:
            ConfigError: as ``VerifiersEnv``, or it has no rows.
            BaseException: what the environment raised.
        """
        if self._env is None:
            self._env = VerifiersEnv(self._settings)
        own, other = (_problems(self._env, name) for name in ("train", "eval"))
        if own and other:
            return shuffled(own if split == "train" else other, seed=seed)
        rows = own or other
        # Without rows to evaluate on, a fifth of the others is held out; of a few rows that is none, and they are both.
        halves = {half: split_of(rows, half, seed=seed) for half in SPLITS}
        return halves[split] if all(halves.values()) else shuffled(rows, seed=seed)

    def demonstrations(self, *, seed: int, count: int) -> list[Any]:
        """None: an environment has answers, and no episodes."""
        return []

    def score(self, problem: Problem, completion: str) -> Score:
        """Never.

        Raises:
            ConfigError: always.
        """
        raise ConfigError(
            f"{self._settings.id} scores only its own episodes",
            why="its rubric reads what happened in them",
            fix="leave environment.rewards out; its episodes have their rewards through actor.gateway",
        )


def shuffled(problems: Sequence[Problem], *, seed: int) -> Sequence[Problem]:
    """All of them, in the order of a seed."""
    order = list(problems)
    random.Random(seed).shuffle(order)
    return order


def row_of(env: VerifiersEnv, prompt_id: str) -> dict[str, Any]:
    """The row of a problem.

    Raises:
        ConfigError: the environment has no such row: its dataset is another one than when the run's was written.
    """
    split, _, number = prompt_id.rpartition("-")
    rows = env.rows(split) if split in ("train", "eval") and number.isdecimal() else []
    if not number.isdecimal() or int(number) >= len(rows):
        raise ConfigError(
            f"The environment has no row {prompt_id!r}",
            why=f"its dataset has {len(rows)} rows",
            fix="start a new run: the environment's package or workload.env_kwargs changed",
        )
    return rows[int(number)]


def _problems(env: VerifiersEnv, split: str) -> list[Problem]:
    return [
        Problem(f"{split}-{number}", text_of(row["prompt"]), str(row.get("answer") or ""), "all")
        for number, row in enumerate(env.rows(split)[:ROWS_MAX])
    ]
