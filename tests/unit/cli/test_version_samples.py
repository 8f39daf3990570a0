"""Completions of versions: on the command line and in the report."""

import json
from pathlib import Path

import hypothesis.strategies as st
import pytest
from hypothesis import given

from tests.unit.cli.run_folder import LINEAGE, write_accounting, write_completions
from tidegate.cli.report.data import read_run
from tidegate.cli.report.page import render_page
from tidegate.cli.report.samples_section import VERSIONS_MAX, shown_versions
from tidegate.cli.version_samples import CHARACTERS_MAX, printable, samples, shortened
from tidegate.core.errors import ConfigError, NotFoundError
from tidegate.core.ids import PolicyVersion
from tidegate.trajectory_store.version_samples import choose

SCRIPT = "<script>alert('x')</script>"
GROUP = [
    ("1+2=", "4", 0.0),
    ("1+2=", "3", 1.0),
    (f"1+2={SCRIPT}", f"{SCRIPT}\x1b[2J", 0.25),
    ("1+2=", "5", 0.5),
]


def test_best_worst_and_a_random_completion_are_printed_with_the_parts_of_their_reward(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_completions(tmp_path, GROUP)
    samples(tmp_path, json=True)
    found = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(each["why"], each["completion"], each["reward"]) for each in found[:2]] == [
        ("best", "3", 1.0),
        ("worst", "4", 0.0),
    ]
    assert found[2]["why"] == "random"
    assert found[2]["reward"] in (0.25, 0.5)
    assert {each["version"] for each in found} == {f"{LINEAGE}@1"}
    assert found[0]["reward_components"] == {"exact": 1.0, "length": 0.0}
    assert found[0]["written_by"] == [f"{LINEAGE}@0"]


def test_a_completion_cannot_control_the_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_completions(tmp_path, [("1+2=", "[red]\x1b[2J\x07", 1.0)])
    samples(tmp_path)
    printed = capsys.readouterr().out
    assert "\x1b[2J" not in printed
    assert "\x07" not in printed
    assert r"[red]\x1b[2J\x07" in printed


def test_a_run_without_completions_says_so(tmp_path: Path) -> None:
    write_accounting(tmp_path)
    with pytest.raises(NotFoundError, match="holds no completions"):
        samples(tmp_path)


def test_another_version_has_other_samples(tmp_path: Path) -> None:
    write_completions(tmp_path, GROUP)
    with pytest.raises(NotFoundError, match=f"{LINEAGE}@7"):
        samples(tmp_path, version=f"{LINEAGE}@7")


@pytest.mark.slow
def test_a_script_in_a_prompt_is_text_in_the_report(tmp_path: Path) -> None:
    write_completions(tmp_path, GROUP[:3])
    page = render_page(read_run(tmp_path))
    assert "<script" not in page
    assert "&lt;script&gt;alert" in page
    assert "exact 1" in page


@given(st.lists(st.floats(-10, 10), max_size=20), st.integers(0, 2**32))
def test_choice_is_of_distinct_completions(rewards: list[float], chance: int) -> None:
    chosen = choose(rewards, chance=chance)
    assert len(chosen) == min(3, len(rewards))
    places = [place for _, place in chosen]
    assert len(set(places)) == len(places)
    if rewards:
        assert rewards[places[0]] == max(rewards)
    if len(rewards) > 1:
        assert rewards[places[1]] == min(rewards)


def test_text_that_is_no_version_is_refused(tmp_path: Path) -> None:
    write_completions(tmp_path, GROUP)
    with pytest.raises(ConfigError, match="--version newest one is no version"):
        samples(tmp_path, version="newest one")


@given(st.integers(0, 100))
def test_report_shows_versions_from_the_first_to_the_last(count: int) -> None:
    versions = [PolicyVersion(LINEAGE, step) for step in range(count)]
    shown = shown_versions(versions)
    assert len(shown) == min(count, VERSIONS_MAX)
    assert shown == sorted(set(shown), key=lambda version: version.step)
    if count > 1:
        assert (shown[0], shown[-1]) == (versions[0], versions[-1])


@given(st.text(max_size=5000))
def test_shown_text_is_bounded_and_harmless(text: str) -> None:
    assert len(shortened(text)) <= CHARACTERS_MAX + 60
    assert all(character.isprintable() or character == "\n" for character in printable(text))
