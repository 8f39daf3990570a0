import hypothesis.strategies as st
import pytest
from hypothesis import given

from tests.unit.wire.strategies import SAMPLERS, STAGES, TASKS, TRAJECTORIES, VERSIONS, assert_same
from tidegate.core.errors import RecordError, UnknownVersionError
from tidegate.core.ids import LineageName, PolicyVersion
from tidegate.core.records import Sampler, StageTiming, Task, Trajectory
from tidegate.core.staleness import Lineage, LineageTree
from tidegate.v1 import policy_pb2, trajectory_pb2
from tidegate.wire.convert import (
    envelope_from_proto,
    envelope_to_proto,
    sampler_from_proto,
    sampler_to_proto,
    stage_from_proto,
    stage_to_proto,
    task_from_bytes,
    task_to_bytes,
    tree_from_proto,
    tree_to_proto,
    version_from_proto,
    version_to_proto,
)


@given(task=TASKS)
def test_task_comes_back_as_it_was_sent(task: Task) -> None:
    assert task_from_bytes(task_to_bytes(task)) == task


@given(trajectory=TRAJECTORIES)
def test_envelope_holds_every_field_but_the_tensors(trajectory: Trajectory) -> None:
    assert_same(trajectory, envelope_from_proto(envelope_to_proto(trajectory), {}), with_tensors=False)


@given(version=VERSIONS, sampler=SAMPLERS, stage=STAGES)
def test_small_values_come_back_as_they_were_sent(
    version: PolicyVersion, sampler: Sampler, stage: StageTiming
) -> None:
    assert version_from_proto(version_to_proto(version)) == version
    assert sampler_from_proto(sampler_to_proto(sampler)) == sampler
    assert stage_from_proto(stage_to_proto(stage)) == stage


@given(data=st.binary(max_size=200))
def test_any_bytes_give_a_task_or_a_record_error(data: bytes) -> None:
    try:
        task_from_bytes(data)
    except RecordError:
        return


@given(task=TASKS, data=st.data())
def test_mutated_task_gives_a_task_or_a_record_error(task: Task, data: st.DataObject) -> None:
    body = bytearray(task_to_bytes(task))
    body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
    try:
        task_from_bytes(bytes(body))
    except RecordError:
        return


def test_task_without_a_kind_or_an_id_is_refused() -> None:
    with pytest.raises(RecordError, match="no kind or no id"):
        task_from_bytes(trajectory_pb2.Task(task_id="t-1").SerializeToString())
    with pytest.raises(RecordError, match="no kind or no id"):
        task_from_bytes(trajectory_pb2.Task(kind=trajectory_pb2.TASK_KIND_GROUP).SerializeToString())


def test_lineage_tree_comes_back_with_its_order() -> None:
    tree = (
        LineageTree()
        .add(Lineage(name=LineageName("b")))
        .add(Lineage(name=LineageName("a"), parent=LineageName("b"), fork_step=4))
    )
    back = tree_from_proto(tree_to_proto(tree))
    assert back == tree
    assert list(back.lineages) == ["b", "a"]


def test_lineage_before_its_parent_is_refused() -> None:
    with pytest.raises(UnknownVersionError):
        tree_from_proto([policy_pb2.Lineage(name="a", parent="b", fork_step=4)])
