"""The message that the kubelet shows of a container that ended."""

from pathlib import Path

from tidegate.core.errors import ConfigError
from tidegate.runtime.lifecycle import Failure
from tidegate.runtime.termination_message import BYTES_MAX, write_termination_message


def test_message_replaces_the_one_before_and_is_no_longer_than_the_kubelet_reads(tmp_path: Path) -> None:
    path = tmp_path / "termination-log"
    path.write_text("what an earlier process wrote")
    write_termination_message("learner.device is cuda, and torch finds no CUDA device.", path=path)
    assert path.read_text() == "learner.device is cuda, and torch finds no CUDA device."
    write_termination_message("x" * 9000, path=path)
    assert path.stat().st_size == BYTES_MAX


def test_outside_of_a_pod_nothing_is_written(tmp_path: Path) -> None:
    write_termination_message("no pod", path=tmp_path / "absent")
    assert not list(tmp_path.iterdir())


def test_file_that_cannot_be_written_ends_nothing(tmp_path: Path) -> None:
    write_termination_message("a folder", path=tmp_path)


def test_failure_tells_the_reason_and_the_fix_or_where_the_traceback_is() -> None:
    refused = ConfigError("learner.device is cuda, and torch finds no CUDA device", fix="install driver R580")
    assert str(Failure("start", refused)) == str(refused)
    assert "install driver R580" in str(refused)
    assert (
        str(Failure("train", ZeroDivisionError("1/0")))
        == "train: ZeroDivisionError('1/0'); the log has the traceback"
    )
    assert str(Failure("train", None)) == "train ended without being asked to"
