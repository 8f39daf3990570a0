"""Settings of a run that lives in a temporary folder."""

from pathlib import Path

from tests.support.broker import free_port
from tests.support.call_credentials import write_test_credentials
from tidegate.core.ids import RunId
from tidegate.launch.services import SERVICES
from tidegate.runtime.config import PolicyConfig, Settings, StalenessConfig, TelemetryConfig, WorkloadConfig


def make_settings(
    data_dir: Path,
    *,
    broker_url: str,
    max_lag: int = 1,
    drain_timeout_s: float = 2.0,
    writes_credentials: bool = True,
) -> Settings:
    """A small CartPole run with one instance of each service on free ports.

    ``writes_credentials``: False for tests that start no service, and so need no folder.
    """
    return Settings(
        run=RunId("test-run"),
        seed=0,
        staleness=StalenessConfig(max_lag=max_lag),
        workload=WorkloadConfig(kind="segments", env="CartPole-v1", num_envs=4, unroll_length=8),
        policy=PolicyConfig(kind="mlp"),
        batch_size=2,
        max_running=8,
        telemetry=TelemetryConfig(stats_period_s=0.1),
        drain_timeout_s=drain_timeout_s,
        broker_url=broker_url,
        addresses={name: [f"127.0.0.1:{free_port()}"] for name in SERVICES},
        data_dir=str(data_dir),
        credentials_dir=write_test_credentials(data_dir / "credentials") if writes_credentials else "",
    )
