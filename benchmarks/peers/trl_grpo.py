"""The peer of the bench ``trl``: TRL's GRPOTrainer on the same model, prompts, rewards, adapters and tokens.

Runs in an environment of its own (``make trl``), with this project's sources on its path for the task and its verifier.
Reads a ``PeerSetting`` as JSON from its first argument; writes one ``PeerStep`` a line to the file that names.
"""

import importlib
import sys
import time
from pathlib import Path
from typing import Any

import msgspec
import torch
from transformers import TrainerCallback

from benchmarks.completion_counts import equal_share
from benchmarks.trl_search import TrlChoice
from tidegate.environment.tasks.port import Problem, TextTask
from tidegate.environment.tasks.registry import get_task


class PeerSetting(msgspec.Struct, frozen=True):
    """What both sides share. ``folder``: the model's; ``threads``: of one torch operation.

    ``choice``: see ``trl_search.TrlChoice``.
    """

    folder: str
    task: str
    seed: int
    steps: int
    num_prompts: int
    num_samples: int
    max_new_tokens: int
    temperature: float
    learning_rate: float
    lora_rank: int
    lora_alpha: float
    clip: float
    beta1: float
    beta2: float
    max_grad_norm: float
    threads: int
    output: str
    choice: TrlChoice


class PeerStep(msgspec.Struct, frozen=True):
    """One update: when it ended (seconds since the epoch), its batch's mean reward and tokens, CPU-seconds so far.

    ``samples`` and ``metrics`` as in the learner's ``steps.jsonl``.
    """

    step: int
    at_s: float
    mean_reward: float
    tokens: int
    cpu_s: float
    samples: int
    metrics: dict[str, float]


class Recorder:
    """The reward function, which sees every completion; and the lines of the updates."""

    def __init__(self, setting: PeerSetting) -> None:
        """Nothing was generated yet."""
        self._task = task_of(setting)
        self._group_size = setting.num_samples
        self._file = Path(setting.output).open("ab")  # noqa: SIM115 (closed with the process that it is for)
        self.rewards: list[float] = []
        self.tokens = 0
        # What trl logs the function as.
        self.__name__ = "verifier"

    def __call__(
        self, completions: list[Any], completion_ids: list[list[int]], **columns: Any
    ) -> list[float]:
        """Rewards of a batch, in order."""
        rewards: list[float] = []
        for completion, prompt_id, answer in zip(
            completions, columns["prompt_id"], columns["answer"], strict=True
        ):
            problem = Problem(prompt_id=prompt_id, prompt="", answer=answer, bin="all")
            rewards.append(self._task.score(problem, completion[0]["content"]).reward)
        self.rewards = rewards
        self.tokens = sum(len(ids) for ids in completion_ids)
        return rewards

    def write(self, step: int) -> None:
        """An update ended."""
        mean_reward = sum(self.rewards) / max(1, len(self.rewards))
        equal = equal_share(self.rewards, group_size=self._group_size)
        line = PeerStep(
            step=step,
            at_s=time.time(),
            mean_reward=mean_reward,
            tokens=self.tokens,
            cpu_s=time.process_time(),
            samples=len(self.rewards),
            metrics={"zero_signal_fraction": equal},
        )
        self._file.write(msgspec.json.encode(line) + b"\n")
        self._file.flush()


def task_of(setting: PeerSetting) -> TextTask:
    """The platform's task of this name, or a class of one's own as ``file.py:Class``."""
    if ":" not in setting.task:
        return get_task(setting.task)
    path, name = setting.task.split(":")
    return getattr(importlib.import_module(path.removesuffix(".py").replace("/", ".")), name)()


def _untyped(name: str) -> Any:
    return importlib.import_module(name)


def main() -> None:
    """Train, and print one line per update."""
    setting = msgspec.json.decode(sys.argv[1], type=PeerSetting)
    choice = setting.choice
    batch_size = setting.num_prompts * setting.num_samples
    torch.set_num_threads(setting.threads)
    recorder = Recorder(setting)
    recorder.write(0)

    class Lines(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            del args, control
            recorder.write(state.global_step)

    # Untyped, or not in this project's own environment.
    trl, datasets, peft, transformers = (
        _untyped(name) for name in ("trl", "datasets", "peft", "transformers")
    )
    model = transformers.AutoModelForCausalLM.from_pretrained(
        setting.folder, dtype=getattr(torch, choice.dtype), attn_implementation=choice.attention
    )
    rows = [
        {"prompt": msgspec.json.decode(each.prompt), "prompt_id": each.prompt_id, "answer": each.answer}
        for each in task_of(setting).problems("train", seed=setting.seed)
    ]
    config = trl.GRPOConfig(
        output_dir=str(Path(setting.output).parent / "trl"),
        use_cpu=True,
        bf16=False,
        seed=setting.seed,
        max_steps=setting.steps,
        per_device_train_batch_size=choice.micro_batch,
        gradient_accumulation_steps=batch_size // choice.micro_batch,
        torch_compile=choice.compiled,
        use_transformers_continuous_batching=choice.paged,
        num_generations=setting.num_samples,
        max_completion_length=setting.max_new_tokens,
        temperature=setting.temperature,
        learning_rate=setting.learning_rate,
        lr_scheduler_type="constant",
        adam_beta1=setting.beta1,
        adam_beta2=setting.beta2,
        max_grad_norm=setting.max_grad_norm,
        epsilon=setting.clip,
        beta=0.0,
        loss_type="dapo",
        gradient_checkpointing=False,
        save_strategy="no",
        report_to="none",
        logging_steps=1_000_000,
    )
    trainer = trl.GRPOTrainer(
        model=model,
        processing_class=transformers.AutoTokenizer.from_pretrained(setting.folder),
        reward_funcs=recorder,
        args=config,
        train_dataset=datasets.Dataset.from_list(rows),
        peft_config=peft.LoraConfig(
            r=setting.lora_rank,
            lora_alpha=setting.lora_alpha,
            target_modules="all-linear",
            lora_dropout=0.0,
            task_type="CAUSAL_LM",
        ),
        callbacks=[Lines()],
    )
    trainer.train()


if __name__ == "__main__":
    main()
