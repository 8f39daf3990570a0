"""Continuous batching: rows of any length are generated together, and waiting rows take the slots of finished ones.

Each step prefills some of the waiting contexts, bounded so that a long one does not stall generation, and then
generates one token for each live row. The model's parameters may be replaced between two steps.

Shapes: R live rows, N slots, V vocabulary, D width.
"""

import math
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from tidegate.core.errors import BackpressureError, RecordError
from tidegate.models.causal_lm import CausalLm
from tidegate.models.draw import draw_tokens, uniforms
from tidegate.models.prefill import STEM_COPIES_MAX, Context, ContextReader, ReadContexts, padded
from tidegate.models.slot_cache import SlotCache

# Contexts whose cache is kept because more of their rows wait for a slot. Rows start in order, so mostly it is one;
# others are prefilled again.
HELD_CONTEXTS_MAX = 2


@dataclass(frozen=True, slots=True)
class GenerationRow:
    """One row to generate.

    ``max_new_tokens``: the most tokens after ``context``. ``stop_ids``: tokens that end the row, included in it.
    ``temperature``: 0 is greedy, with logprob 0 under that sampler. ``seed`` (64 bits): of the row's random numbers;
    rows of one context need different ones.
    """

    context: Context
    max_new_tokens: int
    temperature: float
    stop_ids: frozenset[int]
    seed: int


@dataclass(frozen=True, slots=True)
class GenerationStep:
    """Result of one step: a token per row with its logprob, and the finish reasons of the rows that ended."""

    rows: list[int]
    tokens: list[int]
    logprobs: list[float]
    ended: dict[int, Literal["stop", "length"]]


@dataclass(slots=True, eq=False)
class _Row:
    row_id: int
    new: GenerationRow
    slot: int | None = None
    written: list[int] = field(default_factory=list[int])

    @property
    def longest(self) -> int:
        """The most tokens of the row in the cache; the last one is never an input."""
        return len(self.new.context) + self.new.max_new_tokens - 1


class ContinuousBatch:
    """At most ``slots`` live rows and ``waiting_max`` waiting ones, first come, first served.

    A row's logprobs do not depend on the rows beside it. The version of a token is that of the parameters during the
    step that sampled it. After the parameters were replaced, ``refresh_cache`` recomputes keys and values of all live
    rows: then each logprob is exactly that of its version given the token's prefix. Without it the batch continues on
    the keys and values of older parameters, as large engines do: a logprob is still exactly the one that its token was
    sampled with, but it mixes the new version's layers with the old one's keys and values, which no learner recomputes;
    it sees a mismatch.

    Bounded: see ``cache_bytes_max``. A row that ends or is stopped frees its slot for the next step. Truncated
    sampling (top-p, top-k) is deliberately not supported: it renormalises, and no learner could recompute its logprobs.
    """

    def __init__(
        self, model: CausalLm, *, slots: int, waiting_max: int, tokens_per_pass: int, cache_bytes_max: int
    ) -> None:
        """``tokens_per_pass``: the most prefill tokens of one step, padding included.

        Raises:
            ConfigError: the cache is too small for one text of the model's context length.
        """
        self._model = model
        self._waiting_max = waiting_max
        self._tokens_per_pass = tokens_per_pass
        self._reader = ContextReader(model, tokens_per_pass=tokens_per_pass)
        with torch.inference_mode():
            _, like = model(torch.zeros(1, 1, dtype=torch.int64, device=model.device))
        self._slots = SlotCache(
            like, slots=slots, context_length=model.context_length, bytes_max=cache_bytes_max
        )
        self._num_slots = slots
        self._next_id = 0
        self._rows: dict[int, _Row] = {}
        self._waiting: deque[_Row] = deque()
        self._live: list[_Row] = []  # by slot
        self._num_waiting_of: Counter[Context] = Counter()
        self._held: dict[Context, tuple[ReadContexts, int]] = {}
        self._last_N = np.zeros(slots, dtype=np.int64)
        self._temperature_N = np.ones(slots, dtype=np.float32)
        self._seed_N = np.zeros(slots, dtype=np.uint64)

    @property
    def num_rows(self) -> int:
        """The number of unfinished rows."""
        return len(self._rows)

    @property
    def num_live(self) -> int:
        """The number of rows in slots; the others wait."""
        return len(self._live)

    @property
    def cache_bytes(self) -> int:
        """Bytes of keys and values allocated in slots."""
        return self._slots.num_bytes

    @property
    def cache_bytes_max(self) -> int:
        """The most bytes of keys and values: in slots, of waiting rows, of the stem, and of one pass.

        A context that is prefilled in parts counts twice, as each part copies the ones before it.
        """
        contexts = (HELD_CONTEXTS_MAX + 3) * self._model.context_length
        contexts += STEM_COPIES_MAX * self._tokens_per_pass
        return self._slots.bytes_max + contexts * self._slots.bytes_per_token

    def check(self, row: GenerationRow) -> None:
        """Check that a row can be generated; reads no mutable state.

        Raises:
            RecordError: its context is empty or holds an unknown token, context and new tokens exceed the model's
            context, or
                its sampler settings are invalid.
        """
        if row.max_new_tokens < 1 or not 0.0 <= row.temperature < math.inf:
            raise RecordError(
                f"Cannot generate {row.max_new_tokens} tokens at temperature {row.temperature:g}",
                fix="use at least one token and a temperature of 0 (greedy) or more",
            )
        if not row.context or not 0 <= min(row.context) <= max(row.context) < self._model.vocabulary_size:
            raise RecordError(
                f"A context holds no token, or ids outside of the vocabulary of {self._model.vocabulary_size}"
            )
        num_tokens = len(row.context) + row.max_new_tokens
        if num_tokens > self._model.context_length:
            raise RecordError(
                f"A context with {row.max_new_tokens} new tokens needs {num_tokens} tokens",
                why=f"the model's holds {self._model.context_length}",
                fix="raise policy.context_length, lower sampler.max_new_tokens, or shorten the prompt",
            )

    def add(self, rows: Sequence[GenerationRow]) -> list[int]:
        """Queue rows, all of them or none; returns their ids.

        Raises:
            RecordError: one of them is invalid (``check``).
            BackpressureError: more than ``waiting_max`` would wait; retry when rows have ended.
        """
        for row in rows:
            self.check(row)
        free = self._num_slots - len(self._live)
        if len(self._waiting) + len(rows) > self._waiting_max + free:
            raise BackpressureError(
                f"{len(self._waiting)} rows wait to be generated",
                why=f"at most {self._waiting_max} may",
                fix="retry when some are done",
            )
        added = [_Row(self._next_id + offset, row) for offset, row in enumerate(rows)]
        self._next_id += len(added)
        self._waiting.extend(added)
        for row in added:
            self._rows[row.row_id] = row
            self._num_waiting_of[row.new.context] += 1
        return [row.row_id for row in added]

    @torch.inference_mode()
    def stop(self, row_id: int) -> None:
        """Abort a row and free its slot. Finished rows are ignored."""
        row = self._rows.pop(row_id, None)
        if row is None:
            return
        if row.slot is None:
            self._waiting.remove(row)
            self._forget_waiting(row)
            self._release()
        else:
            self._drop([row.slot])

    @torch.inference_mode()
    def step(self) -> GenerationStep:
        """Prefill some of the waiting contexts, then generate one token for each live row.

        A step may generate nothing: slots may be full, and a context may be longer than a pass.

        Raises:
            RecordError: the model's output for a row is no distribution.
        """
        hidden = [self._decode()] if self._live else []
        hidden += self._admit()
        if not hidden:
            return GenerationStep([], [], [], {})
        tokens, logprobs = self._choose(torch.cat(hidden) if len(hidden) > 1 else hidden[0])
        return self._append(tokens, logprobs)

    @torch.inference_mode()
    def refresh_cache(self) -> None:
        """Recompute keys and values of all live rows with the current parameters; drop prefilled contexts.

        A context is computed once for all of its rows. The cost is that of a full prefill.
        """
        self._reader.forget()
        self._held.clear()
        rows_of: dict[Context, list[_Row]] = {}
        for row in self._live:
            rows_of.setdefault(row.new.context, []).append(row)
        for read in self._reader.read_alike(list(rows_of)):
            rows = [(index, row) for index, context in enumerate(read.contexts) for row in rows_of[context]]
            longest = max(len(row.written) for _, row in rows)
            at_once = max(1, self._tokens_per_pass // longest)
            for start in range(0, len(rows), at_once):
                self._reread(read, rows[start : start + at_once])

    def keep_cache(self) -> None:
        """Keep live rows' cache after a change of parameters; waiting contexts are prefilled with the new ones."""
        self._reader.forget()
        self._held.clear()

    def _reread(self, read: ReadContexts, rows: list[tuple[int, _Row]]) -> None:
        """Compute the rows' generated tokens behind their contexts, and replace their slots' keys and values."""
        index_B = torch.tensor([index for index, _ in rows], device=self._model.device)
        cache = read.cache.rows(index_B)
        written = [row.written[:-1] for _, row in rows]
        if any(written):
            tokens_BT, lengths_B = padded(written, device=self._model.device)
            _, cache = self._model(tokens_BT, cache=cache, lengths_B=lengths_B)
        self._slots.replace([row.slot for _, row in rows if row.slot is not None], cache)

    def _decode(self) -> Tensor:
        """Run each live row's last token; the hidden states (R, D) for its next one."""
        last_R = torch.tensor(self._last_N[: len(self._live)], device=self._model.device)
        return self._model.read(last_R[:, None], self._slots.begin())[:, 0]

    def _admit(self) -> list[Tensor]:
        """Move the first waiting rows into free slots, as far as their contexts are prefilled.

        Returns the hidden states at the ends of their contexts, in the order of their slots.
        """
        starting = self._next_to_start() if self._waiting else []
        if not starting:
            return []
        unread = list(dict.fromkeys(row.new.context for row in starting if row.new.context not in self._held))
        read = self._reader.read_next(unread) if unread else None
        if read is not None:
            self._held |= {context: (read, index) for index, context in enumerate(read.contexts)}
        hidden: list[Tensor] = []
        source: ReadContexts | None = None
        together: list[tuple[_Row, int]] = []
        for row in starting:
            if row.new.context not in self._held:
                break
            held, index = self._held[row.new.context]
            if held is not source:
                hidden += self._start(source, together)
                source, together = held, []
            together.append((row, index))
        hidden += self._start(source, together)
        self._release()
        return hidden

    def _next_to_start(self) -> list[_Row]:
        """The longest waiting rows that fit into free slots at their full lengths."""
        free = self._num_slots - len(self._live)
        candidates = list(islice(self._waiting, free))
        live = max((row.longest for row in self._live), default=0)
        longest = max(live, *(row.longest for row in candidates)) if candidates else live
        if self._slots.has_room(len(self._live) + len(candidates), longest=longest):
            return candidates
        fitting: list[_Row] = []
        for row in candidates:
            live = max(live, row.longest)
            if not self._slots.has_room(len(self._live) + len(fitting) + 1, longest=live):
                break
            fitting.append(row)
        return fitting

    def _start(self, read: ReadContexts | None, rows: list[tuple[_Row, int]]) -> list[Tensor]:
        """Make the first waiting rows live: copy their contexts' cache into the next slots."""
        if read is None:
            return []
        indices = [index for _, index in rows]
        self._slots.append(read.cache, indices, lengths=[len(row.new.context) for row, _ in rows])
        for row, _ in rows:
            self._waiting.popleft()
            self._forget_waiting(row)
            row.slot = slot = len(self._live)
            self._live.append(row)
            self._temperature_N[slot] = row.new.temperature
            self._seed_N[slot] = row.new.seed
        return [read.hidden_GD[torch.tensor(indices, device=read.hidden_GD.device)]]

    def _forget_waiting(self, row: _Row) -> None:
        self._num_waiting_of[row.new.context] -= 1
        if self._num_waiting_of[row.new.context] == 0:
            del self._num_waiting_of[row.new.context]

    def _release(self) -> None:
        """Keep the prefilled cache only of the first contexts that more rows wait for."""
        wanted = [context for context in self._held if context in self._num_waiting_of]
        kept: dict[Context, tuple[ReadContexts, int]] = {}
        for context in wanted[:HELD_CONTEXTS_MAX]:
            read, index = self._held[context]
            kept[context] = (read if len(read.contexts) == 1 else read.alone(index), 0)
        self._held = kept

    def _choose(self, hidden_RD: Tensor) -> tuple[list[int], list[float]]:
        num_rows = len(self._live)
        temperature_R = self._temperature_N[:num_rows]
        greedy_R = temperature_R == 0.0
        drawn_at = uniforms(self._seed_N[:num_rows], self._slots.lengths)
        uniforms_R1 = torch.tensor(drawn_at, device=hidden_RD.device)[:, None]
        if (temperature_R == temperature_R[0]).all() and not greedy_R[0]:
            logprobs_RV = self._model.next_logprobs(hidden_RD, temperature=float(temperature_R[0]))
        else:
            divisor_R = np.where(greedy_R, np.float32(1.0), temperature_R)
            logprobs_RV = self._model.next_logprobs(
                hidden_RD, temperature=torch.tensor(divisor_R, device=hidden_RD.device)[:, None]
            )
        tokens_R = draw_tokens(logprobs_RV, uniforms_R1)
        logprobs_R = logprobs_RV.gather(-1, tokens_R[:, None])[:, 0]
        if greedy_R.any():
            is_greedy_R = torch.tensor(greedy_R, device=hidden_RD.device)
            tokens_R = torch.where(is_greedy_R, logprobs_RV.argmax(dim=-1), tokens_R)
            logprobs_R = logprobs_R.masked_fill(is_greedy_R, 0.0)
        logprobs = logprobs_R.cpu().numpy()
        if not np.isfinite(logprobs).all():
            raise RecordError(
                "The policy's output is no distribution over tokens",
                why="its activations are not finite: the update diverged",
                fix="lower the learning rate and start from an earlier checkpoint",
            )
        return tokens_R.cpu().numpy().tolist(), logprobs.tolist()

    def _append(self, tokens: list[int], logprobs: list[float]) -> GenerationStep:
        self._last_N[: len(tokens)] = tokens
        stepped = GenerationStep([row.row_id for row in self._live], tokens, logprobs, {})
        ended: list[int] = []
        for slot, (row, token) in enumerate(zip(self._live, tokens, strict=True)):
            row.written.append(token)
            if token in row.new.stop_ids:
                stepped.ended[row.row_id] = "stop"
            elif len(row.written) == row.new.max_new_tokens:
                stepped.ended[row.row_id] = "length"
            else:
                continue
            ended.append(slot)
            del self._rows[row.row_id]
        if ended:
            self._drop(ended)
        return stepped

    def _drop(self, slots: list[int]) -> None:
        for source, target in self._slots.drop(slots):
            row = self._live[target] = self._live[source]
            row.slot = target
            for of_slot in (self._last_N, self._temperature_N, self._seed_N):
                of_slot[target] = of_slot[source]
        del self._live[self._slots.num_rows :]
