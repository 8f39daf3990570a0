"""Names in counters are bounded in number and length."""

from tidegate.core.labels import LABEL_CHARACTERS_MAX, LABELS_MAX, OTHER_LABEL, Labels


def test_first_names_keep_their_own_label_and_later_ones_share_one() -> None:
    labels = Labels()
    first = [labels.of(f"bin-{number}") for number in range(LABELS_MAX)]
    assert first == [f"bin-{number}" for number in range(LABELS_MAX)]
    assert labels.of("one-more") == OTHER_LABEL
    assert labels.of("bin-7") == "bin-7"


def test_label_is_short_however_long_its_name() -> None:
    assert labels_length("x" * 10_000) == LABEL_CHARACTERS_MAX


def labels_length(name: str) -> int:
    return len(Labels().of(name))
