"""Classes of lag that are measured together, and the names of what is measured of each."""

# By the lowest lag of a class; the last has no end.
LAG_CLASSES = (0, 1, 2, 4, 8, 16)
LAG_CLASS_NAMES = ("0", "1", "2-3", "4-7", "8-15", "16+")
MISMATCH_PREFIX = "mismatch_kl_lag_"


def mismatch_name(lag_class: str) -> str:
    """The metric of an update that holds the mismatch at a class of lag."""
    return f"{MISMATCH_PREFIX}{lag_class}"
