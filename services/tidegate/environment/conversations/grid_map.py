"""Maps of a grid with walls, a key and a door: read, drawn at random, and solved.

A map is rows of characters: ``=`` wall, ``.`` floor, ``*`` the start, ``k`` the key, ``d`` the door. As one text its
rows are separated by ``/``. What lies outside is wall.
"""

import random
from collections import deque

import msgspec

from tidegate.core.errors import RecordError

WALL, FLOOR, START, KEY, DOOR = "=.*kd"
SIDE_MAX = 64
# Change of row and column by the letter of a move. Ties between shortest ways are broken in this order.
MOVES = {"u": (-1, 0), "d": (1, 0), "l": (0, -1), "r": (0, 1)}

Cell = tuple[int, int]


class GridMap(msgspec.Struct, frozen=True):
    """A map, and where things are on it."""

    rows: tuple[str, ...]
    start: Cell
    key: Cell
    door: Cell

    def at(self, cell: Cell) -> str:
        """The character of a cell."""
        row, column = cell
        if not (0 <= row < len(self.rows) and 0 <= column < len(self.rows[row])):
            return WALL
        return self.rows[row][column]

    def open_to(self, cell: Cell, *, has_key: bool) -> bool:
        """Whether a move may enter a cell: the door requires the key."""
        place = self.at(cell)
        return place != WALL and (has_key or place != DOOR)


def moved(cell: Cell, move: str) -> Cell:
    """The cell that a move leads to."""
    rows, columns = MOVES[move]
    return cell[0] + rows, cell[1] + columns


def read_map(text: str) -> GridMap:
    """The map of a text.

    Raises:
        RecordError: the text is no map.
    """
    rows = tuple(text.split("/"))
    flat = "".join(rows)
    if (
        len(rows) > SIDE_MAX
        or any(len(row) != len(rows[0]) for row in rows)
        or len(rows[0]) > SIDE_MAX
        or set(flat) - {WALL, FLOOR, START, KEY, DOOR}
        or any(flat.count(thing) != 1 for thing in (START, KEY, DOOR))
    ):
        raise RecordError(
            f"{text[:80]!r} is no map",
            why="equally long rows of '=', '.', and one each of '*', 'k' and 'd' are required, with '/' between them",
        )
    places = {
        thing: (row, line.index(thing))
        for row, line in enumerate(rows)
        for thing in (START, KEY, DOOR)
        if thing in line
    }
    return GridMap(rows, places[START], places[KEY], places[DOOR])


def draw_map(rng: random.Random, *, side: int, wall_share: float) -> str:
    """A random map as text; it may have no way through."""
    cells = [WALL if rng.random() < wall_share else FLOOR for _ in range(side * side)]
    for place, thing in zip(rng.sample(range(side * side), 3), (START, KEY, DOOR), strict=True):
        cells[place] = thing
    return "/".join("".join(cells[row * side : (row + 1) * side]) for row in range(side))


def shortest_moves(grid: GridMap) -> list[str] | None:
    """The moves of a shortest way to the key and on to the door; None when there is no way."""
    to_key = _way(grid, grid.start, grid.key, has_key=False)
    to_door = _way(grid, grid.key, grid.door, has_key=True)
    return None if to_key is None or to_door is None else to_key + to_door


def _way(grid: GridMap, start: Cell, goal: Cell, *, has_key: bool) -> list[str] | None:
    """Breadth first."""
    came_by: dict[Cell, str] = {start: ""}
    waiting = deque([start])
    while waiting and goal not in came_by:
        cell = waiting.popleft()
        for move in MOVES:
            onward = moved(cell, move)
            if onward not in came_by and grid.open_to(onward, has_key=has_key):
                came_by[onward] = move
                waiting.append(onward)
    if goal not in came_by:
        return None
    moves: list[str] = []
    cell = goal
    while move := came_by[cell]:
        moves.append(move)
        rows, columns = MOVES[move]
        cell = cell[0] - rows, cell[1] - columns
    return moves[::-1]
