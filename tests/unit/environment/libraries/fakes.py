"""The library `verifiers` in the process of a test: what Tidegate calls of it, and one environment."""

import asyncio
from types import ModuleType
from typing import Any


class Library(ModuleType):
    """``verifiers`` with one environment, whose episodes end as ``says`` has it for the key of their address."""

    def __init__(self, **fields: Any) -> None:
        super().__init__("verifiers")
        self.requires_group_rollouts = True
        self.sampling_args: dict[str, Any] = {}
        self.rubric = self
        self.says: dict[str, Any] = {}
        self.train: Any = [{"prompt": "say"}]
        self.eval: Any = None
        self.seen: list[list[str]] = []
        self.cleaned: list[str] = []
        self.__dict__.update(fields)

    def load_environment(self, _env_id: str, **_arguments: Any) -> Any:
        return self

    def OpenAIChatCompletionsClient(self, caller: Any) -> Any:
        return caller

    def build_dataset(self) -> Any:
        return self.train

    def build_eval_dataset(self) -> Any:
        return self.eval

    async def run_rollout(self, row: dict[str, Any], client: Any, model: str, sampling: Any) -> Any:
        state = await self.rollout(row, client, model, sampling)
        return {**state, "reward": 1.0, "metrics": {}}

    async def rollout(self, row: dict[str, Any], client: Any, model: str, _sampling: Any) -> Any:
        said = self.says.get(client.api_key, "ok")
        if isinstance(said, BaseException):
            raise said
        if said == "hangs":
            await asyncio.Event().wait()
        return {**row, "model": model, "said": said, "key": client.api_key, "error": None}

    async def score_group(self, states: list[dict[str, Any]]) -> None:
        self.seen.append([state["key"] for state in states])
        for state in states:
            state |= {"reward": float(len(states)), "metrics": {"key": float(state["key"])}}
            if state["said"] == "error":
                state["error"] = ValueError("no server")

    async def cleanup(self, state: dict[str, Any]) -> None:
        self.cleaned.append(state["key"])
