from pathlib import Path

import msgspec
import numpy as np
import pytest

from benchmarks import overlap, staleness
from benchmarks.cartpole import alternating
from benchmarks.cells import Cell, CellResult
from benchmarks.lag import LagRun, markdown
from benchmarks.payloads import payloads
from benchmarks.peers.segment_pipe import pack_segment, unpack_segment
from benchmarks.registry import BENCHES
from benchmarks.report import number, spread_text, verdict
from benchmarks.results import Goal, Sample, row, spread
from benchmarks.steps_file import StepPoint, StepsFile, first_reaching
from tidegate.actor.engines.port import Sample as EngineSample
from tidegate.algorithms.grpo_settings import GrpoSettings
from tidegate.core.errors import UnavailableError
from tidegate.core.ids import LineageName, PolicyVersion, RunId
from tidegate.core.records import EpisodeEnd, VersionSpan
from tidegate.launch.services import load
from tidegate.wire.frame import decode_frame, encode_frame
from tidegate.wire.validate import validate_trajectory


def test_ratio_is_of_repetitions_measured_beside_each_other() -> None:
    found = row("steps", "1/s", [10.0, 30.0, 8.0], [20.0, 30.0, 10.0])
    assert found.ratio is not None
    assert (found.ratio.values, found.ratio.median) == ([0.5, 1.0, 0.8], 0.8)
    assert found.met is None


def test_sides_measured_unequally_often_make_no_ratio() -> None:
    with pytest.raises(ValueError, match="2 repetitions of one side and 1 of the other"):
        row("steps", "1/s", [1.0, 2.0], [1.0])


@pytest.mark.parametrize(
    ("goal", "met"),
    [
        (Goal(0.8, "at_least", "ratio"), True),
        (Goal(0.9, "at_least", "ratio"), False),
        (Goal(0.5, "at_least", "ratio", every=True), True),
        (Goal(0.6, "at_least", "ratio", every=True), False),
        (Goal(10.0, "at_most", "figure"), True),
        (Goal(9.0, "at_most", "figure"), False),
        (Goal(29.0, "at_most", "figure", every=True), False),
    ],
)
def test_goal_is_held_against_the_median_unless_it_asks_for_each(goal: Goal, met: bool) -> None:
    assert row("steps", "1/s", [10.0, 30.0, 8.0], [20.0, 30.0, 10.0], goal=goal).met is met


def test_goal_without_a_measurement_is_neither_met_nor_missed() -> None:
    found = row("steps to 475", "steps", [], goal=Goal(100_000, "at_most", "figure"))
    assert found.met is None
    assert "not measured" in verdict(found).plain


def test_missed_goal_is_said() -> None:
    assert verdict(row("x", "s", [16.0], goal=Goal(15.0, "at_most", "figure"))).plain == "≤ 15 MISSED"


@pytest.mark.parametrize(
    ("value", "text"), [(0.6034, "0.603"), (12311.4, "12,311"), (80.0, "80"), (123.4, "123"), (0.0, "0")]
)
def test_numbers_keep_the_digits_that_matter(value: float, text: str) -> None:
    assert number(value) == text


def test_spread_shows_its_range_once_there_is_one() -> None:
    assert spread_text(spread([3.0])) == "3"
    assert spread_text(spread([3.0, 1.0, 2.0])) == "2 (1–3)"
    assert spread([]) is None


def test_work_is_counted_by_the_second_and_by_the_cpu_second() -> None:
    sample = Sample("peer", "steady", 0, work=100.0, unit="steps", wall_s=4.0, cpu_s=5.0)
    assert (sample.per_s, sample.per_cpu_s) == (25.0, 20.0)


def test_sides_take_turns_in_going_first() -> None:
    assert [alternating(repetition)[0] for repetition in range(4)] == ["tidegate", "peer", "tidegate", "peer"]


@pytest.mark.parametrize("name", BENCHES)
def test_every_bench_of_the_table_is_there(name: str) -> None:
    assert callable(load(BENCHES[name].target))


def point(step: int, *, mean_return: float | None = None) -> StepPoint:
    return StepPoint(
        step, at_s=float(step), env_steps=10 * step, lag_mean=0.0, lag_max=0, mean_return=mean_return
    )


def test_line_that_is_still_being_written_waits_for_its_end(tmp_path: Path) -> None:
    path = tmp_path / "steps.jsonl"
    steps = StepsFile(path)
    assert steps.read() == []
    first, second = (msgspec.json.encode(point(step)) + b"\n" for step in (1, 2))
    path.write_bytes(first + second[:20])
    assert [each.step for each in steps.read()] == [1]
    path.write_bytes(first + second)
    assert [each.step for each in steps.read()] == [1, 2]


def test_target_is_reached_at_the_first_step_that_touches_it() -> None:
    points = [point(1), point(2, mean_return=474.9), point(3, mean_return=475.0), point(4, mean_return=500.0)]
    assert first_reaching(points, mean_return=475.0) == points[2]
    assert first_reaching(points[:2], mean_return=475.0) is None


def test_segment_comes_out_of_the_peers_pipe_as_it_went_in() -> None:
    lineage = LineageName("0-peer")
    tensors = {
        "observations": np.arange(24, dtype=np.float32).reshape(3, 2, 4),
        "actions": np.array([[0, 1], [1, 0]], np.int32),
        "valid": np.array([[True, False], [True, True]]),
    }
    sample = EngineSample(
        tensors=tensors,
        spans=(VersionSpan(PolicyVersion(lineage, 4), 0, 1), VersionSpan(PolicyVersion(lineage, 5), 1, 2)),
        num_steps=3,
        episodes=(EpisodeEnd(episode_return=20.0, length=20, position=1),),
    )
    segment = unpack_segment(pack_segment(sample))
    assert (segment.line.version_step, segment.line.num_steps) == (4, 3)
    assert segment.line.episodes == sample.episodes
    assert segment.tensors.keys() == tensors.keys()
    for name, tensor in tensors.items():
        np.testing.assert_array_equal(segment.tensors[name], tensor)
        assert segment.tensors[name].dtype == tensor.dtype


@pytest.mark.parametrize("payload", payloads(quick=True), ids=lambda payload: payload.name)
def test_made_up_trajectories_are_such_as_the_store_accepts(payload: object) -> None:
    [chosen] = [each for each in payloads(quick=True) if each.name == getattr(payload, "name", "")]
    records = chosen.records(RunId("bench"), 7)
    frame = encode_frame(records)
    assert len(frame) < 512 * 1024
    for record in decode_frame(frame):
        validate_trajectory(record, run_id="bench")
    assert len({record.trajectory_id for record in records}) == chosen.num_samples


def lag_run(
    max_lag: int, objective: str, *, final_return: float, balanced: bool = True, reached: int | None = 75_000
) -> LagRun:
    return LagRun(
        max_lag=max_lag,
        objective="vtrace" if objective == "vtrace" else "none",
        seed=1,
        steps=150_000,
        seconds=10.0,
        steps_per_s=15_000.0,
        steps_per_cpu_s=10_000.0,
        whole_wall_s=20.0,
        whole_cpu_s=30.0,
        steps_to_target=reached,
        seconds_to_target=5.0 if reached is not None else None,
        final_return=final_return,
        lag_mean=max_lag / 2,
        lag_max=max_lag,
        balanced=balanced,
        max_lag_trained=max_lag,
        trained_twice=0,
    )


def test_lag_table_says_what_each_budget_bought_and_what_it_cost() -> None:
    runs = [
        lag_run(0, "vtrace", final_return=500.0),
        lag_run(0, "none", final_return=499.0),
        lag_run(16, "vtrace", final_return=500.0, reached=None),
        lag_run(16, "none", final_return=320.0, balanced=False),
    ]
    lines = markdown(runs, updates=150).splitlines()
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]
    assert cells[0] == ["0", "15,000", "10,000", "0.00", "0", "75,000", "5.0", "500", "499", "balanced"]
    assert cells[1][0] == "16"
    assert cells[1][5] == "–, 1 of 1 never"
    assert cells[1][7:] == ["500", "320", "NOT balanced"]


def cell(name: str, lag: int, seed: int, solved: float) -> CellResult:
    return CellResult(name, lag, seed, [(0, 0.4), (200, solved)], 1.0, 0.0, 0.0, 1.0, 1.0)


def test_an_objective_holds_up_to_the_lag_before_it_first_falls_short() -> None:
    shares = {"ppo clip": (0.8, 0.7, 0.8), "gspo": (0.73, 0.74, 0.9), "none": (0.5, 0.9, 0.9)}
    found = [
        cell(name, lag, seed, share + 0.01 * seed - 0.005)
        for name, row_of_lags in shares.items()
        for lag, share in zip((0, 4, 16), row_of_lags, strict=True)
        for seed in (0, 1)
    ]
    held = staleness.holds_to(found)
    assert held == {"ppo clip": 0, "gspo": 16, "none": None}
    table = staleness.markdown(found, held)
    assert "| ppo clip | 0.80 (±0.01) | 0.70 (±0.01) | 0.80 (±0.01) | lag 0 |" in table
    assert "| none | 0.50 (±0.01) | 0.90 (±0.01) | 0.90 (±0.01) | – |" in table
    page = staleness.html_page(found, table, updates=200)
    assert page.count("<svg") == 2
    assert "gspo" in page


@pytest.mark.slow
def test_a_worker_that_dies_is_told_with_its_log(tmp_path: Path) -> None:
    with pytest.raises(UnavailableError, match=r"worker \d died: see .*worker-\d\.log"):
        staleness.measure(
            [Cell("no cell at all", GrpoSettings(learning_rate=-1.0), 0, 0, 1, 1)], folder=tmp_path
        )


def overlap_run(max_lag: int, shares: list[float]) -> overlap.OverlapRun:
    return overlap.OverlapRun(
        case="lengths",
        max_lag=max_lag,
        seed=0,
        evaluations=[overlap.Evaluation(10.0 * place, share) for place, share in enumerate(shares)],
        updates=20,
        updates_per_s=2.0,
        lag_mean=1.5,
        lag_max=3,
        waste=0.025,
        wall_s=60.0,
        cpu_s=60.0,
        balanced=True,
    )


@pytest.mark.parametrize(
    ("shares", "after_s"),
    [
        ([0.7, 0.75, 0.8, 0.3], 20.0),
        ([0.3, 0.99, 0.3, 0.6, 0.75, 0.9], 50.0),
        ([0.3, 0.3, 0.9], None),
        ([0.9, 0.9], None),
    ],
)
def test_a_run_is_where_the_mean_of_its_last_looks_is(shares: list[float], after_s: float | None) -> None:
    assert overlap_run(4, shares).reached_s() == after_s


def test_both_runs_of_a_pair_are_looked_at_when_the_asynchronous_one_is_done() -> None:
    pair = overlap.Pair(
        ours=overlap_run(4, [0.6, 0.8, 0.85, 0.9]), sync=overlap_run(0, [0.6, 0.6, 0.6, 0.9, 0.9])
    )
    cells = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in overlap.markdown([pair]).splitlines()[2:]
    ]
    assert cells[0][:5] == ["lengths", "0", "0", "40", "0.60"]
    assert cells[1][:5] == ["lengths", "4", "0", "20", "0.75"]
