"""The report as one HTML file with styles and charts inside; it fetches nothing."""

import html
from collections.abc import Sequence
from typing import Any

import yaml

from tidegate.cli.audit_lines import lines_of
from tidegate.cli.report.data import RunData
from tidegate.cli.report.plot import Plot
from tidegate.cli.report.plots import flow_plots, headline_plots
from tidegate.cli.report.samples_section import samples_section
from tidegate.cli.report.style import STYLE_FILE
from tidegate.cli.report.training_plots import training_plots
from tidegate.cli.up.view import clock, number
from tidegate.core.receipt import lines_of_receipt


def render_page(run: RunData) -> str:
    """The whole page."""
    body = "\n".join(
        [
            _header(run),
            f'<div class="cards">{"".join(_card(*card) for card in _cards(run))}</div>',
            _plots("", headline_plots(run)),
            _plots("Training", training_plots(run)),
            samples_section(run.completions),
            _plots("Flow and lag", flow_plots(run)),
            _verifiers(run),
            _audit(run),
            _backup(run),
            _receipt(run),
            _processes(run),
            _settings(run),
        ]
    )
    return _page(f"{run.record.run_id} · Tidegate", body)


def plain_page(
    title: str,
    lead: str,
    drawings: Sequence[tuple[str, str, str]],
    *,
    text: str = "",
    table: Sequence[Sequence[str]] = (),
) -> str:
    """A page of drawings, each a title, a caption and an SVG; below them ``text``, unchanged, and a ``table``.

    The first row of the table is its head, and all of its cells are numbers.
    """
    figures = "".join(_figure(Plot(*drawing)) for drawing in drawings)
    below = f'<section class="wide"><pre>{_text(text)}</pre></section>' if text else ""
    return _page(
        title,
        f'<header><span class="brand">Tidegate</span><h1>{_text(title)}</h1></header>'
        f'<p class="lead">{_text(lead)}</p><div class="plots">{figures}</div>{below}{_table(table)}',
    )


def _table(rows: Sequence[Sequence[str]]) -> str:
    if not rows:
        return ""
    head, *body = (
        "".join(f'<{cell} class="number">{_text(value)}</{cell}>' for value in row)
        for cell, row in zip(("th", *("td",) * len(rows)), rows, strict=False)
    )
    lines = "".join(f"<tr>{line}</tr>" for line in (head, *body))
    return f'<section class="wide"><table>{lines}</table></section>'


def _page(title: str, body: str) -> str:
    style = STYLE_FILE.read_text(encoding="utf-8")
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{html.escape(title)}</title><style>\n{style}</style></head><body><main>\n{body}\n</main></body></html>\n"
    )


def _header(run: RunData) -> str:
    summary = run.summary
    target = run.target()
    if not summary:
        pill = '<span class="pill bad">not ended</span>'
    elif summary["reached"]:
        pill = '<span class="pill good">target reached</span>'
    else:
        pill = f'<span class="pill {"good" if summary["succeeded"] else "bad"}">{_text(summary["ended_by"])}</span>'
    balanced = run.accounting is not None and run.accounting.audit.balanced
    verdict = ("good", "audit balanced") if balanced else ("bad", "audit NOT balanced")
    accounting = f'<span class="pill {verdict[0]}">{verdict[1]}</span>'
    workload = run.plan.file.workload
    lead = f"{workload.title} · max_lag {run.plan.file.staleness.max_lag} · batch {run.plan.file.batch_size}"
    actors = run.plan.replicas["actor"]
    lead += f" · {actors} actor{'s' if actors > 1 else ''}" + (f" · target {target}" if target else "")
    return (
        f'<header><span class="brand">Tidegate</span><h1>{_text(run.record.run_id)}</h1>{pill}{accounting}</header>'
        f'<p class="lead">{_text(lead)}</p>'
    )


def _cards(run: RunData) -> list[tuple[str, str, str]]:
    """(number, what it is, one more fact)."""
    summary = run.summary
    cards: list[tuple[str, str, str]] = []
    if not summary:
        return cards
    first = summary.get("first_gradient_s")
    cards.append(
        (
            clock(summary["elapsed_s"]),
            "minutes from start to end",
            f"first gradient after {first:.1f} s" if first else "",
        )
    )
    if summary.get("mean_return") is not None:
        cards.append((number(summary["mean_return"]), "mean return", f"{summary['versions']:,} versions"))
    if summary.get("evaluation_return") is not None:
        values = summary["values"]
        spread = f"{number(values['evaluation_return_min'])} to {number(values['evaluation_return_max'])}"
        cards.append(
            (
                number(summary["evaluation_return"]),
                "evaluation return",
                f"{spread}, {values['evaluation_episodes']:.0f} greedy episodes",
            )
        )
    if summary.get("solved_share") is not None:
        cards.append(
            (
                f"{summary['solved_share']:.1%}",
                "held-out problems solved",
                f"{summary['versions']:,} versions",
            )
        )
    best = summary.get("best")
    if best:
        cards.append((number(best["score"]), f"{best['measure']} of the best version", best["version"]))
    per_cpu = summary.get("steps_per_cpu_s")
    cards.append(
        (f"{summary['env_steps']:,}", "steps trained", f"{per_cpu:,.0f} per CPU-second" if per_cpu else "")
    )
    lag = summary.get("lag")
    if lag:
        cards.append(
            (
                f"{lag['mean']:.2f}",
                "mean lag, versions",
                f"p95 {lag['p95']}, max {lag['max']} of {lag['max_lag']}",
            )
        )
    restarts = sum(summary["restarts"].values())
    cards.append((str(restarts), "restarts", ", ".join(summary["restarts"]) or "no process failed"))
    cards.append((f"{summary['memory_mb']:,.0f} MB", "peak memory", f"{summary['cpu_s']:,.0f} CPU-seconds"))
    return cards


def _card(value: str, what: str, more: str) -> str:
    return f'<div class="card"><b>{_text(value)}</b><span>{_text(what)}</span><i>{_text(more)}</i></div>'


def _plots(title: str, plots: Sequence[Plot]) -> str:
    if not plots:
        return ""
    heading = f'<h2 class="part">{_text(title)}</h2>' if title else ""
    return f'{heading}<div class="plots">{"".join(map(_figure, plots))}</div>'


def _figure(plot: Plot) -> str:
    drawing = plot.svg or '<div class="empty">no data</div>'
    caption = f"<figcaption><h2>{_text(plot.title)}</h2><p>{_text(plot.caption)}</p></figcaption>"
    return f"<figure>{caption}{drawing}</figure>"


def _verifiers(run: RunData) -> str:
    problem: str = run.summary.get("verifier_problem", "")
    return (
        f'<section class="wide"><h2>Failed verdicts</h2><p>{_text(problem)}</p></section>' if problem else ""
    )


def _backup(run: RunData) -> str:
    """Not the last one of a run, which is made after its report; `tidegate report` writes it again."""
    if not run.backup:
        return ""
    return f'<section class="wide"><h2>Backup, at the time of this report</h2><p>{_text(run.backup)}</p></section>'


def _audit(run: RunData) -> str:
    if run.accounting is None:
        return '<section class="wide"><h2>Audit</h2><p>The run ended before it wrote journal and ledger.</p></section>'
    audit = run.accounting.audit
    body = "".join(
        f'<tr><td>{_text(line.name)}</td><td class="number">{line.count:,}</td><td>{_text(line.note)}</td></tr>'
        for line in lines_of(audit)
    )
    problems = "".join(f"<p>{_text(problem)}</p>" for problem in audit.problems)
    if run.num_folded:
        problems += f"<p>The rows of {run.num_folded:,} trajectories were folded; series begin with the oldest row.</p>"
    return (
        '<section class="wide"><h2>Audit: journal against ledger</h2>'
        f'<table><tr><th>trajectories</th><th class="number">count</th><th></th></tr>{body}</table>{problems}</section>'
    )


def _receipt(run: RunData) -> str:
    if run.receipt is None:
        return ""
    body = "".join(
        f"<tr><td>{_text(label)}</td><td>{_text(text)}</td></tr>"
        for label, text in lines_of_receipt(run.receipt)
    )
    return f'<section class="wide"><h2>Receipt</h2><table>{body}</table></section>'


def _processes(run: RunData) -> str:
    memory: dict[str, float] = run.summary.get("memory_peak_mb", {})
    restarts: dict[str, int] = run.summary.get("restarts", {})
    if not memory:
        return ""
    body = "".join(
        f'<tr><td>{_text(name)}</td><td class="number">{megabytes:,.0f}</td>'
        f'<td class="number">{restarts.get(name, 0)}</td></tr>'
        for name, megabytes in memory.items()
    )
    return (
        '<section class="wide"><h2>Processes</h2><table><tr><th>instance</th>'
        f'<th class="number">memory, MB (PSS, peak)</th><th class="number">restarts</th></tr>{body}</table></section>'
    )


def _settings(run: RunData) -> str:
    document: dict[str, Any] = run.record.run_file
    text = yaml.safe_dump(document, sort_keys=False, allow_unicode=True)
    return (
        '<section class="wide"><details><summary>The run file with every default</summary>'
        f"<pre>{_text(text)}</pre></details></section>"
    )


def _text(value: object) -> str:
    return html.escape(str(value))
