"""What every engine refuses: samplers whose logprobs a learner cannot recompute."""

import math

from tidegate.core.errors import RecordError
from tidegate.core.records import Sampler


def check_sampler(sampler: Sampler, *, name: str) -> None:
    """Whether a learner can recompute the logprobs of these draws; ``name``: the task or call, for errors.

    Raises:
        RecordError: no tokens, no temperature, or truncated sampling.
    """
    if sampler.max_new_tokens < 1 or not 0.0 <= sampler.temperature < math.inf:
        raise RecordError(
            f"{name} asks for {sampler.max_new_tokens} new tokens at temperature {sampler.temperature:g}",
            fix="set workload.sampler to at least one token and a temperature of 0 (greedy) or more",
        )
    if sampler.top_p != 1.0 or sampler.top_k != 0:
        raise RecordError(
            f"{name} truncates its samples (top_p {sampler.top_p:g}, top_k {sampler.top_k})",
            why="truncation renormalises the policy, and no learner could recompute its logprobs",
            fix="set workload.sampler.top_p to 1 and top_k to 0",
        )
