import pytest

from tidegate.catalogue import learner as learner_stats
from tidegate.catalogue.telemetry import (
    METRIC_CONSUMED,
    METRIC_LAG,
    METRIC_LAG_WINDOW_MAX,
)
from tidegate.runtime.telemetry_metrics import SERIES_MAX, MetricTable

SAMPLED = "00-" + "a" * 32 + "-" + "b" * 16 + "-01"


def test_the_same_labels_in_another_order_are_the_same_series() -> None:
    table = MetricTable()
    table.add(METRIC_CONSUMED, 1, {"a": "1", "b": "2"})
    table.add(METRIC_CONSUMED, 2, {"b": "2", "a": "1"})
    [series] = table.metrics[METRIC_CONSUMED].series.values()
    assert series.value == 3


def test_a_metric_with_an_id_among_its_labels_stops_growing() -> None:
    table = MetricTable()
    for number in range(SERIES_MAX + 5):
        table.add(METRIC_CONSUMED, 1, {"id": number})
    metric = table.metrics[METRIC_CONSUMED]
    assert len(metric.series) == SERIES_MAX
    assert metric.num_refused == 5


def test_a_value_on_a_bound_falls_into_the_bucket_below_it() -> None:
    table = MetricTable()
    for value in (0, 1, 1.5, 33):
        table.put(METRIC_LAG, value, {})
    [series] = table.metrics[METRIC_LAG].series.values()
    assert series.buckets[:3] == [1, 1, 1]
    assert series.buckets[-1] == 1
    assert series.total == 35.5


def test_only_a_sampled_trace_becomes_an_exemplar_and_the_newest_of_its_bucket_stays() -> None:
    table = MetricTable()
    table.put(METRIC_LAG, 2, {}, SAMPLED[:-1] + "0")
    table.put(METRIC_LAG, 2, {})
    [series] = table.metrics[METRIC_LAG].series.values()
    assert series.exemplars == {}
    table.put(METRIC_LAG, 2, {}, SAMPLED)
    table.put(METRIC_LAG, 2, {}, SAMPLED.replace("a", "c"))
    [exemplar] = series.exemplars.values()
    assert exemplar.trace_id == int("c" * 32, 16)
    assert exemplar.span_id == int("b" * 16, 16)


def test_a_gauge_keeps_the_last_value_and_a_window_its_largest() -> None:
    table = MetricTable()
    for value in (3, 5, 4):
        table.put(learner_stats.VERSION_STEP.metric, value, {})
        table.put(METRIC_LAG_WINDOW_MAX, value, {})
    [version] = table.metrics[learner_stats.VERSION_STEP.metric].series.values()
    [window] = table.metrics[METRIC_LAG_WINDOW_MAX].series.values()
    assert (version.value, window.value) == (4, 5)
    window.fresh = False
    table.put(METRIC_LAG_WINDOW_MAX, 1, {})
    assert window.value == 1


def test_a_name_that_the_catalogue_does_not_have_is_refused() -> None:
    with pytest.raises(KeyError):
        MetricTable().add("tidegate.made.up", 1, {})
