"""The plan's memory of an update against the PSS of a process that makes one (docs/gpu.md)."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tidegate.core.sizing.learner import PROCESS_BYTES, Training, learner_memory
from tidegate.core.sizing.shapes import shape_of_config

pytestmark = [pytest.mark.integration, pytest.mark.extended]

PROGRAM = Path(__file__).parent / "update_memory.py"
CONFIG = {
    "hidden_size": 768,
    "intermediate_size": 2048,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "num_key_value_heads": 4,
    "vocab_size": 32_000,
    "tie_word_embeddings": True,
}
PROMPT, COMPLETION, SAMPLES = 64, 256, 4
# A hang is the failure; nothing is timed.
TIMEOUT_S = 1500.0


@pytest.mark.timeout(3600)
@pytest.mark.parametrize(("dtype", "width_bytes"), [("float32", 4), ("bfloat16", 2)])
def test_plan_of_an_update_is_within_a_tenth_of_the_memory_of_a_process_that_makes_it(
    tmp_path: Path, dtype: str, width_bytes: int
) -> None:
    command = [sys.executable, str(PROGRAM), str(tmp_path / "model"), json.dumps(CONFIG), dtype]
    command += [str(number) for number in (1, SAMPLES, PROMPT, COMPLETION)]
    # Made by a process of its own, so that its memory is not in the one that is measured.
    for _ in ("make", "measure"):
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=TIMEOUT_S)
        assert done.returncode == 0, done.stderr[-2000:]
    measured = json.loads(done.stdout)["peak_bytes"]
    shape = shape_of_config({"model_type": "llama", **CONFIG}, name="small")
    training = Training(
        shape,
        length=PROMPT + COMPLETION,
        width_bytes=width_bytes,
        pass_tokens=PROMPT + SAMPLES * COMPLETION,
    )
    planned = learner_memory(training, reserve_bytes=PROCESS_BYTES).total
    assert planned == pytest.approx(measured, rel=0.1)
