from pathlib import Path

import pytest

from tidegate.actor.gateway.config import OPERATOR_KEY_VARIABLE
from tidegate.launch.inherited_environment import inherited
from tidegate.launch.processes import fork_server_process, fork_servers, service_process
from tidegate.launch.run_file import read_run_file
from tidegate.launch.services import SERVICES

RUNS = Path(__file__).parents[3] / "runs"
JUDGE = (
    'environment.verifiers={"judge": {"kind": "judge", "base_url": "http://x/v1", "model": "m",'
    ' "api_key_env": "JUDGE_KEY"}}'
)


@pytest.mark.parametrize(
    "name",
    [
        *(
            "PATH",
            "HOME",
            "LANG",
            "LC_ALL",
            "TZ",
            "TMPDIR",
            "PYTHONPATH",
            "CUDA_VISIBLE_DEVICES",
            "OMP_NUM_THREADS",
        ),
        *(
            "MKL_NUM_THREADS",
            "HF_HOME",
            "SSL_CERT_FILE",
            "https_proxy",
            "NO_PROXY",
            "OTEL_EXPORTER_OTLP_ENDPOINT",
        ),
        *("TIDEGATE_TLS_DIR", "NVIDIA_VISIBLE_DEVICES"),
    ],
)
def test_variables_that_programs_and_libraries_read_are_inherited(name: str) -> None:
    assert inherited({name: "x"}) == {name: "x"}


@pytest.mark.parametrize(
    "name",
    [
        *("OPENAI_API_KEY", "AWS_SECRET_ACCESS_KEY", "GITHUB_TOKEN", "HF_TOKEN", "TIDEGATE_GATEWAY_KEY"),
        *("TIDEGATE_BROKER_PASSWORD", "DATABASE_URL", "RANK", "WORLD_SIZE", "KUBECONFIG", "PATHS"),
    ],
)
def test_other_variables_are_inherited_by_name_alone(name: str) -> None:
    assert inherited({name: "x"}) == {}
    assert inherited({name: "x"}, (name,)) == {name: "x"}


def test_each_service_inherits_what_its_own_section_names() -> None:
    sets = [
        JUDGE,
        "environment.rewards={task: 1.0, judge: 1.0}",
        "actor.gateway={command: [agent], pass_env: [AGENT]}",
    ]
    plan = read_run_file(RUNS / "calculator.yaml", [*sets, "pass_env=[MINE]"])
    found = {
        service: service_process(plan, Path("f"), service, index=0, instance=service, password="p").inherits
        for service in SERVICES
    }
    assert "JUDGE_KEY" in found["environment"]
    assert {OPERATOR_KEY_VARIABLE, "AGENT"} <= {*found["actor"]}
    for service, names in found.items():
        assert "MINE" in names
        assert service == "environment" or "JUDGE_KEY" not in names
        assert service == "actor" or not {OPERATOR_KEY_VARIABLE, "AGENT"} & {*names}
    for name in fork_servers(plan):
        assert fork_server_process(plan, Path("f"), name).inherits == ("MINE",)
