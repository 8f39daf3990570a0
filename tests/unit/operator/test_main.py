"""What the operator needs before it starts: its Lease and a chart; and no token is accepted."""

from pathlib import Path

import pytest

from tidegate.core.errors import ConfigError
from tidegate.operator.config import OperatorConfig
from tidegate.operator.main import NoTokens, access_of, chart_version, run_operator

ROOT = Path(__file__).parents[3]


def test_its_lease_is_in_its_namespace_and_has_the_name_that_the_chart_gives() -> None:
    access = access_of({"TIDEGATE_NAMESPACE": "system", "TIDEGATE_POD_NAME": "op-1", "TIDEGATE_LEASE": "op"})
    assert (access.namespace, access.identity, access.lease) == ("system", "op-1", "op")
    alone = access_of({"TIDEGATE_NAMESPACE": "system"})
    assert alone.lease == "tidegate-operator"
    assert alone.identity
    with pytest.raises(ConfigError, match="TIDEGATE_NAMESPACE is not set"):
        access_of({})


def test_version_is_that_of_the_chart(tmp_path: Path) -> None:
    assert chart_version(ROOT / "helm" / "tidegate").count(".") == 2
    with pytest.raises(ConfigError, match="holds no chart"):
        chart_version(tmp_path)
    (tmp_path / "Chart.yaml").write_text("[]")
    with pytest.raises(ConfigError, match="holds no chart"):
        chart_version(tmp_path)


async def test_without_a_chart_it_does_not_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIDEGATE_NAMESPACE", "system")
    with pytest.raises(ConfigError, match=r"helm\.chart"):
        await run_operator(OperatorConfig(), listen="127.0.0.1:0")


def test_its_server_knows_no_caller() -> None:
    assert NoTokens().role_of("any") is None
