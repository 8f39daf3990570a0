"""Answers of a language model to problems, by the model and the generation that actors use, in this process."""

from collections.abc import Sequence

import torch

from tidegate.cli.evaluate.asked import SLOTS, Asked, OnProgress
from tidegate.core.cut_off import as_judged
from tidegate.launch.stored_policy import StoredPolicy
from tidegate.models.continuous import ContinuousBatch, GenerationRow
from tidegate.models.language_models import open_language_model, open_tokenizer

TOKENS_PER_PASS = 4096
CACHE_BYTES_MAX = 2 << 30


class Answering:
    """A version of a run, opened once for any number of questions."""

    def __init__(self, stored: StoredPolicy) -> None:
        """Open the model.

        Raises:
            ConfigError: it cannot be opened.
            RecordError: the tensors are not of the run file's model.
        """
        self._model = open_language_model(stored.file.policy, trains=False, device=torch.device("cpu"))
        self._model.load_arrays(stored.tensors)
        self._tokenizer = open_tokenizer(stored.file.policy)
        self._max_new_tokens = stored.file.workload.sampler.max_new_tokens

    def answers(self, asked: Sequence[Asked], *, on_progress: OnProgress) -> list[str]:
        """The answers in order, as verifiers read them; the same seeds give the same answers.

        Raises:
            RecordError: a prompt cannot be encoded, or does not fit into the context with its answer.
        """
        rows = [
            GenerationRow(
                context=tuple(self._tokenizer.encode_prompt(each.problem.prompt)),
                max_new_tokens=self._max_new_tokens,
                temperature=each.temperature,
                stop_ids=self._tokenizer.stop_ids,
                seed=each.seed,
            )
            for each in asked
        ]
        batch = ContinuousBatch(
            self._model,
            slots=SLOTS,
            waiting_max=len(rows),
            tokens_per_pass=TOKENS_PER_PASS,
            cache_bytes_max=CACHE_BYTES_MAX,
        )
        written: dict[int, list[int]] = {row_id: [] for row_id in batch.add(rows)}
        reasons: dict[int, str] = {}
        while batch.num_rows:
            step = batch.step()
            for row_id, token in zip(step.rows, step.tokens, strict=True):
                written[row_id].append(token)
            reasons |= step.ended
            on_progress(len(step.ended))
        return [
            as_judged(self._tokenizer.decode(tokens), finish_reason=reasons[row_id])
            for row_id, tokens in written.items()
        ]
