"""The exported table: its columns with their meanings, and a terminal trajectory as a row.

Columns are only added at the end; ``FORMAT`` counts changes of their meaning. Times are seconds since the epoch.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import msgspec

from tidegate.core.conversations import CONVERSATIONS
from tidegate.core.records import Trajectory
from tidegate.trajectory_store.exporting import Ended

FORMAT = "1"


class Column(NamedTuple):
    """One column: its name, Arrow type as text (see ``arrow_type``), meaning, and its value of a trajectory."""

    name: str
    type: str
    meaning: str
    value: Callable[[Ended], Any]


def _recorded(name: str) -> Callable[[Ended], Any]:
    """A field of the record; null for a trajectory that never arrived."""
    return lambda ended: getattr(ended.record, name) if ended.record is not None else None


def _of_record(read: Callable[[Trajectory], Any]) -> Callable[[Ended], Any]:
    return lambda ended: read(ended.record) if ended.record is not None else None


def _own(name: str) -> Callable[[Ended], Any]:
    return lambda ended: getattr(ended, name)


def _tensor(name: str) -> Callable[[Ended], Any]:
    def read(ended: Ended) -> Any:
        tensor = ended.tensors.get(name) if ended.tensors is not None else None
        return tensor if tensor is not None and tensor.ndim == 1 else None

    return read


def _conversations(ended: Ended) -> list[dict[str, int]] | None:
    tensors = ended.tensors
    if tensors is None or CONVERSATIONS not in tensors:
        return None
    return [{"prompt_tokens": prompt, "tokens": tokens} for prompt, tokens in tensors[CONVERSATIONS].tolist()]


def _trained_at(ended: Ended) -> str | None:
    return str(ended.trained_at) if ended.trained_at is not None else None


def _trained_step(ended: Ended) -> int | None:
    return ended.trained_at.step if ended.trained_at is not None else None


def _update_step(ended: Ended) -> int | None:
    return ended.trained_at.step + 1 if ended.trained_at is not None else None


def _tensors_held(ended: Ended) -> bool:
    return ended.tensors is not None


def _components(record: Trajectory) -> list[tuple[str, float]]:
    return list(record.reward_components.items())


def _spans(record: Trajectory) -> list[dict[str, Any]]:
    return [
        {"lineage": span.version.lineage, "step": span.version.step, "start": span.start, "stop": span.stop}
        for span in record.spans
    ]


def _plain(name: str) -> Callable[[Ended], Any]:
    """A field of records inside of the record, as plain values."""
    return _of_record(lambda record: msgspec.to_builtins(getattr(record, name)))


COLUMNS: tuple[Column, ...] = (
    Column("trajectory_id", "text", "task and sample", _own("trajectory_id")),
    Column("task_id", "text", "", _recorded("task_id")),
    Column("group_id", "text", "the group of one prompt's samples", _own("group_id")),
    Column("group_size", "int32", "samples of the group", _own("group_size")),
    Column("prompt_id", "text", "", _recorded("prompt_id")),
    Column("curriculum_bin", "text", "", _own("curriculum_bin")),
    Column("env_id", "text", "", _recorded("env_id")),
    Column("actor_id", "text", "", _recorded("actor_id")),
    Column("attempt", "int32", "how often the task was delivered", _recorded("attempt")),
    Column("outcome", "text", "trained or dropped", _own("state")),
    Column("drop_reason", "text", "empty where trained", _own("reason")),
    Column("drop_detail", "text", "", _own("detail")),
    Column("reward", "float64", "", _own("reward")),
    Column(
        "reward_components",
        "map<float64>",
        "the reward's components",
        _of_record(_components),
    ),
    Column("verifier_log", "text", "", _recorded("verifier_log")),
    Column("mean_return", "float64", "of the episodes that ended in a segment", _own("mean_return")),
    Column("num_steps", "int64", "environment steps, or tokens that the policy chose", _own("num_steps")),
    Column("length_tokens", "int64", "", _own("length_tokens")),
    Column("finish_reason", "text", "", _recorded("finish_reason")),
    Column("prompt", "text", "a chat as JSON text", _recorded("prompt")),
    Column("answer", "text", "what the verifier was given", _recorded("answer")),
    Column("completion", "text", "", _recorded("completion")),
    Column("tool_calls", "list<tool_call>", "", _plain("tool_calls")),
    Column("sampler", "sampler", "how tokens were drawn", _plain("sampler")),
    Column("spans", "list<span>", "the version of each range of positions", _of_record(_spans)),
    Column("trained_at", "text", "lineage@step of the policy that its update began from", _trained_at),
    Column("trained_step", "int64", "the step alone; lag is this less the oldest span's", _trained_step),
    Column(
        "update_step", "int64", "of the version that its update made: `step` of steps.jsonl", _update_step
    ),
    Column("lag", "int32", "versions behind when trained", _own("lag")),
    Column("span", "int32", "newest less oldest version inside of it", _own("span")),
    Column("age_s", "float64", "seconds from its start to its update", _own("age_s")),
    Column("started_at_s", "float64", "", _own("started_at_s")),
    Column("finished_at_s", "float64", "", _own("finished_at_s")),
    Column("received_at_s", "float64", "by the store", _own("received_at_s")),
    Column("accepted_at_s", "float64", "into the ledger", _own("accepted_at_s")),
    Column("leased_at_s", "float64", "into a batch", _own("leased_at_s")),
    Column("terminal_at_s", "float64", "trained or dropped", _own("terminal_at_s")),
    Column("stages", "list<stage>", "stages with their worker, start and end", _plain("stages")),
    Column("trace_parent", "text", "W3C trace context", _recorded("trace_parent")),
)
TENSOR_COLUMNS: tuple[Column, ...] = (
    Column("tensors_held", "bool", "whether the store still kept them", _tensors_held),
    Column("prompt_tokens", "list<int32>", "of completions, as all below", _tensor("prompt_tokens")),
    Column("tokens", "list<int32>", "the policy's turns and the replies between them", _tensor("tokens")),
    Column("behavior_logprobs", "list<float32>", "0 on reply tokens", _tensor("behavior_logprobs")),
    Column("chosen", "list<bool>", "null where the policy chose all tokens", _tensor("chosen")),
    Column(
        "conversations",
        "list<conversation>",
        "how they divide these tokens; null where it is one",
        _conversations,
    ),
)


def arrow_type(arrow: Any, name: str) -> Any:
    """The Arrow type that a column names; ``arrow`` is the module, so that this one imports without it."""
    plain: dict[str, Any] = {
        "text": arrow.string(),
        "bool": arrow.bool_(),
        "int32": arrow.int32(),
        "int64": arrow.int64(),
        "float32": arrow.float32(),
        "float64": arrow.float64(),
    }
    structs: dict[str, dict[str, str]] = {
        "span": {"lineage": "text", "step": "int64", "start": "int32", "stop": "int32"},
        "stage": {"stage": "text", "worker": "text", "started_at_s": "float64", "finished_at_s": "float64"},
        "sampler": {
            "temperature": "float64",
            "top_p": "float64",
            "top_k": "int32",
            "max_new_tokens": "int32",
        },
        "conversation": {"prompt_tokens": "int32", "tokens": "int32"},
        "tool_call": {
            "name": "text",
            "arguments": "text",
            "result": "text",
            "started_at_s": "float64",
            "finished_at_s": "float64",
        },
    }
    if name in plain:
        return plain[name]
    if name in structs:
        return arrow.struct([(field, plain[kind]) for field, kind in structs[name].items()])
    outer, _, inner = name.removesuffix(">").partition("<")
    values = arrow_type(arrow, inner)
    return arrow.map_(arrow.string(), values) if outer == "map" else arrow.list_(values)
