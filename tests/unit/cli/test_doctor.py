"""The doctor on a machine without GPUs, with real probes."""

import json
import socket
import subprocess
from pathlib import Path
from typing import Any

import pytest
import typer

from tests.support.broker import free_port
from tests.support.disks import mounted_small_disk
from tidegate.cli.doctor.command import doctor
from tidegate.core.errors import ConfigError
from tidegate.launch import machine_probes as probes


def run_doctor(capsys: pytest.CaptureFixture[str], **options: Any) -> tuple[int, dict[str, dict[str, str]]]:
    with pytest.raises(typer.Exit) as ended:
        doctor(json=True, **options)
    report = json.loads(capsys.readouterr().out)
    return ended.value.exit_code, {finding["check"]: finding for finding in report["findings"]}


@pytest.fixture(autouse=True)
def small_volume(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probes, "VOLUME_BYTES", 2 << 20)
    monkeypatch.setattr(probes, "PEER_TIMEOUT_S", 0.2)


@pytest.mark.parametrize("options", [{"size": "tiny"}, {"keep": True}], ids=str)
def test_options_of_a_smoke_run_are_refused_without_one(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="--smoke"):
        doctor(**options)


def test_faults_of_this_machine_are_found_and_everything_written_is_removed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.socket() as taken:
        taken.bind(("", 0))
        taken.listen()
        code, found = run_doctor(
            capsys,
            gpus=1,
            port=taken.getsockname()[1],
            volume=[tmp_path / "absent"],
            peer=[f"127.0.0.1:{free_port()}"],
            model=tmp_path,
        )
    assert code == 1
    failed = {name.partition(" ")[0] for name, finding in found.items() if finding["outcome"] == "fail"}
    assert {"driver", "devices", "rendezvous_port", "volume", "peer", "model"} <= failed
    assert all(found[name]["fix"] for name in found if found[name]["outcome"] == "fail")
    assert not list(tmp_path.iterdir())


def test_machine_that_expects_no_gpu_is_healthy(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, found = run_doctor(capsys, gpus=0, port=free_port(), volume=[tmp_path])
    outcomes = {name: finding["outcome"] for name, finding in found.items()}
    assert outcomes["rendezvous_port"] == "pass"
    assert outcomes["driver"] == outcomes["model"] == outcomes["plan"] == "skip"
    assert "MB/s" in found[f"volume {tmp_path}"]["found"]
    assert not list(tmp_path.iterdir())


def test_volume_on_which_nothing_can_be_made_or_removed_is_a_finding(tmp_path: Path) -> None:
    place = tmp_path / "no folder"
    place.touch()
    assert "cannot be written" in probes.probe_volume(place).problem
    with mounted_small_disk(tmp_path / "read_only", size_mb=1) as disk:
        subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
        assert "Read-only" in probes.probe_volume(disk).problem
