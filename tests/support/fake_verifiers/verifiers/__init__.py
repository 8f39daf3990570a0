"""What Tidegate calls of `verifiers` 0.1.14 and 0.2, for processes of tests in which it is not installed."""

import importlib
from typing import Any


def load_environment(env_id: str, **env_args: Any) -> Any:
    module = env_id.replace("-", "_").split("/")[-1]
    try:
        return importlib.import_module(module).load_environment(**env_args)
    except ImportError as error:
        raise ValueError(f"Could not import {env_id!r}") from error


class SingleTurnEnv:
    """One call of the model, and the functions of a rubric with their weights on its reply."""

    requires_group_rollouts = False

    def __init__(self, dataset: list[dict[str, Any]], rubric: "Rubric", eval_dataset: Any = None) -> None:
        self.dataset, self.eval_dataset, self.rubric = dataset, eval_dataset, rubric
        self.sampling_args: dict[str, Any] = {"n": 1, "extra_body": {}}

    def build_dataset(self) -> Any:
        return self.dataset

    def build_eval_dataset(self) -> Any:
        return self.eval_dataset

    async def run_rollout(
        self, row: dict[str, Any], client: Any, model: str, sampling_args: dict[str, Any]
    ) -> dict[str, Any]:
        answer = await client.caller.chat.completions.create(
            model=model, messages=row["prompt"], **sampling_args
        )
        completion = [{"role": "assistant", "content": answer.choices[0].message.content}]
        scores = {
            function.__name__: function(completion=completion, answer=row.get("answer", ""))
            for function in self.rubric.funcs
        }
        reward = sum(map(float.__mul__, self.rubric.weights, scores.values()))
        return {"reward": reward, "metrics": scores, "error": None, "stop_condition": "max_turns_reached"}


class Rubric:
    def __init__(self, funcs: list[Any], weights: list[float]) -> None:
        self.funcs, self.weights = funcs, weights
