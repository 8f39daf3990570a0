"""Where the prompts of a language model's run come from: datasets, and environments with weights."""

import math
from collections.abc import Sequence
from typing import Annotated, Any, Literal

import msgspec

from tidegate.core.errors import ConfigError

# What the name of an environment of the library `verifiers` begins with: its episodes are played by an agent.
VERIFIERS = "verifiers:"


class DatasetConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Your own prompts. They are copied into the run folder once, so that a restarted run uses the same prompts.

    ``path``: a file of JSON lines, a Parquet file, a folder with several files of one of these formats, or a folder
    that the library ``datasets`` saved to disk; relative to where the run is started. Also one of these in object
    storage (``s3://bucket/problems.jsonl``, ``gs://``, ``az://``, ``file://``), read with the credentials of the
    environment. Empty: the environment's own problems. ``format``: ``auto`` detects it by file names. ``split``: the
    part of a saved folder with several parts.
    ``prompt_column``, ``answer_column``, ``prompt_id_column``, ``bin_column``: names of columns. A prompt is a text or
    a list of messages (``role``, ``content``), which a policy with a chat template reads as a chat. Without an answer
    the verifier gets an empty one; without an id a prompt is identified by the digest of its content; without a bin
    all prompts share one. Only the prompt column and columns with other names than the defaults are required; an empty
    name means no column.
    ``held_out_path``, ``held_out_split``, ``held_out_share``: problems for evaluations that are never trained on:
    other files, another split, or a share of the prompts, chosen by their digest. At most one of the three.
    """

    path: str = ""
    format: Literal["auto", "jsonl", "parquet", "datasets"] = "auto"
    split: str = "train"
    prompt_column: str = "prompt"
    answer_column: str = "answer"
    prompt_id_column: str = "prompt_id"
    bin_column: str = "bin"
    held_out_path: str = ""
    held_out_split: str = ""
    held_out_share: Annotated[float, msgspec.Meta(ge=0.0, lt=1.0)] = 0.0

    def __post_init__(self) -> None:
        """Refuse contradicting settings.

        Raises:
            ConfigError: there is more than one rule for what is held out.
        """
        if sum(map(bool, (self.held_out_path, self.held_out_split, self.held_out_share))) > 1:
            raise ConfigError(
                "workload.dataset has more than one rule for what is held out",
                fix="set at most one of held_out_path, held_out_split and held_out_share",
            )

    @property
    def holds_out(self) -> bool:
        """Whether there is a rule for what is held out."""
        return bool(self.held_out_path or self.held_out_split or self.held_out_share)


class EnvShare(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One of several environments of a run of language models.

    ``env``, ``env_kwargs``, ``dataset``, ``bins``: as those of ``workload``, for this environment alone.
    ``weight``: how often its prompts are drawn, relative to the other weights: of weights 2 and 1, two prompts in three
    are of the first. 0: it is evaluated and never trained.
    ``name``: by which results, curriculum bins (``name/bin``) and records name it; empty: ``env``. Needed where two
    have the same ``env``, and useful where ``env`` is long.
    """

    env: Annotated[str, msgspec.Meta(min_length=1, max_length=256)]
    weight: float = 1.0
    name: Annotated[str, msgspec.Meta(max_length=128)] = ""
    env_kwargs: dict[str, Any] = {}
    dataset: DatasetConfig = DatasetConfig()
    bins: tuple[str, ...] = ()

    @property
    def title(self) -> str:
        """Its name in records, in reports and in calls."""
        return self.name or self.env


def check_envs(envs: Sequence[EnvShare]) -> None:
    """Refuse weights that no share follows from, and names of two.

    Raises:
        ConfigError: a weight is below 0, infinite or no number, all of them are 0, or a name comes twice or has
            characters that cannot be shown.
    """
    names: set[str] = set()
    for each in envs:
        if not math.isfinite(each.weight) or each.weight < 0.0:
            raise ConfigError(
                f"workload.envs: the weight of {each.title} is {each.weight}",
                why="the weights of all environments together are the shares of prompts drawn from each",
                fix="set it to a number above 0, or to 0 to evaluate the environment without training on it",
            )
        if not each.title.isprintable():
            raise ConfigError(
                f"workload.envs: the name {each.title!r} has characters that no table shows",
                fix="give it a `name` of letters, digits and signs",
            )
        if each.title in names:
            raise ConfigError(
                f"workload.envs has two environments with the name {each.title}",
                why="results and records are told apart by it",
                fix="give each a `name` of its own, or merge them into one with the sum of their weights",
            )
        names.add(each.title)
    total = sum(each.weight for each in envs)
    if not total:
        raise ConfigError(
            "workload.envs: all weights are 0",
            why="no prompt could be drawn",
            fix="set the weight of at least one environment above 0",
        )
    if not math.isfinite(total):
        raise ConfigError("workload.envs: the sum of the weights is too large", fix="divide all of them")


def bin_in_run(name: str, bin_name: str) -> str:
    """What a run of several environments calls a bin of the one with this name."""
    return f"{name}/{bin_name}"


def bin_in_env(name: str, bin_name: str) -> str:
    """What the environment itself calls a bin of the run."""
    return bin_name.removeprefix(f"{name}/")
