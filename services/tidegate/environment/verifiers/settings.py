"""The sections ``environment.verifiers.<name>`` of the run file."""

import re
from typing import Annotated, Literal, TypeAlias

import msgspec

from tidegate.core.errors import ConfigError
from tidegate.runtime.own_code.references import is_reference, split_reference

PositiveSeconds = Annotated[float, msgspec.Meta(gt=0.0, le=3600.0)]

RUBRIC = """Question:
{prompt}

Reference answer:
{answer}

Reply to be judged:
{completion}

How good is the reply? Think briefly, then end with one line "Score: N", N from 0 (useless) to 10 (perfect)."""


class JudgeSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="kind", tag="judge"):
    """A model behind an OpenAI-style API that grades completions.

    ``base_url``: the URL without ``/chat/completions``. ``model``: the model's name. ``api_key_env``: the environment
    variable that contains the key, never the key itself; empty sends none.
    ``rubric``: the request, with the placeholders ``{prompt}``, ``{answer}`` and ``{completion}``.
    ``score_pattern``: a regular expression whose one group is the grade; the last match counts. ``score_key``: instead,
    the key of the grade in a JSON answer. ``lowest``, ``highest``: the grades that become 0 and 1; a grade outside of
    them is a failure.
    ``deadline_s``: seconds for one attempt. ``max_concurrent``: requests in flight; others wait. ``temperature``,
    ``max_tokens``: of the judge's answer.
    """

    base_url: str
    model: str
    api_key_env: str = ""
    rubric: str = RUBRIC
    score_pattern: str = r"(?i)score[*_\s]{0,4}[:=][*_\s]{0,6}(-?[0-9]{1,6}(?:\.[0-9]{1,6})?)"
    score_key: str = ""
    lowest: float = 0.0
    highest: float = 10.0
    deadline_s: PositiveSeconds = 30.0
    max_concurrent: Annotated[int, msgspec.Meta(ge=1, le=1024)] = 16
    temperature: Annotated[float, msgspec.Meta(ge=0.0, le=2.0)] = 0.0
    max_tokens: Annotated[int, msgspec.Meta(ge=1, le=32768)] = 256

    def __post_init__(self) -> None:
        """Refuse settings that cannot give a grade.

        Raises:
            ConfigError: the address, the rubric, the pattern or the scale is invalid.
        """
        if not self.base_url.startswith(("http://", "https://")):
            raise ConfigError(
                f"A judge's base_url is {self.base_url[:80]!r}",
                fix="write http://host:port/v1 or https://...",
            )
        if "{completion}" not in self.rubric:
            raise ConfigError(
                "A judge's rubric does not show the completion", fix="put {completion} where it belongs"
            )
        try:
            num_groups = re.compile(self.score_pattern).groups
        except re.error as error:
            raise ConfigError("A judge's score_pattern is no regular expression", why=str(error)) from error
        if num_groups != 1:
            raise ConfigError(
                f"A judge's score_pattern has {num_groups} groups", fix="put one group around the grade"
            )
        if not self.lowest < self.highest:
            raise ConfigError(f"A judge's grades go from {self.lowest:g} to {self.highest:g}")


class ClassifierSettings(
    msgspec.Struct,
    frozen=True,
    forbid_unknown_fields=True,
    omit_defaults=True,
    tag_field="kind",
    tag="classifier",
):
    """A reward model: a folder of `transformers` with a sequence classifier, run by a child process on the CPU.

    ``path``: the folder (config, tokenizer, safetensors), which every environment worker can read. ``text``: its input,
    with the placeholders ``{prompt}``, ``{answer}`` and ``{completion}``. ``label``: the label whose output is the
    score; empty for a model with one label. ``output``: the label's ``probability``, or its ``logit``, for reward
    models without a scale. ``deadline_s``: seconds for one text; after that the child is restarted.
    ``start_deadline_s``: seconds in which the model must load. ``num_threads``: threads of the model.
    """

    path: str
    text: str = "{prompt}{completion}"
    label: str = ""
    output: Literal["probability", "logit"] = "probability"
    deadline_s: PositiveSeconds = 30.0
    start_deadline_s: PositiveSeconds = 300.0
    num_threads: Annotated[int, msgspec.Meta(ge=1, le=256)] = 1

    def __post_init__(self) -> None:
        """Refuse a text without the completion.

        Raises:
            ConfigError: the text has no placeholder for the completion.
        """
        if "{completion}" not in self.text:
            raise ConfigError(
                "A classifier's text does not show the completion", fix="put {completion} where it belongs"
            )


class CodeSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="kind", tag="code"):
    """Hidden tests of a function that the completion defines; the tests are the problem's ``answer``.

    ``credit``: ``all`` gives 1 when every case passes and else 0; ``share`` the share of the cases that pass.
    ``relative_tolerance``: of results that are floats. ``max_concurrent``: programs that run or wait for the sandbox;
    ``environment.session_threads`` run at once. ``environment.sandbox`` sets the limits of one run.
    """

    credit: Literal["all", "share"] = "all"
    relative_tolerance: Annotated[float, msgspec.Meta(ge=0.0, le=0.1)] = 1e-9
    max_concurrent: Annotated[int, msgspec.Meta(ge=1, le=256)] = 8


class PythonSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="kind", tag="python"):
    """A function of your own, called in child processes that are killed and replaced when it hangs or crashes.

    ``path``: a file that ends in ``.py``, beside the run file or in the folder in which the run was started, or the
    name of a module; every environment worker can read it. Without a ``function``: a name that an installed package
    registered (``tidegate.verifiers``). ``function``: its name there, called with the texts ``(prompt, completion,
    answer)``; it returns a number, also one of numpy or torch. Or a class with a method ``score(problem, completion)``.
    ``deadline_s``: seconds for one call; a call that takes longer fails, and its process is killed.
    ``start_deadline_s``: seconds in which the code must load. ``processes``: calls at a time in each worker; more
    than its CPUs only wait for each other. ``memory_bytes``: of data that one process may allocate (RLIMIT_DATA), after
    which it gets a MemoryError and is replaced; 0: no limit.
    """

    path: str
    function: str = ""
    deadline_s: PositiveSeconds = 10.0
    start_deadline_s: PositiveSeconds = 60.0
    processes: Annotated[int, msgspec.Meta(ge=1, le=64)] = 2
    memory_bytes: Annotated[int, msgspec.Meta(ge=0, le=1 << 50)] = 4 << 30

    def __post_init__(self) -> None:
        """Refuse what names no function.

        Raises:
            ConfigError: the path or the name is empty or malformed.
        """
        if is_reference(self.reference):
            split_reference(self.reference)

    @property
    def reference(self) -> str:
        """Path and function as one text, or the registered name."""
        return f"{self.path}:{self.function}" if self.function else self.path


VerifierSettings: TypeAlias = JudgeSettings | ClassifierSettings | CodeSettings | PythonSettings
