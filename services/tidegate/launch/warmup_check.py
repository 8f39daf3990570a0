"""Whether the demonstrations of a warm-up can be trained on: there are some, and the model's context holds them.

They are encoded by the policy's tokenizer in a process of its own (``python -m`` of this module): transformers takes
seconds to import, stays loaded, and may raise anything.
"""

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from tidegate.core.errors import ConfigError
from tidegate.launch.demonstrations import SETTING
from tidegate.launch.run_plan import RunPlan
from tidegate.learner.warmup_settings import DEMONSTRATIONS_FILE
from tidegate.models.model_folder import CACHE_DIR
from tidegate.models.smollm2 import SMOLLM2, smollm2_folder
from tidegate.runtime.child_question import ChildEndedError, ChildTimeoutError, answer_question, ask
from tidegate.runtime.config import PolicyConfig

if TYPE_CHECKING:
    from tidegate.learner.warmup_pairs import WarmupExample

# The libraries take 8 s of a CPU to import, and 100,000 long demonstrations a minute to encode.
DEADLINE_S = 600.0


class WarmupFound(msgspec.Struct, frozen=True):
    """Demonstrations that can be trained on. ``tokens``: of answers; ``longest``: with its prompt, in tokens."""

    pairs: int
    tokens: int
    longest: int


class WarmupQuestion(msgspec.Struct, frozen=True):
    """A file of demonstrations, and the policy that is trained on them."""

    file: str
    policy: PolicyConfig


def check_warmup(plan: RunPlan, folder: Path) -> WarmupFound | None:
    """The demonstrations in ``folder``, of a run file that names some; None also before SmolLM2 is built.

    Raises:
        ConfigError: there are none, or the policy cannot be trained on them.
    """
    policy, demonstrations = plan.file.policy, plan.services["learner"].warmup.demonstrations
    if not demonstrations:
        return None
    path = folder / DEMONSTRATIONS_FILE
    if not path.is_file() or not path.stat().st_size:
        raise ConfigError(
            f"{SETTING} is {demonstrations}, and {plan.file.workload.title} has no demonstrations",
            why="it returns none for its training problems",
            fix="name a file of JSON lines with messages, or with prompt and completion",
        )
    if policy.path == SMOLLM2 and not smollm2_folder(CACHE_DIR).is_dir():
        return None
    sys.stderr.write("tidegate: reading the demonstrations of the warm-up with the model's tokenizer\n")
    try:
        return ask(__name__, WarmupQuestion(str(path), policy), WarmupFound, deadline_s=DEADLINE_S)
    except ChildTimeoutError as error:
        raise ConfigError(
            f"{SETTING}: its demonstrations were not encoded within {DEADLINE_S:g} s",
            why="this machine is overloaded, or there are too many of them",
            fix="try again, or take fewer",
        ) from error
    except ChildEndedError as error:
        raise ConfigError(
            f"{SETTING}: the process that encoded its demonstrations ended with {error.exit_code}",
            why=error.reason or "it was killed, for example for want of memory",
            fix="correct the model's folder, or take fewer demonstrations",
        ) from error


def read_warmup(question: WarmupQuestion) -> WarmupFound:
    """Encode the demonstrations.

    Raises:
        ConfigError: they are too few, or one is longer than the context or no demonstration.
        RecordError: a text cannot be encoded.
    """
    # They import torch, and transformers for a pretrained model.
    from tidegate.learner.first_policy import read_examples
    from tidegate.learner.warmup_pairs import encode_examples
    from tidegate.models.language_models import open_tokenizer

    policy = question.policy
    examples = read_examples(Path(question.file))
    tokenizer = open_tokenizer(policy)
    if policy.kind == "transformers":
        from tidegate.models.transformers_tokenizer import TransformersTokenizer

        assert isinstance(tokenizer, TransformersTokenizer)
        if not tokenizer.has_chat_template and any(map(_is_conversation, examples)):
            raise ConfigError(
                f"{SETTING} has conversations of several messages, and the model in {policy.path} has no chat template",
                fix="add a chat_template.jinja to the folder, or write each prompt as one text",
            )
    encoded = encode_examples(tokenizer, examples, context_length=policy.context_length)
    if len(set(examples)) < 2:
        raise ConfigError(
            f"{SETTING} has {len(set(examples))} different demonstrations",
            why="one in ten is held out to measure on, and the others are trained on",
            fix="write more of them",
        )
    return WarmupFound(
        pairs=len(encoded),
        tokens=sum(int(each.chosen.sum()) for each in encoded),
        longest=max(each.num_tokens for each in encoded),
    )


def _is_conversation(example: "WarmupExample") -> bool:
    return example.prompt.startswith('[{"role"')


if __name__ == "__main__":
    answer_question(WarmupQuestion, read_warmup)
