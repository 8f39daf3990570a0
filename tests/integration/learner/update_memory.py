"""Memory of two updates of a language model made from nothing, as a process of its own: prints JSON.

Arguments: a folder for the model, its config as JSON, policy.dtype, prompts, samples of each, and the tokens of a
prompt and of a completion.
"""

import json
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from tidegate.algorithms.grpo_settings import GrpoSettings
from tidegate.learner.optim.language_model import LanguageModelTrainer
from tidegate.learner.optim.scored_completions import ScoredCompletions
from tidegate.models.completion_batch import pack_completions
from tidegate.models.transformers_lm import TransformersLm, TransformersLmSpec

CONTEXT_LENGTH = 4096
SAMPLE_PERIOD_S = 0.02


def pss_bytes() -> int:
    """Memory of this process, of pages that it shares its part."""
    lines = Path("/proc/self/smaps_rollup").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:"))


class Peak:
    """The largest PSS since it was made, sampled by a thread."""

    def __init__(self) -> None:
        self.bytes = 0
        threading.Thread(target=self._watch, daemon=True).start()

    def _watch(self) -> None:
        while True:
            self.bytes = max(self.bytes, pss_bytes())
            time.sleep(SAMPLE_PERIOD_S)


def batch_of(
    vocabulary_size: int, *, groups: int, samples: int, prompt: int, completion: int
) -> ScoredCompletions:
    """Random texts, of which every second one is rewarded."""
    rng = np.random.default_rng(0)
    rows = groups * samples
    completions = pack_completions(
        [rng.integers(0, vocabulary_size, prompt) for _ in range(groups)],
        [rng.integers(0, vocabulary_size, completion) for _ in range(rows)],
        group_index=[row // samples for row in range(rows)],
        vocabulary_size=vocabulary_size,
    )
    return ScoredCompletions(
        completions=completions,
        behavior_logprobs_BT=torch.full(completions.tokens_BT.shape, -9.0),
        steps_BT=torch.zeros(completions.tokens_BT.shape, dtype=torch.int64),
        rewards_B=torch.arange(rows, dtype=torch.float32) % 2,
        temperature=1.0,
    )


def main() -> None:
    """Make the model, update twice, and print the peak of the second update, when gradients exist from the start."""
    folder, config, dtype = Path(sys.argv[1]), json.loads(sys.argv[2]), sys.argv[3]
    groups, samples, prompt, completion = map(int, sys.argv[4:8])
    torch.set_num_threads(1)
    if not folder.exists():
        made: Any = LlamaForCausalLM(LlamaConfig(max_position_embeddings=CONTEXT_LENGTH, **config))
        made.save_pretrained(folder)
        del made
        return
    spec = TransformersLmSpec(folder=str(folder), context_length=CONTEXT_LENGTH, dtype=dtype)  # pyright: ignore[reportArgumentType] (a word of the command line)
    model = TransformersLm(spec, trains=True)
    device = torch.device("cpu")
    trainer = LanguageModelTrainer(
        model, GrpoSettings(minibatches=1), seed=0, device=device, pass_tokens=1 << 30
    )
    batch = batch_of(
        config["vocab_size"], groups=groups, samples=samples, prompt=prompt, completion=completion
    )
    trainer.update(batch, number=1)
    peak = Peak()
    trainer.update(batch, number=2)
    sys.stdout.write(json.dumps({"peak_bytes": peak.bytes}) + "\n")


if __name__ == "__main__":
    main()
