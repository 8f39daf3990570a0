"""Key and door: find the key, then the door, seeing only the 3 by 3 cells around, one move a turn.

An observation is three rows of the view (``*`` in the middle is the policy) and a compass: the goal and where
it lies, ``k:r2d1`` for a key two to the right and one down. A turn is one of ``u``, ``d``, ``l`` and ``r``. Walls stand
in the way of the compass now and then; an episode takes 3 to 60 turns.
"""

import hashlib
import random
from collections.abc import Sequence
from functools import lru_cache

from tidegate.environment.conversations.episodes import demonstrate, score_of_one_turn
from tidegate.environment.conversations.grid_map import (
    DOOR,
    KEY,
    MOVES,
    START,
    Cell,
    GridMap,
    draw_map,
    moved,
    read_map,
    shortest_moves,
)
from tidegate.environment.conversations.port import ConversationTurn
from tidegate.environment.conversations.tools import NO_TOOLS, Tools
from tidegate.environment.tasks.port import Demonstration, Problem, Score, Split
from tidegate.environment.tasks.splits import repeated, split_of

NUM_MAPS = 4_000
DRAW_SEED = 360
SIDES = (3, 4, 5, 6, 8, 12, 16)
WALL_SHARE = 0.2
MOVES_MIN = 3
TURNS_MAX = 60
BINS_UP_TO = (6, 10, 15, 25, TURNS_MAX)
# Reward for the key without the door.
KEY_WEIGHT = 0.2
NOT_A_MOVE = "?"


class KeyAndDoor:
    """The task. Its curriculum bin is the length of a shortest way: ``moves-6`` for up to 6, to ``moves-60``."""

    @property
    def deterministic(self) -> bool:
        """True: the map belongs to the problem."""
        return True

    def problems(self, split: Split, *, seed: int) -> Sequence[Problem]:
        """All problems of a split, shuffled by ``seed``."""
        return split_of(_all_problems(), split, seed=seed)

    def begin(self, problem: Problem, *, seed: int, tools: Tools) -> "GridEpisode":
        """An episode about a problem.

        Raises:
            RecordError: the problem has no map.
        """
        del seed, tools
        return GridEpisode(problem)

    def score(self, problem: Problem, completion: str) -> Score:
        """0: no problem is solved in one move."""
        return score_of_one_turn(self.begin(problem, seed=0, tools=NO_TOOLS), completion)

    def demonstrations(self, *, seed: int, count: int) -> Sequence[Demonstration]:
        """Whole episodes about ``count`` training problems, along a shortest way."""
        problems = repeated(self.problems("train", seed=seed), count=count)
        return [demonstrate(GridEpisode(problem), reference_turns(problem)) for problem in problems]


class GridEpisode:
    """The state of an episode: the cell, whether the key was found, the turns taken."""

    def __init__(self, problem: Problem) -> None:
        """At the start, without the key.

        Raises:
            RecordError: the problem has no map.
        """
        self._grid = read_map(problem.answer)
        self._cell = self._grid.start
        self._has_key = False
        self._num_turns = 0

    @property
    def opening(self) -> str:
        """The view from the start."""
        return view(self._grid, self._grid.start, has_key=False)

    def reply(self, text: str) -> ConversationTurn:
        """The view after a move, unchanged after a move into a wall, with a ``?`` before it for an invalid move."""
        self._num_turns += 1
        note = "" if text in MOVES else f"{NOT_A_MOVE}\n"
        if text in MOVES and self._grid.open_to(moved(self._cell, text), has_key=self._has_key):
            self._cell = moved(self._cell, text)
        self._has_key = self._has_key or self._cell == self._grid.key
        if self._has_key and self._cell == self._grid.door:
            return ConversationTurn("", score=Score(1.0, {"exact": 1.0, "key": 1.0}, "solved"))
        observation = note + view(self._grid, self._cell, has_key=self._has_key)
        if self._num_turns < TURNS_MAX:
            return ConversationTurn(observation)
        verdict = "the door was not reached" if self._has_key else "the key was not found"
        components = {"exact": 0.0, "key": float(self._has_key)}
        score = Score(KEY_WEIGHT * self._has_key, components, verdict)
        return ConversationTurn(observation, score=score, truncated=True)


def view(grid: GridMap, cell: Cell, *, has_key: bool) -> str:
    """The nine cells around, and where the key lies, or the door once the key is found."""
    row, column = cell
    goal, name = (grid.door, DOOR) if has_key else (grid.key, KEY)
    lines: list[str] = []
    for around in (-1, 0, 1):
        cells = [grid.at((row + around, column + beside)) for beside in (-1, 0, 1)]
        # The start becomes floor once the policy leaves it, and the key disappears once taken.
        lines.append(
            "".join("." if place == START or (has_key and place == KEY) else place for place in cells)
        )
    lines[1] = lines[1][0] + START + lines[1][2]
    down, right = goal[0] - row, goal[1] - column
    compass = (f"{'r' if right > 0 else 'l'}{abs(right)}" if right else "") + (
        f"{'d' if down > 0 else 'u'}{abs(down)}" if down else ""
    )
    return "\n".join([*lines, f"{name}:{compass}"])


def reference_turns(problem: Problem) -> list[str]:
    """The moves of a shortest way through the problem's map."""
    moves = shortest_moves(read_map(problem.answer))
    assert moves is not None, "a problem has a way through its map"
    return moves


@lru_cache(maxsize=1)
def _all_problems() -> tuple[Problem, ...]:
    """Every problem; cached, because the search for ways takes a second."""
    rng = random.Random(DRAW_SEED)
    problems: list[Problem] = []
    while len(problems) < NUM_MAPS:
        text = draw_map(rng, side=rng.choice(SIDES), wall_share=WALL_SHARE)
        grid = read_map(text)
        moves = shortest_moves(grid)
        if moves is None or not MOVES_MIN <= len(moves) <= TURNS_MAX:
            continue
        up_to = next(limit for limit in BINS_UP_TO if len(moves) <= limit)
        name = hashlib.sha256(text.encode()).hexdigest()[:16]
        problems.append(Problem(name, view(grid, grid.start, has_key=False), text, f"moves-{up_to}"))
    return tuple(problems)
