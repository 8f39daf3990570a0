import re
from html.parser import HTMLParser
from pathlib import Path

import msgspec
import pytest

from tests.unit.cli.run_folder import LINEAGE, NUM_STEPS, START_S, write_accounting, write_run, write_samples
from tidegate.cli.explain import diagnosis_of_samples
from tidegate.cli.report.command import write_report
from tidegate.cli.report.data import read_run
from tidegate.cli.report.figures import POINTS_MAX, bar_chart, line_chart, stacked_chart
from tidegate.cli.thinning import thin
from tidegate.core.errors import NotFoundError
from tidegate.runtime.backup_state import BackupState, write_state
from tidegate.runtime.run_event_log import RunEventLog


class Page(HTMLParser):
    """Every tag with its attributes, and every id."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))


@pytest.mark.slow
def test_report_asks_nothing_of_any_server(tmp_path: Path) -> None:
    write_accounting(tmp_path)
    text = write_report(tmp_path).read_text(encoding="utf-8")
    page = Page(text)
    assert not {tag for tag, _ in page.tags} & {"script", "link", "img", "iframe", "object"}
    assert not re.findall(r"@import|url\((?!#)", text)
    links = [
        value for _, attributes in page.tags for name, value in attributes.items() if name.endswith("href")
    ]
    assert all(link is not None and link.startswith("#") for link in links)


@pytest.mark.slow
def test_ids_of_all_drawings_are_distinct(tmp_path: Path) -> None:
    write_accounting(tmp_path)
    page = Page(write_report(tmp_path).read_text(encoding="utf-8"))
    ids = [attributes["id"] for _, attributes in page.tags if "id" in attributes]
    assert ids
    assert len(ids) == len(set(ids))


@pytest.mark.slow
def test_report_shows_the_books_and_every_plot_it_has_data_for(tmp_path: Path) -> None:
    write_accounting(tmp_path)
    write_samples(tmp_path)
    text = write_report(tmp_path).read_text(encoding="utf-8")
    assert "audit balanced" in text
    assert text.count("<svg") >= 8
    assert "retired" in text


@pytest.mark.slow
def test_evaluated_return_is_drawn_beside_the_return_while_exploring(tmp_path: Path) -> None:
    write_accounting(tmp_path)
    assert "evaluation_return" not in write_report(tmp_path).read_text(encoding="utf-8")
    log = RunEventLog(tmp_path)
    for step in (1, 2):
        event = {
            "kind": "evaluation",
            "version": f"{LINEAGE}@{step}",
            "mean_return": 10.0 * step,
            "at_s": START_S + step,
        }
        log.append(msgspec.json.encode(event))
    run = read_run(tmp_path)
    assert run.evaluations("mean_return") == [
        (START_S + step - run.started_at_s, 10.0 * step) for step in (1, 2)
    ]
    assert run.evaluations("mean_return", over="env_steps") == [(2 * NUM_STEPS, 10.0), (4 * NUM_STEPS, 20.0)]
    text = write_report(tmp_path).read_text(encoding="utf-8")
    assert text.count("evaluation_return") == 2, "over time and over samples"
    assert text.count(">mean_return<") == 2


def test_report_names_the_newest_backup_as_text(tmp_path: Path) -> None:
    write_run(tmp_path)
    assert "<h2>Backup" not in write_report(tmp_path).read_text(encoding="utf-8")
    write_state(tmp_path, BackupState("s3://bucket/run", 12, "0-aaaa@3", START_S, problem="<b>away</b>"))
    text = write_report(tmp_path).read_text(encoding="utf-8")
    assert "number 12 in s3://bucket/run holds version 0-aaaa@3" in text
    assert "&lt;b&gt;away&lt;/b&gt;" in text


def test_run_that_never_started_still_has_a_report(tmp_path: Path) -> None:
    write_run(tmp_path)
    text = write_report(tmp_path).read_text(encoding="utf-8")
    assert "ended before it wrote journal and ledger" in text
    assert "no data" in text


def test_flow_counts_where_trajectories_stood(tmp_path: Path) -> None:
    write_accounting(tmp_path, admitted=12, arrived=9, batches=3, retired=1)
    depths = read_run(tmp_path).flow.depths
    assert {name: points[-1][1] for name, points in depths.items()} == {
        "in rollout": 2,
        "waiting for a batch": 3,
        "in a batch": 0,
    }


@pytest.mark.slow
def test_colours_are_left_to_the_page() -> None:
    points = [(0.0, 1.0), (1.0, 2.0)]
    for svg in (
        line_chart("a", {"x": points, "y": points}, x_label="t", limit=(2.0, "limit"), fill=True),
        bar_chart("b", {"x": 1.0, "y": 2.0}, x_label="t", limit_after=1),
        stacked_chart("c", {"x": points, "y": points}, x_label="t"),
    ):
        assert "var(--series-0)" in svg
        assert not re.findall(r"#[0-9a-f]{6}\b", svg)


@pytest.mark.parametrize("count", [0, 1, POINTS_MAX, POINTS_MAX + 1, 50 * POINTS_MAX])
def test_thinning_is_bounded_and_loses_no_peak(count: int) -> None:
    points = [(float(index), float(index == count // 3)) for index in range(count)]
    thinned = thin(points, most=POINTS_MAX)
    assert len(thinned) <= POINTS_MAX + 2
    assert [x for x, _ in thinned] == sorted(x for x, _ in thinned)
    if count:
        assert max(y for _, y in thinned) == max(y for _, y in points)


def test_explanation_of_a_stopped_run_is_from_before_its_end(tmp_path: Path) -> None:
    write_samples(tmp_path)
    diagnosis = diagnosis_of_samples(tmp_path)
    assert diagnosis.bottleneck == "actor"
    assert "60%" in diagnosis.sentence


def test_run_without_samples_has_nothing_to_explain(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match=r"logs/admission\.log"):
        diagnosis_of_samples(tmp_path)
