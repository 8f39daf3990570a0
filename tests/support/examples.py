"""Numbers of hypothesis examples where the profile's own number is too many."""

import hypothesis

FULL_PROFILE_EXAMPLES = 100


def num_examples(full: int) -> int:
    """``full`` examples under the full profile, and the same share of them under a smaller one."""
    profile = hypothesis.settings.default
    assert profile is not None
    return max(2, full * profile.max_examples // FULL_PROFILE_EXAMPLES)
