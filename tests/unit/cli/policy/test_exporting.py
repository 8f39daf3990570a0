"""The files that ``tidegate policy`` writes, used without Tidegate."""

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, cast

import msgspec
import numpy as np
import onnx
import onnxruntime
import pytest
import safetensors
import safetensors.numpy

from tests.support.environments import CARTPOLE
from tests.unit.cli.policy.folders import balancing_params, version, write_policies
from tests.unit.cli.run_folder import write_accounting
from tidegate.cli.accounting import journal_path, ledger_path
from tidegate.cli.app import EXIT_FAILED, run
from tidegate.cli.policy.exporting import metadata_of, write_policy
from tidegate.cli.policy.model_card import read_facts
from tidegate.core.errors import ConfigError
from tidegate.core.spaces import description_from_json
from tidegate.launch import stored_policy
from tidegate.launch.run_file import read_run_file
from tidegate.launch.run_folder import read_record
from tidegate.launch.stored_policy import StoredPolicy, read_stored_policy

RUNS = Path(__file__).parents[4] / "runs"


@pytest.fixture
def stored(tmp_path: Path) -> StoredPolicy:
    return read_stored_policy(write_policies(tmp_path / "run"), None)


def metadata_in(path: Path) -> dict[str, str]:
    opened: Any = safetensors.safe_open(path, framework="numpy")
    with opened as file:
        return file.metadata()


def test_safetensors_hold_the_tensors_as_published_and_where_they_come_from(
    stored: StoredPolicy, tmp_path: Path
) -> None:
    path = tmp_path / "policy.safetensors"
    assert write_policy(stored, path) == path.stat().st_size
    tensors = cast("Any", safetensors.numpy).load_file(path)
    for name, tensor in balancing_params(20, stored.folder).items():
        np.testing.assert_array_equal(tensors[name], tensor)
    metadata = metadata_in(path)
    assert metadata["tidegate.version"] == "0-root@20"
    assert metadata["tidegate.run"] == stored.run
    assert json.loads(metadata["tidegate.policy"])["hidden"] == [64, 64]
    assert json.loads(metadata["tidegate.workload"]) == {
        "env": "CartPole-v1",
        "env_kwargs": {},
        "wrappers": [],
        "frame_stack": 1,
    }
    assert description_from_json(metadata["tidegate.environment"]) == CARTPOLE


def test_file_states_the_verdict_on_the_ledger_and_the_head_that_verify_takes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = write_policies(tmp_path / "run", checkpoints=())
    assert (
        not {"tidegate.audit", "tidegate.ledger_head"} & metadata_of(read_stored_policy(folder, None)).keys()
    )
    write_accounting(folder)
    path = tmp_path / "policy.safetensors"
    write_policy(read_stored_policy(folder, None), path)
    metadata = metadata_in(path)
    assert metadata["tidegate.audit"].startswith("balanced: 12 admitted = 6 trained + ")
    command = ["audit", "--verify", "--dir", str(folder), "--head"]
    assert run([*command, metadata["tidegate.ledger_head"]]) == 0
    # A ledger that was written again is consistent in itself.
    shutil.rmtree(ledger_path(folder).parent)
    shutil.rmtree(journal_path(folder).parent)
    write_accounting(folder, arrived=6)
    assert run(command[:-1]) == 0
    assert run([*command, metadata["tidegate.ledger_head"]]) == EXIT_FAILED
    assert "written again" in capsys.readouterr().out


def test_onnx_gives_the_actions_of_the_policy_for_raw_observations(
    stored: StoredPolicy, tmp_path: Path
) -> None:
    path = tmp_path / "policy.onnx"
    write_policy(stored, path)
    observations = np.random.default_rng(0).normal(0, 1, (200, 4)).astype(np.float32)
    runtime: Any = onnxruntime
    session = runtime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    actions, outputs = session.run(["action", "outputs"], {"observations": observations})
    expected = stored.policy().action_outputs(stored.tensors, {"observations": observations}, np)
    np.testing.assert_allclose(outputs, expected, rtol=1e-4, atol=1e-4)
    np.testing.assert_array_equal(actions, expected.argmax(axis=1))
    assert 0 < actions.sum() < 200, "both actions occur"
    model = onnx.load_from_string(path.read_bytes())
    entries = {entry.key: entry.value for entry in model.metadata_props}
    assert entries == metadata_of(stored)


def test_language_model_is_written_as_safetensors_and_not_as_onnx(
    stored: StoredPolicy, tmp_path: Path
) -> None:
    text = StoredPolicy(
        folder=tmp_path,
        run=stored.run,
        version=version(3),
        tensors={"embedding": np.zeros((2, 2), np.float32)},
        file=read_run_file(RUNS / "arithmetic.yaml", []).file,
        base_digest="ab12",
    )
    write_policy(text, tmp_path / "policy.safetensors")
    metadata = metadata_in(tmp_path / "policy.safetensors")
    assert metadata["tidegate.base_digest"] == "ab12"
    assert "tidegate.environment" not in metadata
    with pytest.raises(ConfigError, match="A language model is not exported to ONNX"):
        write_policy(text, tmp_path / "policy.onnx")


def test_command_writes_the_named_version(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write_policies(tmp_path / "run")
    path = tmp_path / "policy.onnx"
    assert run(["policy", str(folder), "--version", "0-root@18", "-o", str(path)]) == 0
    assert "policy.onnx: version 0-root@18 of cartpole-" in capsys.readouterr().out
    assert path.is_file()


@pytest.fixture
def pod(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The volume of the learner's pod, where the command finds the run by the mounted files."""
    folder = write_policies(tmp_path / "pod", kept=())
    mounted = tmp_path / "mounted"
    mounted.mkdir()
    record = read_record(folder)
    (mounted / "run.yaml").write_bytes(msgspec.yaml.encode(record.run_file))
    cluster: dict[str, object] = {
        "run_id": record.run_id,
        "broker_url": "nats://demo-nats:4222",
        "addresses": {},
    }
    (mounted / "cluster.yaml").write_bytes(msgspec.yaml.encode(cluster))
    (folder / "run.json").unlink()
    shutil.rmtree(folder / "weight_distribution")
    monkeypatch.setenv("TIDEGATE_CLUSTER", str(mounted))
    monkeypatch.setenv("TIDEGATE_BROKER_USER", "learner")
    monkeypatch.setenv("TIDEGATE_BROKER_PASSWORD", "secret")
    monkeypatch.setattr(stored_policy, "POD_DATA", folder)
    return folder


def test_command_in_the_learners_pod_writes_what_its_volume_has(
    pod: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "policy.safetensors"
    assert run(["policy", "-o", str(path)]) == 0
    assert "policy.safetensors: version 0-root@20 of cartpole-" in capsys.readouterr().out
    metadata = metadata_in(path)
    assert description_from_json(metadata["tidegate.environment"]) == CARTPOLE
    assert "tidegate.audit" not in metadata, "the ledger is in another pod"
    assert run(["policy", "-o", str(tmp_path / "policy.onnx")]) == 0
    assert run(["policy", "--version", "best", "-o", str(path)]) == 2
    said = " ".join(capsys.readouterr().err.split())
    assert "in the pod RELEASE-weight-distribution-0" in said, "the learner knows of no best version"
    monkeypatch.setattr(stored_policy, "POD_DATA", tmp_path / "of-another-service")
    assert run(["policy", "-o", str(path)]) == 2
    assert "RELEASE-learner-0" in " ".join(capsys.readouterr().err.split())


WITHOUT_TORCH = """\
import sys
sys.modules["torch"] = None
from tidegate.cli.app import run
sys.exit(run(sys.argv[1:]))
"""


@pytest.mark.parametrize("name", ["policy.onnx", "policy.safetensors"])
def test_policy_of_segments_is_written_without_torch(tmp_path: Path, name: str) -> None:
    folder, path = write_policies(tmp_path / "run"), tmp_path / name
    arguments = ["policy", str(folder), "-o", str(path)]
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_TORCH, *arguments], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert path.is_file()


def test_command_that_needs_an_extra_names_it_where_it_is_missing() -> None:
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_TORCH, "replay"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    said = " ".join(done.stderr.split())
    assert said.startswith(
        "tidegate: This command needs torch, which is not installed. Install tidegate[train]"
    )


def test_card_of_a_policy_from_a_pod_leaves_out_what_is_elsewhere(pod: Path) -> None:
    facts = read_facts(read_stored_policy(None, None, in_pod=True))
    assert (facts.accounting, facts.ledger_head, facts.step) == (None, "", {})


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["-o", "policy.pt"], "names no format"),
        (["--version", "eighteen"], "--version eighteen is no version"),
        (["--version", "0-root@7"], "does not hold version 0-root@7"),
        (["-o", "missing/policy.onnx"], "cannot be written"),
    ],
)
def test_mistake_is_one_line_and_writes_nothing(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
    message: str,
) -> None:
    folder = write_policies(tmp_path / "run")
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    assert run(["policy", str(folder), *arguments]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    assert list((tmp_path / "here").iterdir()) == []
