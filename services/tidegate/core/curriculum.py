"""Curriculum: chooses the next prompt.

The dataset is read in epochs. Within one, prompts come in the order of a keyed permutation that is computed an index at
a time: nothing is stored or sorted, so the position alone (a counter) brings a restarted queue back to the very next
prompt, and a dataset of any size starts at once. Randomness is an argument (``seed``): the same seed and state give the
same prompts on every machine.

Three strategies. ``uniform`` reads the whole dataset as one stream. ``learnable`` keeps one stream a bin and draws the
bin by how much its prompts can still teach: a group whose samples all succeed or all fail has no advantage, and the
variance of a success that happens with rate p is p (1 - p), so that is the weight. ``own`` draws bins by weights of the
state, which a user's code gave, and as ``learnable`` while it has none.
"""

import hashlib
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Literal, TypeAlias

import msgspec

from tidegate.core.own_weights import CurriculumBin

BuiltIn: TypeAlias = Literal["uniform", "learnable"]
Strategy: TypeAlias = BuiltIn | Literal["own"]

# A Feistel network is a random permutation to any reader from four rounds on (Luby and Rackoff 1988).
_ROUNDS = 4
# With fewer bits a half, some orders of a small set come several times as often as others (with 2, up to 5 times);
# with more, a draw from a small set walks longer for nothing.
_HALF_BITS_MIN = 3

# Weight of one observation in a bin's success rate: about the last 50 trajectories count, so that the rate follows
# a learning policy within a few versions and one group of eight hardly moves it.
RATE_STEP = 0.02
# Every bin keeps this share of the largest possible weight: a bin that seems mastered or hopeless is still visited,
# because otherwise its rate would never be measured again.
WEIGHT_FLOOR = 0.1


class BinState(msgspec.Struct, frozen=True):
    """One bin's stream: prompts drawn from it so far, and its success rate (None before the first reward)."""

    num_drawn: int = 0
    success_rate: float | None = None


class CurriculumState(msgspec.Struct, frozen=True):
    """What a restarted task queue needs to continue with the next prompt. ``weights``: of bins, by a user's code.

    ``envs``: of several environments the state of each, by its name; their sum is ``num_drawn``.
    """

    num_drawn: int = 0
    bins: dict[str, BinState] = {}
    weights: dict[str, float] = {}
    envs: dict[str, "CurriculumState"] = {}


def uniform_fraction(*key: object) -> float:
    """A number in [0, 1) that depends on ``key`` alone."""
    return _word(*key) / 2**64


def permuted_index(position: int, *, size: int, key: str) -> int:
    """The ``position``-th element of the permutation of ``range(size)`` named by ``key``.

    A Feistel network over the next power of four, walked until it lands inside of ``size`` (Black and Rogaway 2002):
    a bijection, as each step of the walk is one.
    """
    half_bits = max(_HALF_BITS_MIN, ((size - 1).bit_length() + 1) // 2)
    mask = (1 << half_bits) - 1
    value = position
    while True:
        left, right = value >> half_bits, value & mask
        for turn in range(_ROUNDS):
            left, right = right, left ^ (_word(key, turn, right) & mask)
        value = left << half_bits | right
        if value < size:
            return value


class Curriculum:
    """The dataset as the curriculum sees it: the bin of each prompt, and how to choose between bins."""

    def __init__(self, bins: Sequence[str], *, seed: int, strategy: Strategy = "uniform") -> None:
        """``bins`` names each prompt's bin, in file order; it must not be empty."""
        assert bins, "an empty dataset is refused where it is read"
        self._seed = seed
        self._size = len(bins)
        self._by_bin = strategy != "uniform"
        self._is_own = strategy == "own"
        # Eight bytes a prompt, where a list of numbers takes forty.
        self._members: dict[str, array[int]] = {}
        for index, name in enumerate(bins):
            self._members.setdefault(name, array("Q")).append(index)

    @property
    def names(self) -> list[str]:
        """The bins, in the order in which they first come in the dataset."""
        return list(self._members)

    def draw(self, state: CurriculumState, *, count: int) -> tuple[list[int], CurriculumState]:
        """The next ``count`` prompts as indices into the dataset, and the state after them."""
        indices: list[int] = []
        num_drawn, bins = state.num_drawn, dict(state.bins)
        # Draws change no success rate, so the weights are the same for all of them.
        names, totals = self._totals(state) if self._by_bin else ([], [])
        for _ in range(count):
            if self._by_bin:
                name = names[self._chosen(totals, at=num_drawn)]
                before = bins.get(name, BinState())
                indices.append(self._member(name, before.num_drawn))
                bins[name] = msgspec.structs.replace(before, num_drawn=before.num_drawn + 1)
            else:
                epoch, position = divmod(num_drawn, self._size)
                indices.append(permuted_index(position, size=self._size, key=f"{self._seed}/{epoch}"))
            num_drawn += 1
        return indices, CurriculumState(num_drawn, bins, state.weights)

    def position(self, state: CurriculumState) -> tuple[int, int]:
        """Epoch and position in it, counted over the whole dataset."""
        return divmod(state.num_drawn, self._size)

    def weights(self, bins: Mapping[str, BinState]) -> dict[str, float]:
        """How likely each bin is drawn, relative to the others; a bin that was never measured counts in full."""
        return {name: _weight(bins.get(name, BinState()).success_rate) for name in self._members}

    def bins_of(self, state: CurriculumState) -> tuple[CurriculumBin, ...]:
        """What a user's code is told of each bin, in the order of the dataset."""
        return tuple(
            CurriculumBin(name, len(members), known.num_drawn, known.success_rate)
            for name, members in self._members.items()
            for known in (state.bins.get(name, BinState()),)
        )

    def observe(self, state: CurriculumState, *, bin_name: str, reward: float) -> CurriculumState:
        """The state after one trajectory was rewarded; a reward outside of [0, 1] counts as the nearer end.

        A bin that the dataset does not have changes nothing, so what arrives over the wire cannot grow the state.
        """
        if bin_name not in self._members:
            return state
        success = min(1.0, max(0.0, reward))
        before = state.bins.get(bin_name, BinState())
        rate = success if before.success_rate is None else before.success_rate
        after = msgspec.structs.replace(before, success_rate=rate + RATE_STEP * (success - rate))
        return msgspec.structs.replace(state, bins={**state.bins, bin_name: after})

    def _totals(self, state: CurriculumState) -> tuple[list[str], list[float]]:
        """The bins, and the sum of the weights up to each."""
        own = state.weights if self._is_own else {}
        weights = own or self.weights(state.bins)
        return list(weights), list(accumulate(weights.values()))

    def _chosen(self, totals: Sequence[float], *, at: int) -> int:
        mark = uniform_fraction(self._seed, "bin", at) * totals[-1]
        # A bin without weight adds nothing to the sum, so it is never the first above the mark. Rounded up to the sum
        # itself, the mark is of the last bin with a weight.
        return min(bisect_right(totals, mark), bisect_left(totals, totals[-1]))

    def _member(self, name: str, num_drawn: int) -> int:
        members = self._members[name]
        epoch, position = divmod(num_drawn, len(members))
        return members[permuted_index(position, size=len(members), key=f"{self._seed}/{name}/{epoch}")]


def _weight(success_rate: float | None) -> float:
    if success_rate is None:
        return 1.0
    return max(WEIGHT_FLOOR, 4.0 * success_rate * (1.0 - success_rate))


def _word(*key: object) -> int:
    text = "/".join(str(part) for part in key)
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")
