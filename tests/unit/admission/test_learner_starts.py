"""The operator hears of the last start of a learner before it comes."""

from tidegate.admission.learner_starts import starts_sentence
from tidegate.wire.bounds import LINEAGES_MAX


def test_last_start_is_announced_while_a_quarter_of_them_is_left() -> None:
    assert starts_sentence("") == ""
    assert starts_sentence("3070-ab12@900000") == ""
    assert "started 3,072 times, and a run may have 4,096" in starts_sentence("3071-ab12@900000")
    assert LINEAGES_MAX == 4096
