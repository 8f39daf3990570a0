from pathlib import Path

import pytest

from tests.integration.learner.world import until, world
from tests.support.otlp_sink import otlp_sink
from tidegate.core.ids import PolicyVersion
from tidegate.core.slo_catalogue import SloConfig, SlosConfig
from tidegate.runtime.bus import Bus
from tidegate.runtime.config import TelemetryConfig
from tidegate.runtime.telemetry import Telemetry, open_telemetry
from tidegate.wire.subjects import Topology

pytestmark = pytest.mark.integration


async def test_a_step_is_a_trace_of_its_own_linked_to_what_it_was_trained_on(
    tmp_path: Path, bus: Bus, topology: Topology
) -> None:
    with otlp_sink() as sink:
        config = TelemetryConfig(otlp_endpoint=sink.endpoint, sample_ratio=1.0)
        telemetry: Telemetry = open_telemetry(config, service="learner", instance="learner", run="test-run")
        async with world(tmp_path, bus, topology) as running, running.learner(telemetry=telemetry) as life:
            version = await life.version(0)
            running.offer(2, at=PolicyVersion(lineage=version.lineage, step=0), trace_parent=telemetry.root())
            await life.version(2)
            await until(lambda: len(running.store.commits) == 2)
        telemetry.close()
        steps = [span for span in sink.spans if span.name == "learner.step"]
        consumed = [span for span in sink.spans if span.name == "trajectory.consume"]
        assert len(steps) == 2
        assert len(consumed) == 4
        assert len({span.trace_id for span in steps}) == 2
        assert not {span.trace_id for span in steps} & {span.trace_id for span in consumed}
        for step in steps:
            assert not step.parent_span_id
            assert {link.trace_id for link in step.links} == {span.trace_id for span in consumed}
        lags = {link.attributes[0].value.int_value for link in steps[1].links}
        assert lags == {1}
        attributes = {item.key: item.value for item in consumed[-1].attributes}
        assert attributes["tidegate.policy.lag"].int_value == 1
        assert attributes["tidegate.policy.version.start"].string_value == str(version)
        names = {metric.name for metric in sink.metrics}
        assert names >= {
            "tidegate.trajectory.policy_lag",
            "tidegate.provenance.incomplete",
            "tidegate.trajectory.consumed",
        }
        good = {
            (point.attributes[0].value.string_value, point.as_int or point.as_double)
            for point in sink.metric("tidegate.trajectory.consumed").sum.data_points
        }
        assert {value for _, value in good} == {4}


async def test_what_violates_an_objective_is_counted_and_its_consumption_is_traced_unsampled(
    tmp_path: Path, bus: Bus, topology: Topology
) -> None:
    """The second batch was started at version 0 and is trained at 1: behind the objective, inside the budget."""
    with otlp_sink() as sink:
        config = TelemetryConfig(otlp_endpoint=sink.endpoint, sample_ratio=0.0)
        telemetry: Telemetry = open_telemetry(config, service="learner", instance="learner", run="test-run")
        slos = SlosConfig(lag_p95=SloConfig(bound=0.0))
        async with (
            world(tmp_path, bus, topology, slos=slos) as running,
            running.learner(telemetry=telemetry) as life,
        ):
            version = await life.version(0)
            running.offer(2, at=PolicyVersion(lineage=version.lineage, step=0), trace_parent=telemetry.root())
            await life.version(2)
            await until(
                lambda: life.context.stats.snapshot(at_s=0.0).labels.get("published_version", "")[-2:] == "@2"
            )
            values = life.context.stats.snapshot(at_s=0.0).values
        telemetry.close()
    counted = {
        name: (values[f"slo_good.{name}_total"], values[f"slo_bad.{name}_total"])
        for name in ("lag_p95", "lag_max", "age_p95")
    }
    assert counted == {"lag_p95": (2.0, 2.0), "lag_max": (4.0, 0.0), "age_p95": (4.0, 0.0)}
    assert 0.0 < values["age_last_p95_s"] < 60.0
    assert values["published_at_s"] > 0.0
    consumed = [
        {item.key: item.value for item in span.attributes}
        for span in sink.spans
        if span.name == "trajectory.consume"
    ]
    assert len(consumed) == 2
    for attributes in consumed:
        assert attributes["tidegate.policy.lag"].int_value == 1
        assert attributes["tidegate.slo.violation"].bool_value
        assert attributes["tidegate.trace.deferred"].bool_value
