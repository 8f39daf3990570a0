from pathlib import Path

import pytest

from tests.unit.cli.run_folder import id_of, write_accounting
from tests.unit.cli.ui.completions import FIRST, GAPS, LOGPROBS, SECOND, write_completions
from tidegate.cli.ui.trajectory_page import tokens_of, trajectory_of
from tidegate.core.errors import NotFoundError


def test_completion_has_its_texts_its_reward_and_its_group(tmp_path: Path) -> None:
    write_completions(tmp_path)
    found = trajectory_of(tmp_path, FIRST)
    assert (found["prompt"], found["completion"], found["answer"]) == ("1+2=", "234", "3")
    assert found["reward_components"] == {"exact": 1.0}
    assert [member.row.trajectory_id for member in found["group"]] == [FIRST, SECOND]
    assert "waits for a batch" in found["sentence"]


def test_each_token_has_its_text_its_version_and_its_log_probability(tmp_path: Path) -> None:
    write_completions(tmp_path)
    found = tokens_of(tmp_path, FIRST)
    assert [token["text"] for token in found["tokens"]] == ["2", "3", "4", "⏎end"]
    assert [found["spans"][token["span"]] for token in found["tokens"]] == ["0-aaaa@0"] * 2 + ["0-aaaa@1"] * 2
    assert [token["logprob"] for token in found["tokens"]] == pytest.approx(LOGPROBS)
    assert all(token["chosen"] for token in found["tokens"])
    assert [token["gap"] for token in found["tokens"]] == list(GAPS)
    assert found["gaps_version"] == "0-aaaa@2"


def test_completion_of_which_the_learner_kept_no_gaps_has_none(tmp_path: Path) -> None:
    write_completions(tmp_path)
    found = tokens_of(tmp_path, SECOND)
    assert [token["gap"] for token in found["tokens"]] == [None] * 4
    assert found["gaps_version"] == ""


def test_payload_that_was_deleted_is_told(tmp_path: Path) -> None:
    write_completions(tmp_path)
    for path in (tmp_path / "trajectory_store" / "segments").iterdir():
        path.unlink()
    assert "no longer kept" in tokens_of(tmp_path, FIRST)["why"]
    assert trajectory_of(tmp_path, FIRST)["completion"] == "234", "the ledger keeps the texts"


def test_segment_has_no_tokens_and_one_on_its_way_no_record(tmp_path: Path) -> None:
    write_accounting(tmp_path, admitted=12, arrived=9, retired=1)
    assert "segment of environment steps" in tokens_of(tmp_path, id_of(1))["why"]
    assert trajectory_of(tmp_path, id_of(12))["state"] == "admitted"
    with pytest.raises(NotFoundError):
        trajectory_of(tmp_path, "t-7")
