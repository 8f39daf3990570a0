"""The order of versions by their text, which a report may make up."""

import pytest

from tidegate.runtime.evaluations import NOT_EVALUATED, version_order


def test_versions_are_ordered_by_lineage_and_step() -> None:
    assert NOT_EVALUATED < version_order("0-aaaa@9") < version_order("0-bbbb@10") < version_order("11-cc@2")


@pytest.mark.parametrize(
    "text", ["", "x@1", "0-a@x", "²-a@²", pytest.param(f"0-a@{'9' * 5000}", id="5000 digits")]
)
def test_text_that_is_no_version_comes_first(text: str) -> None:
    assert version_order(text) == NOT_EVALUATED
