"""What Tidegate calls of `verifiers` 0.1.14 and 0.2, for processes of tests in which it is not installed."""

import importlib
import inspect
from typing import Any

# A function of a rubric that takes one of these compares the episodes of a group.
OF_GROUPS = {"states", "prompts", "completions", "answers"}


def load_environment(env_id: str, **env_args: Any) -> Any:
    module = env_id.replace("-", "_").split("/")[-1]
    try:
        return importlib.import_module(module).load_environment(**env_args)
    except ImportError as error:
        raise ValueError(f"Could not import {env_id!r}") from error


class SingleTurnEnv:
    """One call of the model, and the functions of a rubric with their weights on its reply."""

    def __init__(self, dataset: list[dict[str, Any]], rubric: "Rubric", eval_dataset: Any = None) -> None:
        self.dataset, self.eval_dataset, self.rubric = dataset, eval_dataset, rubric
        self.sampling_args: dict[str, Any] = {"n": 1, "extra_body": {}}

    @property
    def requires_group_rollouts(self) -> bool:
        return any(map(_is_of_groups, self.rubric.funcs))

    def build_dataset(self) -> Any:
        return self.dataset

    def build_eval_dataset(self) -> Any:
        return self.eval_dataset

    async def rollout(
        self, row: dict[str, Any], client: Any, model: str, sampling_args: dict[str, Any]
    ) -> dict[str, Any]:
        answer = await client.caller.chat.completions.create(
            model=model, messages=row["prompt"], **sampling_args
        )
        reply = answer.choices[0].message.content
        if reply == "break":
            raise RuntimeError("the environment broke")
        completion = [{"role": "assistant", "content": reply}]
        error = "ToolError: no server" if reply == "error" else None
        return {**row, "completion": completion, "error": error, "stop_condition": "max_turns_reached"}

    async def run_rollout(
        self, row: dict[str, Any], client: Any, model: str, sampling_args: dict[str, Any]
    ) -> dict[str, Any]:
        state = await self.rollout(row, client, model, sampling_args)
        assert not self.requires_group_rollouts, "a group is scored together"
        await self.rubric.score_group([state])
        return state


class Rubric:
    def __init__(self, funcs: list[Any], weights: list[float]) -> None:
        self.funcs, self.weights = funcs, weights
        self.cleaned: list[Any] = []

    async def score_group(self, states: list[dict[str, Any]]) -> None:
        for state in states:
            state |= {"reward": 0.0, "metrics": {}}
        answers = [state.get("answer", "") for state in states]
        completions = [state["completion"] for state in states]
        for function, weight in zip(self.funcs, self.weights, strict=True):
            if _is_of_groups(function):
                scores = function(states=states, completions=completions, answers=answers)
            else:
                scores = [
                    function(completion=completion, answer=answer)
                    for completion, answer in zip(completions, answers, strict=True)
                ]
            for state, score in zip(states, scores, strict=True):
                state["reward"] += weight * score
                state["metrics"][function.__name__] = score

    async def cleanup(self, state: dict[str, Any]) -> None:
        self.cleaned.append(state)


def _is_of_groups(function: Any) -> bool:
    return bool(OF_GROUPS & inspect.signature(function).parameters.keys())
