"""An environment as its author publishes it for `verifiers`, whose rubric compares the episodes of a group.

``hold``: a file; while it exists nothing is scored, and the process that would is noted in a file beside it. ``alone``:
each episode has its own verdict.
"""

import importlib
import os
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any

# By name, because neither is in the environment that the types are checked in.
vf: Any = importlib.import_module("verifiers")


def exact(completion: Any, answer: str, **_: Any) -> float:
    return 1.0 if completion[-1]["content"] == answer else 0.0


def longest(completions: Any, **_: Any) -> list[float]:
    """The longest of the group is the best one."""
    lengths = [len(completion[-1]["content"]) for completion in completions]
    return [1.0 if length == max(lengths) else 0.0 for length in lengths]


def compared(states: Any, **_: Any) -> list[float]:
    """With how many it was compared, itself included."""
    return [float(len(states)) for _ in states]


class Silent(vf.SingleTurnEnv):
    """Plays its episodes with a model of its own."""

    async def rollout(self, input: Any, *_: Any, **__: Any) -> Any:
        reply = [{"role": "assistant", "content": "mine"}]
        return {**input, "completion": reply, "error": None, "stop_condition": "done"}


def load_environment(num_rows: int = 40, hold: str = "", silent: bool = False, alone: bool = False) -> Any:
    rows = [
        {
            "prompt": [{"role": "user", "content": f"say {number}"}],
            "answer": str(number),
            "example_id": number,
        }
        for number in range(num_rows)
    ]

    def wait() -> None:
        if hold and Path(hold).exists():
            with Path(f"{hold}.pids").open("a") as pids:
                pids.write(f"{os.getpid()}\n")
            while Path(hold).exists():
                time.sleep(0.02)

    def waits(completions: Any, **_: Any) -> list[float]:
        wait()
        return [0.0 for _ in completions]

    def waits_alone(completion: Any, **_: Any) -> float:
        wait()
        return 0.0 * len(completion)

    rubric = vf.Rubric(funcs=[exact, longest, compared, waits], weights=[1.0, 2.0, 0.0, 0.0])
    if alone:
        rubric = vf.Rubric(funcs=[exact, waits_alone], weights=[1.0, 0.0])
    return (Silent if silent else vf.SingleTurnEnv)(dataset=_dataset(rows), rubric=rubric)


def _dataset(rows: list[dict[str, Any]]) -> Any:
    """The library's own data type where it is installed."""
    if find_spec("datasets") is None:
        return rows
    datasets: Any = importlib.import_module("datasets")
    return datasets.Dataset.from_list(rows)
