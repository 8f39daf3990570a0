"""Running mean and variance of a policy's inputs, as tensors of the policy version.

Actors and the learner read them from the version that they use, so that both always normalise alike, and a checkpoint
contains them. The learner replaces them at the end of an update; they are not trained.

Shapes: B observations, I inputs.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tidegate.core.records import Array
from tidegate.models.array_functions import ArrayModule

MEAN, VARIANCE, COUNT = "normaliser.mean", "normaliser.variance", "normaliser.count"
NAMES = (MEAN, VARIANCE, COUNT)
# Constant inputs have variance 0; 1e-8 and the limit are those of OpenAI's baselines, VecNormalize and CleanRL.
VARIANCE_FLOOR = 1e-8
LIMIT = 10.0


def statistics_shapes(num_inputs: int) -> dict[str, tuple[int, ...]]:
    """Shapes of the statistics by name."""
    return {MEAN: (num_inputs,), VARIANCE: (num_inputs,), COUNT: (1,)}


def init_statistics(num_inputs: int) -> dict[str, Array]:
    """Statistics that change no input: mean 0, variance 1, of no observation."""
    return {
        MEAN: np.zeros(num_inputs, np.float32),
        VARIANCE: np.ones(num_inputs, np.float32),
        COUNT: np.zeros(1, np.float32),
    }


def normalised(params: Mapping[str, Any], inputs: Any, xp: ArrayModule) -> Any:
    """Inputs (..., I) with mean 0 and variance 1 by the statistics in ``params``, limited to ±10."""
    deviations = xp.sqrt(params[VARIANCE] + VARIANCE_FLOOR)
    return xp.clip((inputs - params[MEAN]) / deviations, -LIMIT, LIMIT)


def updated(
    params: Mapping[str, Array], inputs_BI: Array, *, is_normalised_I: NDArray[np.bool_]
) -> dict[str, Array]:
    """The statistics after further inputs; those outside of ``is_normalised_I`` keep mean 0 and variance 1.

    The first observations replace the initial statistics, later ones are merged with them. Sums are in float64; what is
    kept is float32, as published, so that a restored run continues exactly.

    Source: Chan 1979, the parallel form of Welford's method.
    """
    count = float(params[COUNT][0])
    num_new = len(inputs_BI)
    if num_new == 0:
        return {name: params[name] for name in NAMES}
    total = count + num_new
    new_mean_I = inputs_BI.mean(axis=0, dtype=np.float64)
    new_squares_I = np.square(inputs_BI - new_mean_I).sum(axis=0)
    shift_I = new_mean_I - params[MEAN]
    mean_I = params[MEAN] + shift_I * (num_new / total)
    squares_I = count * params[VARIANCE].astype(np.float64) + new_squares_I
    squares_I += np.square(shift_I) * (count * num_new / total)
    return {
        MEAN: np.where(is_normalised_I, mean_I, 0.0).astype(np.float32),
        VARIANCE: np.where(is_normalised_I, squares_I / total, 1.0).astype(np.float32),
        COUNT: np.array([total], np.float32),
    }
