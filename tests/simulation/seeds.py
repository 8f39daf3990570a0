"""Seeds of the simulation: a few for `make test`, more for `make test-all`."""

from collections.abc import Sequence

import pytest


def seeds(num_seeds: int, *, more: int = 0) -> Sequence[object]:
    """Seeds from 0 on for ``parametrize``; the last ``more`` of them run in `make test-all` only."""
    return [
        *range(num_seeds),
        *(pytest.param(seed, marks=pytest.mark.extended) for seed in range(num_seeds, num_seeds + more)),
    ]
