"""Settings of every test: threads that suit small machines, and examples that never fail by the clock."""

import os

import hypothesis

# Before anything imports torch: the tests share few cores with the services that they start.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# No deadline, as nothing here asserts on time; in CI the examples are the same each time, so a failure repeats.
hypothesis.settings.register_profile(
    "tidegate",
    deadline=None,
    derandomize=bool(os.environ.get("CI")),
    print_blob=True,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
)
# Few examples, for `make check`: --hypothesis-profile=quick.
hypothesis.settings.register_profile(
    "quick", parent=hypothesis.settings.get_profile("tidegate"), max_examples=20
)
hypothesis.settings.load_profile("tidegate")
