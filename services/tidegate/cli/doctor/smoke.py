"""``tidegate doctor --smoke``: a short run with a model made from nothing, which is killed, paused and audited."""

import importlib.util
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import yaml

from tidegate.cli.doctor.smoke_run import run_smoke
from tidegate.core.doctor import GpuFacts, MachineFinding
from tidegate.core.sizing.accelerators import accelerator_of
from tidegate.core.sizing.learner import Training
from tidegate.core.sizing.shapes import SHAPES, ModelShape
from tidegate.core.smoke import NumberFacts, SmokeFacts, smoke_findings

# What makes a model and trains it.
PACKAGES = ("torch", "transformers")
VERSIONS = 20
# So that ranks meet, share gradients and lose one another here as well.
RANKS_ON_CPU = 2
NUM_PROMPTS = 64
NUM_SAMPLES = 8
BATCH_SIZE = 64
# Of a GPU that learner and server share; the learner of the largest size needs 10 GB.
SERVER_SHARE = 0.4
# Every answer is right or wrong by a coin, so that every group has a gradient.
REWARD = '''"""The parity of a completion's characters: a random model gets half of the rewards."""


def score(prompt: str, completion: str, answer: str) -> float:
    """1 for an odd sum of code points, else 0."""
    return float(sum(map(ord, completion)) % 2)
'''


class SmokeSize(msgspec.Struct, frozen=True):
    """A model, and the length of its completions in tokens."""

    shape: ModelShape
    num_tokens: int
    context_length: int


SIZES = {
    "0.5b": SmokeSize(SHAPES["0.5b"], num_tokens=256, context_length=512),
    "tiny": SmokeSize(
        ModelShape(
            name="tiny",
            width=64,
            num_layers=2,
            num_heads=4,
            num_kv_heads=2,
            head_dim=16,
            mlp_width=128,
            vocabulary_size=512,
            tied=True,
        ),
        num_tokens=16,
        context_length=64,
    ),
}


def examine_smoke(
    gpus: GpuFacts, *, size_name: str, keep: bool, say: Callable[[str], None]
) -> list[MachineFinding]:
    """Make the model, compare the devices, run, and conclude; the folder is removed unless it is kept."""
    missing = [name for name in PACKAGES if importlib.util.find_spec(name) is None]
    if missing:
        found = f"{' and '.join(missing)} cannot be imported"
        return [MachineFinding("smoke run", "fail", found, "pip install 'tidegate[train,llm]'")]
    size = SIZES[size_name]
    root = Path(tempfile.mkdtemp(prefix="tidegate-smoke-"))
    try:
        started_s = time.monotonic()
        _write_model(root / "model", size)
        say(
            f"a model of {size.shape.parameters:,} parameters written in {time.monotonic() - started_s:.0f} s"
        )
        numbers = _compare(root / "model", size, on_gpu=bool(gpus.devices))
        ranks = len(gpus.devices) or RANKS_ON_CPU
        engine = "vllm" if importlib.util.find_spec("vllm") is not None else "torch"
        run_file = _write_run(root, size, engine=engine, ranks=ranks, on_gpu=bool(gpus.devices))
        wanted = SmokeFacts(engine=engine, ranks=ranks, wanted=VERSIONS)
        facts = run_smoke(run_file, root / "run", wanted, say)
    finally:
        if keep:
            say(f"kept: {root}")
        else:
            shutil.rmtree(root, ignore_errors=True)
    device = gpus.devices[0] if gpus.devices else None
    gpu = None if device is None else accelerator_of(device.name, device.total_bytes)
    training = Training(size.shape, length=size.context_length, ranks=ranks)
    return smoke_findings(numbers, facts, training, gpu)


def _write_model(folder: Path, size: SmokeSize) -> None:
    from tidegate.models.random_model import write_random_model

    write_random_model(folder, size.shape, seed=0, context_length=size.context_length)


def _compare(model: Path, size: SmokeSize, *, on_gpu: bool) -> NumberFacts:
    if not on_gpu:
        return NumberFacts()
    import torch

    from tidegate.models.device_numbers import logprob_error

    lengths = {"context_length": size.context_length, "num_tokens": size.num_tokens // 2}
    try:
        facts = NumberFacts(
            device="cuda",
            float32_error=logprob_error(model, torch.device("cuda"), dtype="float32", **lengths),
            bfloat16_error=logprob_error(model, torch.device("cuda"), dtype="bfloat16", **lengths),
        )
        torch.cuda.empty_cache()  # the run needs the memory
    except RuntimeError as error:
        return NumberFacts(device="cuda", problem=f"{type(error).__name__}: {str(error)[:300]}")
    return facts


def _write_run(root: Path, size: SmokeSize, *, engine: str, ranks: int, on_gpu: bool) -> Path:
    """The run file, with its prompts and its reward beside it."""
    prompts = [
        {"prompt": f"{number}:", "answer": "1", "prompt_id": str(number)} for number in range(NUM_PROMPTS)
    ]
    (root / "problems.jsonl").write_bytes(b"".join(msgspec.json.encode(each) + b"\n" for each in prompts))
    (root / "parity.py").write_text(REWARD, encoding="utf-8")
    path = root / "smoke.yaml"
    path.write_text(
        yaml.safe_dump(run_of(root / "model", size, engine=engine, ranks=ranks, on_gpu=on_gpu)),
        encoding="utf-8",
    )
    return path


def run_of(model: Path, size: SmokeSize, *, engine: str, ranks: int, on_gpu: bool) -> dict[str, Any]:
    """The run file's content: GRPO with asynchronous updates, checkpoints in between, and no evaluation."""
    share = [f"--gpu-memory-utilization={SERVER_SHARE}"] if on_gpu else []
    server = {"python": sys.executable, "arguments": ["--enforce-eager", *share]}
    return {
        "run": "smoke",
        "workload": {
            "kind": "text",
            "dataset": {"path": "problems.jsonl", "held_out_share": 0.0},
            "reward": "parity.py:score",
            "num_samples": NUM_SAMPLES,
            "sampler": {"temperature": 1.0, "max_new_tokens": size.num_tokens},
        },
        "policy": {
            "kind": "transformers",
            "path": str(model),
            "dtype": "bfloat16",
            "context_length": size.context_length,
        },
        "batch_size": BATCH_SIZE,
        "staleness": {"max_lag": 1},
        "actor": {
            "replicas": 1,
            "engine": engine,
            "slots": BATCH_SIZE,
            **({"server": server} if engine == "vllm" else {}),
        },
        "learner": {
            "ranks": ranks,
            "checkpoint_every_steps": 5,
            # So that one before the last updates is there, with their batches: one rank computes one of them again.
            "keep_checkpoints": 4,
            "language_model": {"objective": "tis", "minibatches": 1, "warmup_versions": 0},
        },
    }
