"""The live view: progress of the run, staleness of its data, and the bottleneck.

Drawn as plain styled text, four times a second: tables with layout cost ten times the CPU, and the view's share
counts as the platform's.
"""

from textwrap import wrap

from rich.text import Text

from tidegate.catalogue import actor as actor_stats
from tidegate.catalogue import admission as admission_stats
from tidegate.catalogue import learner as learner_stats
from tidegate.catalogue import process as process_stats
from tidegate.catalogue import supervisor as supervisor_stats
from tidegate.catalogue import task_queue as queue_stats
from tidegate.catalogue import trajectory_store as store_stats
from tidegate.catalogue.services import DECLARED, is_declared
from tidegate.cli.up.chart import bar, block_rows, resample
from tidegate.cli.up.loop_diagram import draw_loop
from tidegate.core.targets import unknown_statistic_hint
from tidegate.launch.board import Board, drops
from tidegate.launch.live_run import (
    BROKER,
    TRAINING,
    LiveRun,
    backup_of,
    backup_problem_of,
    disk_problem_of,
)
from tidegate.launch.services import SERVICES, instances
from tidegate.runtime.evaluations import ALIASES
from tidegate.wire.permissions import SUPERVISOR
from tidegate.wire.stats import ServiceStats

WIDTH_MIN = 72
WIDTH_MAX = 110
CHART_HEIGHT_MAX = 7
CHART_HEIGHT_MIN = 2
STALE_AFTER_S = 3.0
ADVICE_LINES_MAX = 2
PROBLEM_LINES_MAX = 3

DIM, BOLD, ACCENT, GOOD, WARN, BAD = "bright_black", "bold", "cyan", "green", "yellow", "red"
STATE_STYLE = {
    "ready": GOOD,
    "running": GOOD,
    "starting": WARN,
    "draining": WARN,
    "stopping": WARN,
    "stopped": DIM,
}

# Actors, environment workers and the learner report it under one name.
BUSY = actor_stats.BUSY_S


def draw(live: LiveRun, *, width: int, height: int, now_s: float) -> Text:
    """The whole screen as one text of at most ``height`` lines."""
    width = max(WIDTH_MIN, min(WIDTH_MAX, width - 1))
    values = live.board.values()
    top = [*_header(live, values, width=width)]
    below = [
        *draw_loop(live, values, width=width),
        Text(),
        *_staleness(live, values),
        *_problems(live.board, width=width),
        *_backup(live.board),
        Text(),
        *_services(live, now_s=now_s),
        Text(),
        *_diagnosis(live.board, width=width),
    ]
    room = height - len(top) - len(below) - 3
    chart = _chart(live, values, width=width, height=max(CHART_HEIGHT_MIN, min(CHART_HEIGHT_MAX, room)))
    lines = [*top, *chart, Text(), *below]
    if len(lines) >= height:
        lines = [line for line in lines if line.plain]  # a small terminal drops blank lines first
    for line in lines:
        line.truncate(width)
    return Text("\n").join(lines)


def missing_statistic(name: str, values: dict[str, float]) -> str:
    """Of a target whose number is not there yet: whether it will come."""
    will_come = is_declared(ALIASES.get(name, name))
    return f"no {name} yet" if will_come else unknown_statistic_hint(name, values)


def _header(live: LiveRun, values: dict[str, float], *, width: int) -> list[Text]:
    version = live.board.version() or "no version yet"
    left = Text.assemble((" tidegate ", f"bold black on {ACCENT}"), "  ", (live.run_id, BOLD))
    right = Text.assemble(
        (f"version {version}", DIM),
        "   ",
        clock(live.elapsed_s()),
        "   ",
        (f"● {live.phase}", _phase_style(live)),
    )
    lines = [_spread(left, right, width=width)]
    for condition in live.target.conditions:
        value = values.get(condition.name)
        share = (value or 0.0) / condition.threshold if condition.threshold else 0.0
        text = number(value) if value is not None else "–"
        if value is None and live.phase == TRAINING:
            text = missing_statistic(condition.name, values)
        done = condition.holds(value)
        label = f" target  {condition}  "
        filled, empty = bar(
            1.0 if done else min(share, 0.999), width=max(0, width - len(label) - len(text) - 3)
        )
        style = GOOD if done else ACCENT
        lines.append(
            Text.assemble((label, DIM), (filled, style), (empty, DIM), "  ", (text, f"bold {style}"))
        )
    if not live.target.conditions:
        limit = f" of {clock(live.time_limit_s)}" if live.time_limit_s else ", until stopped"
        lines.append(Text(f" no target: runs{limit}", style=DIM))
    return [*lines, Text()]


def _phase_style(live: LiveRun) -> str:
    return GOOD if live.phase == TRAINING else WARN


def _chart(live: LiveRun, values: dict[str, float], *, width: int, height: int) -> list[Text]:
    board = live.board
    name = board.headline.replace("_", " ")
    threshold = next((c.threshold for c in live.target.conditions if c.name.endswith(board.headline)), None)
    axis_width = 8
    columns = resample(board.history, width=width - axis_width - 1)
    if not columns:
        waiting = Text(f" {name}: no data before the first version is trained", style=DIM)
        return [waiting, *[Text() for _ in range(height - 1)]]
    low = min(0.0, *columns)
    high = max(*columns, threshold or low) or 1.0
    rows = block_rows(columns, height=height, low=low, high=high)
    labels = {0: number(high), height - 1: number(low)}
    lines = [
        Text.assemble(
            (f"{labels.get(row, ''):>{axis_width - 2}} ", DIM), ("│", DIM), (text, _gradient(row, height))
        )
        for row, text in enumerate(rows)
    ]
    title = Text.assemble((f" {name} ", BOLD), (f"now {number(columns[-1])}", DIM), *_beside(board, values))
    return [title, *lines]


def _beside(board: Board, values: dict[str, float]) -> list[tuple[str, str]]:
    """The other one of the return while exploring and the evaluated one, and why the last evaluation failed."""
    parts: list[tuple[str, str]] = []
    evaluated = values.get(actor_stats.EVALUATION_RETURN)
    if evaluated is not None:
        if board.headline != actor_stats.EVALUATION_RETURN:
            parts.append((f"   evaluated {number(evaluated)}", f"bold {ACCENT}"))
        low, high = (
            values.get(actor_stats.EVALUATION_RETURN_MIN),
            values.get(actor_stats.EVALUATION_RETURN_MAX),
        )
        if low is not None and high is not None:
            parts.append((f" ({number(low)} to {number(high)}), version {board.evaluated()}", DIM))
        mean_return = values.get(learner_stats.MEAN_RETURN)
        if mean_return is not None and board.headline != learner_stats.MEAN_RETURN:
            parts.append((f"   exploring {number(mean_return)}", DIM))
    if problem := board.evaluation_problem():
        parts.append((f"   evaluation failed: {problem}", WARN))
    return parts


def _gradient(row: int, height: int) -> str:
    shades = ("bright_green", "green", "cyan", "blue")
    return shades[min(len(shades) - 1, row * len(shades) // height)]


def _staleness(live: LiveRun, values: dict[str, float]) -> list[Text]:
    budget = int(values.get(process_stats.BUDGET_MAX_LAG, live.plan.file.staleness.max_lag))
    worst = values.get(learner_stats.LAG_LAST_MAX, 0.0)
    filled, empty = bar(worst / budget if budget else 0.0, width=24)
    style = GOOD if worst <= budget * 0.75 else WARN if worst <= budget else BAD
    lag = Text.assemble(
        (" lag      ", BOLD), (filled, style), (empty, DIM), (f"  {int(worst)} of max_lag {budget}", style),
        (f"   mean {values.get(learner_stats.LAG_MEAN, 0.0):.1f}", DIM),
        (f"   p95 {values.get(learner_stats.LAG_P95, 0.0):.1f}", DIM),
        (f"   in flight {int(values.get(queue_stats.IN_FLIGHT_TRAJECTORIES, 0.0))}", DIM),
    )  # fmt: skip
    reasons = drops(values)
    dropped = int(values.get(store_stats.DROPPED, sum(reasons.values())))
    detail = ", ".join(
        f"{reason} {count}" for reason, count in sorted(reasons.items(), key=lambda item: -item[1])
    )
    accepted = values.get(store_stats.ACCEPTED, 0.0)
    waste = dropped / accepted if accepted else 0.0
    drop = Text.assemble(
        (" dropped  ", BOLD), (str(dropped), WARN if waste > 0.05 else GOOD),
        (f" of {int(accepted)} stored ({waste:.1%})", DIM), (f"   {detail}" if detail else "", DIM),
        (f"   duplicates {int(values.get(store_stats.DUPLICATES, 0.0))}", DIM),
    )  # fmt: skip
    objectives = slos_line(live.board)
    if not objectives:
        return [lag, drop]
    calm = "burning" not in objectives and "breached" not in objectives
    return [lag, drop, Text.assemble((" SLOs     ", BOLD), (objectives, GOOD if calm else WARN))]


def slos_line(board: Board) -> str:
    """The headline of the objectives, from admission; empty before its first report."""
    stats = next(iter(board.of("admission")), None)
    return stats.labels.get(admission_stats.SLOS, "") if stats is not None else ""


def problems_line(board: Board) -> str:
    """What is wrong with the disk, from the supervisor; else with actors, from admission or them; else with backups."""
    if problem := disk_problem_of(board):
        return problem
    stats = next(iter(board.of("admission")), None)
    if stats is not None and (problems := stats.labels.get(admission_stats.ACTOR_PROBLEMS)):
        return problems
    labels = (actor_stats.ENVIRONMENT_CALL, actor_stats.TASK_REFUSAL, actor_stats.ENVIRONMENT_FAULT)
    return next(
        (
            f"{actor.instance}: {actor.labels[label]}"
            for label in labels
            for actor in board.of("actor")
            if actor.labels.get(label)
        ),
        backup_problem_of(board),
    )


def _problems(board: Board, *, width: int) -> list[Text]:
    lines = wrap(problems_line(board), width=width - 10)[:PROBLEM_LINES_MAX]
    return [
        Text.assemble((f"{' problem' if index == 0 else '':<10}", BOLD), (text, WARN))
        for index, text in enumerate(lines)
    ]


def _backup(board: Board) -> list[Text]:
    """The newest backup; what is wrong with it is a problem."""
    sentence = backup_of(board)
    if not sentence or backup_problem_of(board):
        return []
    return [Text.assemble((" backup   ", BOLD), (sentence, DIM))]


def _services(live: LiveRun, *, now_s: float) -> list[Text]:
    latest = live.board.latest()
    watcher = latest.get(SUPERVISOR)
    heading = f" {'service':<19} {'state':<8} {'rate':>16}  {'busy':<13}{'cpu':>5} {'memory':>7}  restarts"
    lines = [Text(heading, style=f"{DIM} underline")]
    for service in SERVICES:
        for instance in instances(service, replicas=live.plan.replicas[service]):
            lines.append(_row(service, instance, latest.get(instance), watcher, live.board, now_s=now_s))
    lines.append(_row(BROKER, BROKER, None, watcher, live.board, now_s=now_s))
    return lines


def _row(
    service: str,
    instance: str,
    stats: ServiceStats | None,
    watcher: ServiceStats | None,
    board: Board,
    *,
    now_s: float,
) -> Text:
    state = stats.state if stats is not None else "–"
    if stats is not None and now_s - stats.at_s > STALE_AFTER_S:
        state = "silent"
    seen = watcher.values if watcher is not None else {}
    if (
        watcher is not None
        and (label := watcher.labels.get(instance))
        and (stats is None or label != "running")
    ):
        state = label
    declared = DECLARED[service].rate if service in DECLARED else None
    rate = board.rate(instance, declared.counter) if declared is not None else None
    unit = declared.unit if declared is not None else ""
    busy = board.rate(instance, BUSY)
    if busy is not None:
        busy = min(1.0, busy)  # a long step is counted when it ends, perhaps a little after the window began
    filled, empty = bar(busy or 0.0, width=8)
    share = f" {busy:4.0%}" if busy is not None else ""
    cpu = seen.get(supervisor_stats.CPU_SHARE_OF.member(instance))
    memory = seen.get(supervisor_stats.PSS_MB_OF.member(instance))
    restarts = int(seen.get(supervisor_stats.RESTARTS_OF.member(instance), 0.0))
    return Text.assemble(
        (f" {instance:<19} ", BOLD if instance != BROKER else DIM),
        (f"{state:<8} ", STATE_STYLE.get(state, BAD if state != "–" else DIM)),
        (f"{number(rate) + ' ' + unit if rate is not None else '':>16}  "),
        (filled if busy is not None else "", ACCENT), (f"{empty if busy is not None else '':<{8 - len(filled)}}", DIM),
        (f"{share:<5}", DIM),
        (f"{f'{cpu:.0%}' if cpu is not None else '':>5} {f'{memory:.0f} MB' if memory else '':>7}", DIM),
        (f"  {restarts or '':>4}", WARN),
    )  # fmt: skip


def _diagnosis(board: Board, *, width: int) -> list[Text]:
    stats = next(iter(board.of("admission")), None)
    labels = stats.labels if stats is not None else {}
    culprit = labels.get(admission_stats.BOTTLENECK, "")
    if not culprit:
        return [Text(" bottleneck  unknown yet", style=DIM)]
    style = f"bold {WARN if culprit != 'balanced' else GOOD}"
    lines = [Text.assemble((" bottleneck  ", BOLD), (culprit, style))]
    indent = " " * 13
    for label, name, text_style in (
        ("", admission_stats.BOTTLENECK_SENTENCE, DIM),
        (" fix", admission_stats.BOTTLENECK_FIX, ""),
    ):
        wrapped = wrap(labels.get(name, ""), width=width - len(indent))[:ADVICE_LINES_MAX]
        for index, text in enumerate(wrapped):
            lines.append(Text.assemble((f"{label if index == 0 else '':<13}", BOLD), (text, text_style)))
    return lines


def _spread(left: Text, right: Text, *, width: int) -> Text:
    return Text.assemble(left, " " * max(1, width - len(left.plain) - len(right.plain)), right)


def clock(seconds: float) -> str:
    """``m:ss`` or ``h:mm:ss``."""
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def number(value: float) -> str:
    """Three or four digits that matter, thousands as k."""
    if abs(value) >= 1e6:
        return f"{value / 1e6:.2f}M"
    if abs(value) >= 10_000:
        return f"{value / 1e3:.1f}k"
    if abs(value) >= 100 or value == int(value):
        return f"{value:.0f}"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"
