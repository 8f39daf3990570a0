"""The files that replace run.json in a pod, and the record they give."""

from pathlib import Path

import pytest

from tidegate.api.runs import Run
from tidegate.cli.app import run
from tidegate.core.errors import ConfigError, NotFoundError
from tidegate.launch import serve
from tidegate.launch.cluster import JOB_VARIABLE, pod_index
from tidegate.launch.run_folder import (
    find_folder,
    is_run_folder,
    is_running,
    read_plan,
    read_record,
    settings_of,
)
from tidegate.launch.run_parsing import parse_section, parse_shared
from tidegate.runtime import exit_codes

RUN = """\
run: cartpole
workload: {kind: segments, env: CartPole-v1}
policy: {kind: mlp}
batch_size: 2
max_running: 6
staleness: {max_lag: 3}
actor: {slots: 2}
"""
CLUSTER = """\
run_id: cartpole-demo
broker_url: nats://demo-nats:4222
addresses:
  task_queue: ["demo-task-queue:7700"]
  learner: ["demo-learner:7700"]
"""


@pytest.fixture
def mounted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "run.yaml").write_text(RUN)
    (tmp_path / "cluster.yaml").write_text(CLUSTER)
    monkeypatch.setenv("TIDEGATE_BROKER_USER", "actor")
    monkeypatch.setenv("TIDEGATE_BROKER_PASSWORD", "secret")
    return tmp_path


def test_a_pod_knows_its_run_from_two_mounted_files(mounted: Path) -> None:
    record = read_record(mounted)
    assert (record.run_id, record.cluster) == ("cartpole-demo", True)
    assert record.addresses["learner"] == ["demo-learner:7700"]
    assert read_plan(mounted)[1].file.run == "cartpole"


TEXT_RUN = """\
run: jokes
workload: {kind: text, reward: "my_reward.py:score", dataset: jokes.jsonl, num_samples: 2}
policy: {kind: char_lm}
batch_size: 2
environment: {verifiers: {length: "my_reward.py:length"}, rewards: {length: 1.0}}
track: [mlflow]
callbacks: ["my_callbacks.py:Notify"]
backup: s3://bucket/runs
"""


def test_what_reads_a_part_of_the_run_file_finds_no_short_forms(mounted: Path) -> None:
    (mounted / "run.yaml").write_text(TEXT_RUN)
    document = read_record(mounted).run_file
    shared = parse_shared(document, source="run.yaml")
    environment, _ = parse_section(document, "environment", source="run.yaml")
    assert shared.workload.env == "my_reward.py:score"
    assert shared.workload.dataset is not None
    assert shared.workload.dataset.path == "jokes.jsonl"
    assert [each.tracker for each in shared.track] == ["mlflow"]
    assert [each.code for each in shared.callbacks] == ["my_callbacks.py:Notify"]
    assert shared.backup is not None
    assert list(environment.verifiers) == ["length"]


def test_a_pod_knows_the_objects_of_its_release_for_the_commands_of_a_fix(
    mounted: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TIDEGATE_NAMESPACE", "rl")
    with (mounted / "cluster.yaml").open("a") as file:
        file.write("workloads: {release: demo, scaled: {actor: deployment/demo-actor}}\n")
    record, plan = read_plan(mounted)
    workloads = settings_of(mounted, record, plan.file).workloads
    assert workloads.scale("actor", 3) == "kubectl -n rl scale deployment/demo-actor --replicas=3"
    assert "component=weight-distribution" in workloads.reason("weight_distribution")


def test_credentials_come_from_the_environment_and_reach_the_settings(mounted: Path) -> None:
    record, plan = read_plan(mounted)
    settings = settings_of(mounted, record, plan.file)
    assert settings.broker_url == "nats://demo-nats:4222"
    assert (settings.broker_user, settings.broker_password) == ("actor", "secret")
    assert "secret" not in settings.broker_url


def test_commands_without_a_folder_find_the_run_of_their_pod(
    mounted: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TIDEGATE_CLUSTER", str(mounted))
    assert find_folder(None) == mounted
    assert is_run_folder(mounted)
    assert is_running(mounted)


def test_pods_draw_different_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    found: set[int] = set()
    for uid in ("5b1d2f2e-1", "5b1d2f2e-2", "5b1d2f2e-3"):
        monkeypatch.setenv("TIDEGATE_POD_UID", uid)
        found.add(pod_index())
    assert len(found) == 3
    assert min(found) >= 0


@pytest.mark.parametrize(
    ("cluster", "message"),
    [
        ("run_id: Not Allowed\nbroker_url: x\naddresses: {}\n", "run_id"),
        ("run_id: a\nbroker: x\naddresses: {}\n", "broker"),
        ("- 1\n", "holds no settings"),
    ],
)
def test_files_that_describe_no_run_are_refused_by_name(mounted: Path, cluster: str, message: str) -> None:
    (mounted / "cluster.yaml").write_text(cluster)
    with pytest.raises(ConfigError) as caught:
        read_record(mounted)
    assert message in f"{caught.value.what} {caught.value.why}"


def test_a_missing_run_file_is_named(mounted: Path) -> None:
    (mounted / "run.yaml").unlink()
    with pytest.raises(NotFoundError, match=r"run\.yaml"):
        read_record(mounted)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        # Each section is right by itself.
        (("kind: mlp", "kind: transformers"), "The auto engine cannot run transformers on segments"),
        (("actor: {slots: 2}", "until: mean_retur"), "Target 'mean_retur' cannot be read"),
        (("actor: {slots: 2}", "until: solved_share>=0.5"), "can never be reached"),
    ],
    ids=lambda value: str(value),
)
def test_pod_refuses_a_run_whose_sections_do_not_fit_before_it_connects(
    mounted: Path, capsys: pytest.CaptureFixture[str], changed: tuple[str, str], message: str
) -> None:
    (mounted / "run.yaml").write_text(RUN.replace(*changed))
    arguments = ["task_queue", "--cluster", str(mounted), "--data-dir", str(mounted / "data")]
    assert serve.main(arguments) == exit_codes.BAD_INPUT
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("command", ["export", "policy", "track", "replay", "fork"])
def test_what_needs_the_files_of_a_run_says_one_sentence(
    mounted: Path, command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    named = ["0-3fa2@1", "--dir", str(mounted)] if command == "replay" else [str(mounted)]
    assert run([command, *named]) == 2
    assert "Run cartpole-demo keeps its files in a cluster" in capsys.readouterr().err


def test_api_says_the_same(mounted: Path) -> None:
    with pytest.raises(ConfigError, match="keeps its files in a cluster"):
        Run(mounted)


@pytest.mark.parametrize(
    ("code", "in_a_job", "in_another_pod"),
    [
        (exit_codes.DRAINED, exit_codes.TERMINATED, exit_codes.DRAINED),
        (exit_codes.COMPLETED, 0, 0),
        (exit_codes.FAILED, exit_codes.FAILED, exit_codes.FAILED),
        (exit_codes.BAD_INPUT, exit_codes.BAD_INPUT, exit_codes.BAD_INPUT),
    ],
)
def test_only_a_complete_run_finishes_the_job_of_a_pod(code: int, in_a_job: int, in_another_pod: int) -> None:
    assert serve.code_of_pod(code, {JOB_VARIABLE: "1"}) == in_a_job
    assert serve.code_of_pod(code, {}) == in_another_pod
