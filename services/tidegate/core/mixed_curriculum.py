"""Several environments in one run: which one the next prompt is of, and the curriculum of each.

Weights decide how often each environment is drawn; within one, its own curriculum decides, as if it were alone. The
choice between them depends on the seed and on how many prompts were drawn, and on nothing else: what ended, failed or
was rewarded cannot move the shares, and a restarted queue continues them.

It follows the golden ratio's sequence instead of independent draws: the fractional parts of its multiples fill [0, 1)
evenly from any point on, so that a batch has about the shares of the run. After n prompts a share is off by less than
(3 + 3.53 ln n) / n (Niederreiter 1978), where independent draws are off by 1 / sqrt(n).
"""

from array import array
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from typing import TypeAlias

import msgspec

from tidegate.core.curriculum import Curriculum, CurriculumState, Strategy, uniform_fraction
from tidegate.core.own_weights import CurriculumBin

# 2**64 over the golden ratio, as an integer, so that the sequence is exact however long a run is.
_GOLDEN = 0x9E3779B97F4A7C15
_WORD = 1 << 64
# What a float holds of a fraction without being rounded up to 1.
_SPARE_BITS = 11


class _MixedPart:
    """One environment: its curriculum, and where its prompts are in the dataset of the run."""

    def __init__(self, curriculum: Curriculum, indices: "array[int]") -> None:
        self.curriculum = curriculum
        self.indices = indices


class MixedCurriculum:
    """The dataset of several environments as the curriculum sees it."""

    def __init__(
        self,
        bins: Sequence[str],
        *,
        env_of: Mapping[str, str],
        weights: Mapping[str, float],
        seed: int,
        strategy: Strategy = "uniform",
    ) -> None:
        """``bins``: of each prompt, in file order. ``env_of``: the environment of each bin.

        ``weights``: of each environment; one above 0 has prompts.
        """
        self._seed = seed
        self._env_of = dict(env_of)
        drawn = {name: weight for name, weight in weights.items() if weight > 0.0}
        assert drawn, "weights that are all 0 are refused with the run file"
        self._names = list(drawn)
        self._totals = list(accumulate(drawn.values()))
        indices = {name: array("Q") for name in drawn}
        of_bins: dict[str, list[str]] = {name: [] for name in drawn}
        for index, bin_name in enumerate(bins):
            name = self._env_of[bin_name]
            if name in indices:
                indices[name].append(index)
                of_bins[name].append(bin_name)
        self._parts = {
            name: _MixedPart(
                Curriculum(of_bins[name], seed=_seed_of(seed, name), strategy=strategy), indices[name]
            )
            for name in drawn
        }

    @property
    def names(self) -> list[str]:
        """The bins, those of the first environment first."""
        return [name for part in self._parts.values() for name in part.curriculum.names]

    def draw(self, state: CurriculumState, *, count: int) -> tuple[list[int], CurriculumState]:
        """The next ``count`` prompts as indices into the dataset, and the state after them."""
        chosen = [self._chosen(state.num_drawn + number) for number in range(count)]
        envs = dict(state.envs)
        indices: dict[str, Iterator[int]] = {}
        for name, num_chosen in Counter(chosen).items():
            part = self._parts[name]
            found, after = part.curriculum.draw(self._state_of(name, state), count=num_chosen)
            envs[name] = msgspec.structs.replace(after, weights={})
            indices[name] = iter([part.indices[index] for index in found])
        drawn = [next(indices[name]) for name in chosen]
        return drawn, msgspec.structs.replace(state, num_drawn=state.num_drawn + count, envs=envs)

    def bins_of(self, state: CurriculumState) -> tuple[CurriculumBin, ...]:
        """What a user's code is told of each bin, in the order of ``names``."""
        return tuple(
            each
            for name, part in self._parts.items()
            for each in part.curriculum.bins_of(self._state_of(name, state))
        )

    def observe(self, state: CurriculumState, *, bin_name: str, reward: float) -> CurriculumState:
        """The state after one trajectory was rewarded; a bin that the dataset does not have changes nothing."""
        name = self._env_of.get(bin_name, "")
        part = self._parts.get(name)
        if part is None:
            return state
        before = state.envs.get(name, CurriculumState())
        after = part.curriculum.observe(before, bin_name=bin_name, reward=reward)
        return msgspec.structs.replace(state, envs={**state.envs, name: after})

    def _chosen(self, number: int) -> str:
        """The environment of the ``number``-th prompt of the run."""
        offset = int(uniform_fraction(self._seed, "environment") * _WORD)
        word = (offset + number * _GOLDEN) % _WORD
        mark = (word >> _SPARE_BITS) / (_WORD >> _SPARE_BITS) * self._totals[-1]
        # Rounded up to the sum itself, the mark is of the last environment.
        return self._names[min(bisect_right(self._totals, mark), bisect_left(self._totals, self._totals[-1]))]

    def _state_of(self, name: str, state: CurriculumState) -> CurriculumState:
        """The state of one environment, with what a user's code weighs its bins by.

        All of them may weigh 0 beside the bins of other environments; then they are drawn as without that code.
        """
        own = state.envs.get(name, CurriculumState())
        bins = self._parts[name].curriculum.names if state.weights else []
        weights = {each: state.weights.get(each, 0.0) for each in bins}
        return msgspec.structs.replace(own, weights=weights) if any(weights.values()) else own


def _seed_of(seed: int, name: str) -> int:
    """Two environments of equal sizes are not read in the same order."""
    return int(uniform_fraction(seed, "environment", name) * 2**53)


PromptChoice: TypeAlias = Curriculum | MixedCurriculum
