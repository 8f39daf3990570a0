"""What holds for every test: threads that suit small machines, and examples that never fail by the clock."""

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
hypothesis.settings.load_profile("tidegate")
