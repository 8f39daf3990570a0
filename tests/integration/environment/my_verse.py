"""An environment as its author publishes it for `verifiers`: two rewards, of which one has the weight 0."""

import importlib
from importlib.util import find_spec
from typing import Any

# By name, because neither is in the environment that the types are checked in.
vf: Any = importlib.import_module("verifiers")


def exact(completion: Any, answer: str, **_: Any) -> float:
    reply = completion[-1]["content"]
    if reply == "raise":
        raise KeyError(reply)
    return 1.0 if reply == answer else 0.0


def length(completion: Any, **_: Any) -> float:
    return float(len(completion[-1]["content"]))


def load_environment(num_rows: int = 40) -> Any:
    rows = [
        {
            "prompt": [{"role": "user", "content": f"say {number}"}],
            "answer": str(number),
            "example_id": number,
        }
        for number in range(num_rows)
    ]
    rubric = vf.Rubric(funcs=[exact, length], weights=[1.0, 0.0])
    return vf.SingleTurnEnv(dataset=_dataset(rows), rubric=rubric)


def _dataset(rows: list[dict[str, Any]]) -> Any:
    """The library's own data type where it is installed."""
    if find_spec("datasets") is None:
        return rows
    datasets: Any = importlib.import_module("datasets")
    return datasets.Dataset.from_list(rows)
