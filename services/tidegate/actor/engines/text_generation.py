"""Language models in process: the groups of several prompts in one batch, with a cache of keys and values.

Between two tokens the engine checks for a newer policy. It then loads it and recomputes the cache, so that each
token's logprob is exactly the one its recorded version gives it (I5); for models small enough to run in process this
costs less than one token.
"""

from collections import defaultdict
from collections.abc import Sequence

import numpy as np
import torch

from tidegate.actor.engines.port import Completed, EngineControl, Rollouts, Sample
from tidegate.actor.engines.refusals import check_sampler
from tidegate.actor.engines.registry import EngineSetting
from tidegate.actor.engines.version_marks import VersionMarks
from tidegate.core.cut_off import as_judged
from tidegate.core.errors import RecordError, UnavailableError
from tidegate.core.ids import PolicyVersion, TaskId
from tidegate.core.records import PolicySnapshot, Sampler, Task
from tidegate.models.char_lm import CharLm, CharLmSpec
from tidegate.models.char_tokenizer import decode, encode_prompt
from tidegate.models.finite import check_finite
from tidegate.models.sampling import Generation, SampledCompletion
from tidegate.runtime.clock import Clock

# A group is one message and one batch; the run file allows fewer.
NUM_SAMPLES_MAX = 4096


class TextGenerationEngine:
    """Runs ``group`` tasks, and answers the prompts of evaluations."""

    def __init__(self, setting: EngineSetting, control: EngineControl, clock: Clock) -> None:
        torch.set_num_threads(setting.threads)
        policy = setting.policy
        self._spec = CharLmSpec(
            d_model=policy.d_model,
            num_layers=policy.num_layers,
            num_heads=policy.num_heads,
            context_length=policy.context_length,
            value_head=policy.value_head,
        )
        self._model = CharLm(self._spec)
        self._envs = tuple(setting.workload.weights())
        self._evaluation_batch = setting.evaluation_batch
        self._control = control
        self._clock = clock
        # The clock's part prevents a restarted actor from drawing the same completions again.
        seeds = np.random.SeedSequence([setting.seed, setting.actor_index, int(clock.now_s() * 1e3)])
        self._generator = torch.Generator().manual_seed(int(seeds.generate_state(1, np.uint64)[0] >> 1))

    def check_policy(self, snapshot: PolicySnapshot) -> None:
        """Check that the tensors are this model's parameters, and finite.

        Raises:
            RecordError: a name, shape or dtype does not fit, or a value is not finite.
        """
        self._model.check_arrays(snapshot.tensors)
        check_finite(snapshot)

    def check_task(self, task: Task) -> None:
        """Check that the prompt can be encoded and a learner can recompute the sampler's logprobs.

        Raises:
            RecordError: it cannot; the message names the field and the reason.
        """
        name = f"Task {task.task_id}"
        if task.kind != "group" or task.env_id not in self._envs:
            raise RecordError(
                f"{name} is a {task.kind} of {task.env_id!r}",
                why=f"this actor answers {', '.join(map(repr, self._envs))}",
            )
        check_sampler(task.sampler, name=name)
        if task.sampler.temperature == 0.0:
            raise RecordError(
                f"{name} is sampled at temperature 0", why="greedy completions have no logprob to train on"
            )
        if not 0 < task.num_samples <= NUM_SAMPLES_MAX:
            raise RecordError(
                f"{name} asks for {task.num_samples} samples", fix=f"ask for 1 to {NUM_SAMPLES_MAX}"
            )
        num_tokens = len(encode_prompt(task.prompt)) + task.sampler.max_new_tokens
        if num_tokens > self._spec.context_length:
            raise RecordError(
                f"{name} needs {num_tokens} tokens, and the context holds {self._spec.context_length}",
                fix="raise policy.context_length, or lower workload.sampler.max_new_tokens",
            )

    def generate(self, tasks: Sequence[Task]) -> list[Rollouts]:
        """Each task's group; tasks that sample alike share a batch."""
        batches: dict[tuple[int, Sampler], list[Task]] = defaultdict(list)
        for task in tasks:
            batches[task.num_samples, task.sampler].append(task)
        return [rollouts for batch in batches.values() for rollouts in self._generate_batch(batch)]

    def _generate_batch(self, tasks: list[Task]) -> list[Rollouts]:
        started_at_s = self._clock.now_s()
        num_samples, sampler = tasks[0].num_samples, tasks[0].sampler
        control = self._control
        version = self._serve_newest()
        marks = VersionMarks(version)
        prompts = [encode_prompt(task.prompt) for task in tasks]
        generation = self._open(prompts, sampler, num_samples=num_samples)
        control.begins(tasks, version, now_s=started_at_s)
        cut: frozenset[TaskId] = frozenset()
        while not generation.done:
            if control.stop:
                control.ends()
                return []
            if control.cut is not cut:
                cut = control.cut
                for index, task in enumerate(tasks):
                    if task.task_id in cut:
                        generation.stop_prompt(index)
                continue
            if control.newest is not control.serving:
                marks.swap(generation.num_steps, self._serve_newest())
                generation.refresh_cache()
            generation.step()
            control.position = generation.num_steps
        control.ends()
        completions = generation.completions()
        finished_at_s = self._clock.now_s()
        return [
            Rollouts(
                task=task,
                samples=tuple(
                    _sample(prompt, completion, marks)
                    for completion in completions[index * num_samples : (index + 1) * num_samples]
                ),
                started_at_s=started_at_s,
                finished_at_s=finished_at_s,
            )
            for index, (task, prompt) in enumerate(zip(tasks, prompts, strict=True))
            if task.task_id not in cut
        ]

    def complete(self, prompts: Sequence[str], sampler: Sampler) -> Completed:
        """Answer each prompt once, all of them under the newest policy as of now.

        Raises:
            RecordError: a prompt cannot be read.
            UnavailableError: the actor is draining; another actor will answer.
        """
        check_sampler(sampler, name="The evaluation")
        version = self._serve_newest()
        texts: list[str] = []
        num_tokens = 0
        for start in range(0, len(prompts), self._evaluation_batch):
            batch = [encode_prompt(prompt) for prompt in prompts[start : start + self._evaluation_batch]]
            generation = self._open(batch, sampler, num_samples=1)
            while not generation.done:
                if self._control.stop:
                    raise UnavailableError("The actor is draining", fix="another actor takes the evaluation")
                generation.step()
            for completion in generation.completions():
                texts.append(as_judged(decode(completion.tokens), finish_reason=completion.finish_reason))
                num_tokens += len(completion.tokens)
        return Completed(version=version, completions=texts, num_tokens=num_tokens)

    def close(self) -> None:
        """Nothing to release except memory."""

    def _open(self, prompts: Sequence[Sequence[int]], sampler: Sampler, *, num_samples: int) -> Generation:
        return Generation(
            self._model,
            prompts,
            num_samples=num_samples,
            max_new_tokens=sampler.max_new_tokens,
            temperature=sampler.temperature,
            generator=self._generator,
        )

    def _serve_newest(self) -> PolicyVersion:
        """Load the newest policy unless it is loaded; the version that acts from here on."""
        newest = self._control.newest
        assert newest is not None, "tasks start once there is a policy"
        if newest is not self._control.serving:
            started_at_s = self._clock.monotonic_s()
            self._model.load_arrays(newest.tensors)
            self._control.swapped(newest, seconds=self._clock.monotonic_s() - started_at_s)
        return newest.version


def _sample(prompt: list[int], completion: SampledCompletion, marks: VersionMarks) -> Sample:
    return Sample(
        tensors={
            "prompt_tokens": np.array(prompt, dtype=np.int32),
            "tokens": completion.tokens,
            "behavior_logprobs": completion.behavior_logprobs,
        },
        spans=marks.spans(len(completion.tokens)),
        num_steps=len(completion.tokens),
        completion=decode(completion.tokens),
        finish_reason=completion.finish_reason,
    )


def open_engine(setting: EngineSetting, control: EngineControl, clock: Clock) -> TextGenerationEngine:
    """Open the engine for the registry."""
    return TextGenerationEngine(setting, control, clock)
