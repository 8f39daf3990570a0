"""Numbers of hypothesis examples where the profile's own number is too many."""

import hypothesis

PER_EXAMPLES = 100


def num_examples(full: int) -> int:
    """``full`` examples for each hundred that the profile gives an ordinary property."""
    profile = hypothesis.settings.default
    assert profile is not None
    return max(2, full * profile.max_examples // PER_EXAMPLES)
