"""Texts that PostgreSQL has no room for come back as they were."""

import hypothesis.strategies as st
from hypothesis import given

from tidegate.runtime.replication.texts import ESCAPE, from_postgres, to_postgres

TEXTS = st.lists(
    st.none() | st.text(st.sampled_from(["\0", ESCAPE, "0", "1", "a", "é"]), max_size=8) | st.text(max_size=8)
)


@given(TEXTS)
def test_texts_come_back_as_they_were_and_have_no_nul(texts: list[str | None]) -> None:
    sent = to_postgres(texts)
    assert all(text is None or "\0" not in text for text in sent)
    assert [None if text is None else from_postgres(text) for text in sent] == texts


def test_plain_texts_are_sent_as_they_are() -> None:
    assert to_postgres(["a detail", "", None]) == ["a detail", "", None]
