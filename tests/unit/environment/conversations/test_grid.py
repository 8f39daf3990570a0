"""Key and door: views, walls, the key, and shortest ways against a slow twin."""

import random

import pytest

from tidegate.core.errors import RecordError
from tidegate.environment.conversations.grid import TURNS_MAX, GridEpisode, KeyAndDoor, reference_turns, view
from tidegate.environment.conversations.grid_map import (
    MOVES,
    GridMap,
    draw_map,
    moved,
    read_map,
    shortest_moves,
)
from tidegate.environment.tasks.port import Problem

# A corridor bends around a wall; the door stands between the start and the key.
MAP = "*d./.=./..k"


def episode(text: str = MAP) -> GridEpisode:
    return GridEpisode(Problem("p", "", text, "all"))


def test_view_shows_the_cells_around_and_where_the_goal_lies() -> None:
    assert episode().opening == "===\n=*d\n=.=\nk:r2d2"
    game = episode()
    assert game.reply("d").observation == "=.d\n=*=\n=..\nk:r2d1"


def test_door_is_shut_without_the_key_and_ends_the_episode_with_it() -> None:
    game = episode()
    assert game.reply("r").observation == game.opening
    turns = [game.reply(move) for move in "ddrruul"]
    assert [turn.done for turn in turns] == [False] * 6 + [True]
    assert turns[3].observation.endswith("d:l1u2"), "with the key in hand the compass shows the door"
    assert turns[-1].score is not None
    assert turns[-1].score.components == {"exact": 1.0, "key": 1.0}


@pytest.mark.parametrize("text", ["", "up", "dd", "U", "d ", "x"])
def test_what_is_no_move_is_answered_by_a_question_mark_and_moves_nothing(text: str) -> None:
    game = episode()
    assert game.reply(text).observation == f"?\n{game.opening}"


@pytest.mark.parametrize(("moves", "reward"), [("", 0.0), ("ddrr", 0.2)])
def test_used_up_turns_are_worth_the_key_alone(moves: str, reward: float) -> None:
    game = episode()
    for move in moves:
        game.reply(move)
    turns = [game.reply("?") for _ in range(TURNS_MAX - len(moves))]
    assert [turn.done for turn in turns] == [False] * (len(turns) - 1) + [True]
    assert turns[-1].truncated
    assert turns[-1].score is not None
    assert turns[-1].score.reward == reward


@pytest.mark.parametrize(
    "text",
    ["", "*kd/..", "*k.", "*kdd", "*kdx", "/".join(["." * 65] * 3), "**kd", "*kd/" + "/".join(["..."] * 64)],
)
def test_text_that_is_no_map_is_refused(text: str) -> None:
    with pytest.raises(RecordError, match="is no map"):
        read_map(text)


def slow_length(grid: GridMap) -> int | None:
    """The length of a shortest way, by widening the set of states (cell, key in hand) one move at a time."""
    states = {(grid.start, False)}
    seen = set(states)
    length = 0
    while states:
        if (grid.door, True) in states:
            return length
        onward = {
            (moved(cell, move), has_key or moved(cell, move) == grid.key)
            for cell, has_key in states
            for move in MOVES
            if grid.open_to(moved(cell, move), has_key=has_key)
        }
        states = onward - seen
        seen |= states
        length += 1
    return None


def test_ways_are_as_short_as_a_slow_search_finds_them() -> None:
    rng = random.Random(0)
    lengths: list[int | None] = []
    for _ in range(200):
        grid = read_map(draw_map(rng, side=rng.randint(2, 7), wall_share=0.3))
        moves = shortest_moves(grid)
        lengths.append(None if moves is None else len(moves))
        assert lengths[-1] == slow_length(grid)
    assert None in lengths


def test_problems_take_as_many_turns_as_their_bin_says() -> None:
    for problem in KeyAndDoor().problems("train", seed=0)[:300]:
        num_moves = len(reference_turns(problem))
        assert 3 <= num_moves <= int(problem.bin.removeprefix("moves-")) <= TURNS_MAX
        grid = read_map(problem.answer)
        assert problem.prompt == view(grid, grid.start, has_key=False)
