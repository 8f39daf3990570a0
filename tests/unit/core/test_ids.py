import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.core.ids import LineageName, PolicyVersion, TaskId, parse_version, task_of, trajectory_id

lineages = st.text(st.characters(codec="ascii", min_codepoint=33), min_size=1).map(LineageName)
versions = st.builds(PolicyVersion, lineage=lineages, step=st.integers(0, 2**40))


@given(versions)
def test_version_reads_back_what_it_printed(version: PolicyVersion) -> None:
    assert parse_version(str(version)) == version


@pytest.mark.parametrize("text", ["", "17", "@17", "0-3fa2@", "0-3fa2@x", "0-3fa2"])
def test_text_that_is_no_version_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        parse_version(text)


@given(st.text(min_size=1).map(TaskId), st.integers(0, 10**6))
def test_trajectory_names_the_task_it_came_from(task: TaskId, sample_index: int) -> None:
    assert task_of(trajectory_id(task, sample_index=sample_index)) == task


@given(
    st.text("t0123456789.", min_size=1).map(TaskId),
    st.text("t0123456789.", min_size=1).map(TaskId),
    st.integers(0, 99),
    st.integers(0, 99),
)
def test_two_samples_share_an_id_only_if_they_are_the_same(
    one: TaskId, other: TaskId, i: int, j: int
) -> None:
    same = trajectory_id(one, sample_index=i) == trajectory_id(other, sample_index=j)
    assert same == ((one, i) == (other, j))
