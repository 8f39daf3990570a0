"""Notices of a run folder: its end, its failure, its objectives."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.unit.cli.notify.test_webhook import server
from tests.unit.cli.run_folder import CARTPOLE, write_run
from tidegate.admission.slo_file import EVENTS_FILE, SloEvent
from tidegate.cli.notify.notices import notice_of_end
from tidegate.cli.notify.watch import QUIET_S, RunNotices, watch
from tidegate.core.errors import ConfigError
from tidegate.core.slo import Change, Condition
from tidegate.launch.companions import companions_of
from tidegate.launch.run_file import read_run_file
from tidegate.launch.run_folder import lock
from tidegate.runtime.companion_settings import Webhook

BALANCED = {"balanced": True}


def append(folder: Path, slo: str, before: Condition, after: Condition, *, at_s: float) -> None:
    change = Change(slo, before, after, value=9.0, bound=4.0, budget_left=0.5, cause="the learner is slow")
    (folder / "admission").mkdir(exist_ok=True)
    with (folder / "admission" / EVENTS_FILE).open("ab") as file:
        file.write(SloEvent(at_s, "slo_breach", change).line())


@pytest.mark.parametrize(
    ("summary", "event"),
    [
        ({"ended_by": "target", "audit": BALANCED}, "end"),
        ({"ended_by": "interrupted", "audit": BALANCED}, "end"),
        ({"ended_by": "failed", "audit": BALANCED, "problem": "learner failed for good"}, "failure"),
        ({"ended_by": "target", "audit": {"balanced": False}}, "failure"),
        (None, "failure"),
    ],
)
def test_end_and_failure_are_told_apart(summary: Mapping[str, Any] | None, event: str) -> None:
    notice = notice_of_end("run-1", summary, at_s=1.0)
    assert notice.event == event
    assert "run-1" in notice.text
    if summary and "problem" in summary:
        assert "learner failed for good" in notice.text


def test_objective_is_told_once_while_it_is_violated_and_again_after_a_while(tmp_path: Path) -> None:
    append(tmp_path, "lag_p95", "ok", "burning", at_s=1.0)
    notices = RunNotices(tmp_path)
    assert not list(notices.of_objectives("r")), "of an earlier start"
    append(tmp_path, "lag_p95", "ok", "burning", at_s=10.0)
    append(tmp_path, "lag_p95", "burning", "breached", at_s=11.0)
    append(tmp_path, "lag_p95", "breached", "ok", at_s=12.0)
    append(tmp_path, "lag_p95", "ok", "burning", at_s=13.0)
    append(tmp_path, "age_p95", "ok", "burning", at_s=14.0)
    found = list(notices.of_objectives("r"))
    assert [(each.details["slo"], each.at_s) for each in found] == [("lag_p95", 10.0), ("age_p95", 14.0)]
    assert "the learner is slow" in found[0].text
    append(tmp_path, "lag_p95", "ok", "burning", at_s=10.0 + QUIET_S)
    assert len(list(notices.of_objectives("r"))) == 1


def test_run_whose_supervisor_is_gone_is_told_as_failed_once(tmp_path: Path) -> None:
    run_id = write_run(tmp_path).run_id
    (tmp_path / "summary.json").write_text(json.dumps({"ended_by": "target", "audit": BALANCED}))  # of before
    os.close(lock(tmp_path))
    said: list[str] = []
    with server(200) as (url, received):
        assert watch(tmp_path, Webhook(url, {}, ("failure",)), say=said.append)
        assert watch(tmp_path, Webhook(url, {}, ("end",)), say=said.append), "nothing that is asked for"
    assert [(each["event"], each["run_id"]) for each in received.bodies] == [("failure", run_id)]
    assert said == ["failure: delivered"]


def test_address_is_in_no_argument_and_a_secret_that_is_missing_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = read_run_file(CARTPOLE, ["notify={url_env: HOOK, headers_env: {Authorization: HOOK_TOKEN}}"])
    monkeypatch.setenv("HOOK", "https://example.com/secret")
    with pytest.raises(ConfigError, match="HOOK_TOKEN is not set"):
        companions_of(plan, tmp_path)
    monkeypatch.setenv("HOOK_TOKEN", "secret")
    [companion] = companions_of(plan, tmp_path)
    assert "secret" not in str(companion.arguments)
    assert "secret" not in str(plan.document())
    monkeypatch.setenv("HOOK", "ftp://secret")
    with pytest.raises(ConfigError) as refused:
        companions_of(plan, tmp_path)
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize("section", ["{}", "{url: 'ftp://host'}", "{url: 'https://a', url_env: B}"])
def test_section_without_one_address_is_refused(section: str) -> None:
    with pytest.raises(ConfigError, match=r"notify"):
        read_run_file(CARTPOLE, [f"notify={section}"])
