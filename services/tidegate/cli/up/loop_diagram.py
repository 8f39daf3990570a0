"""The training loop as five lines of text: each service, its state, and the direction of work."""

import msgspec
from rich.text import Text

from tidegate.catalogue import actor as actor_stats
from tidegate.catalogue import environment as environment_stats
from tidegate.catalogue import learner as learner_stats
from tidegate.catalogue import task_queue as queue_stats
from tidegate.catalogue import trajectory_store as store_stats
from tidegate.catalogue.kinds import Counter, Gauge
from tidegate.launch.board import Board
from tidegate.launch.live_run import LiveRun

DIM, BOLD, ACCENT, GOOD, WARN = "bright_black", "bold", "cyan", "green", "yellow"


class _Piece(msgspec.Struct, frozen=True):
    """Text at a column."""

    column: int
    text: str
    style: str


def draw_loop(live: LiveRun, values: dict[str, float], *, width: int) -> list[Text]:
    """The services in the order of the flow of work, their states below, then weights and limits on their way back."""
    inline = live.plan.file.workload.kind == "segments"
    names = [
        "task_queue",
        f"actor ×{live.plan.replicas['actor']}",
        "environment",
        "trajectory_store",
        "learner",
    ]
    gap = max(4, (width - 2 - sum(map(len, names)) - 9) // 4)
    columns = [1]
    for name in names[:-1]:
        columns.append(columns[-1] + len(name) + gap)
    queue, actor, environment, _, learner = columns
    step = values.get(learner_stats.VERSION_STEP)
    states = [
        f"{_count(values, queue_stats.RUNNING_TRAJECTORIES)} running",
        _served(live.board, step),
        "rewards inline" if inline else f"{_count(values, environment_stats.SCORED)} scored",
        f"{_count(values, store_stats.AVAILABLE_TRAJECTORIES)} ready",
        f"{_count(values, store_stats.LEASED_TRAJECTORIES)} in batch",
    ]
    flow: list[_Piece] = []
    for index, (column, name) in enumerate(zip(columns, names, strict=True)):
        flow.append(_Piece(column, name, DIM if inline and name == "environment" else BOLD))
        if index < len(names) - 1:
            flow.append(_Piece(column + len(name) + 1, "─" * (gap - 3) + "▶", DIM))
    below = [_Piece(column, state, ACCENT) for column, state in zip(columns, states, strict=True)]
    if inline:
        below[2] = _Piece(environment, states[2], DIM)
    distribution = "weight_distribution"
    head = f" v{int(step)} " if step is not None else " ─ "
    back = learner + 3 - (actor + len(distribution) + 1)
    line = "◀" + "─" * max(0, (back - len(head)) // 2)
    rest = "─" * max(0, back - len(line) - len(head)) + "┘"
    up = [
        _Piece(queue + 4, "▲", DIM),
        _Piece(actor + 4, "▲", DIM),
        _Piece(learner + 3, "│", DIM),
    ]
    returning = [
        _Piece(queue, "admission", BOLD),
        _Piece(actor, distribution, BOLD),
        _Piece(actor + len(distribution) + 1, line, DIM),
        _Piece(actor + len(distribution) + 1 + len(line), head, ACCENT),
        _Piece(actor + len(distribution) + 1 + len(line) + len(head), rest, DIM),
    ]
    state = admission_state(live.board)
    reason = [_Piece(queue, state, GOOD if state == "admitting" else WARN)]
    return [_line(pieces) for pieces in (flow, below, up, returning, reason)]


def admission_state(board: Board) -> str:
    """The state of admission control as the task queue reports it, without the advice that follows."""
    for stats in board.of("task_queue"):
        return stats.labels.get(queue_stats.ADMISSION_STATE, "–").partition(":")[0]
    return "–"


def _served(board: Board, step: float | None) -> str:
    name = actor_stats.SERVING_STEP
    served = [stats.values[name] for stats in board.of("actor") if name in stats.values]
    if not served:
        return "no policy"
    oldest = min(served)
    behind = max(0, int((step if step is not None else oldest) - oldest))
    return f"v{int(oldest)}, {behind} behind"


def _count(values: dict[str, float], name: Counter | Gauge) -> str:
    return f"{int(values[name]):,}" if name in values else "–"


def _line(pieces: list[_Piece]) -> Text:
    line = Text()
    for piece in pieces:
        line.append(" " * max(0, piece.column - len(line.plain)))
        line.append(piece.text, style=piece.style)
    return line
