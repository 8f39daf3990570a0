"""Whether a run's pretrained model can be loaded: its files, its architecture, its context and its tokenizer.

Files are looked at here. The rest is told by transformers, in a process of its own (``python -m`` of this module, which
reads the question on standard input): the library takes seconds to import, stays loaded, and may raise anything.
"""

from pathlib import Path

import msgspec

from tidegate.core.errors import ConfigError
from tidegate.models.model_folder import CACHE_DIR, check_files, pretrained_folder
from tidegate.models.smollm2 import SMOLLM2, smollm2_folder
from tidegate.runtime.chat_config import ChatConfig
from tidegate.runtime.child_question import ChildEndedError, ChildTimeoutError, answer_question, ask
from tidegate.runtime.config import PolicyConfig

# The libraries take 8 s of a CPU to import, which a busy machine may not give for minutes.
DEADLINE_S = 300.0


class ModelFound(msgspec.Struct, frozen=True):
    """A model that can be loaded. ``size_bytes``: of its weights on disk."""

    folder: str
    architecture: str
    size_bytes: int


class _Question(msgspec.Struct, frozen=True):
    folder: str
    context_length: int
    chat: ChatConfig


def check_model(policy: PolicyConfig) -> ModelFound | None:
    """The pretrained model of a policy; None for a policy without one, and for SmolLM2 before it is built.

    Raises:
        ConfigError: a package or a file is missing, or the model is of an unsupported kind.
    """
    if policy.kind != "transformers":
        return None
    if policy.path == SMOLLM2:
        folder = smollm2_folder(CACHE_DIR)
        if not folder.is_dir():
            return None
    else:
        folder = pretrained_folder(policy.path)
    size_bytes = check_files(folder)
    return ModelFound(str(folder), _ask(folder, policy), size_bytes)


def _ask(folder: Path, policy: PolicyConfig) -> str:
    try:
        question = _Question(str(folder), policy.context_length, policy.chat)
        return ask(__name__, question, str, deadline_s=DEADLINE_S)
    except ChildTimeoutError as error:
        raise ConfigError(
            f"policy.path {folder} was not read within {DEADLINE_S:g} s",
            why="its file system answers slowly, or this machine is overloaded",
            fix="copy the model to a faster disk, or try again",
        ) from error
    except ChildEndedError as error:
        raise ConfigError(
            f"policy.path {folder} cannot be loaded: the process that tried it ended with {error.exit_code}",
            why=error.reason or "it was killed, for example for want of memory",
            fix="correct the model's folder, or the installation of transformers",
        ) from error


def _architecture(question: _Question) -> str:
    # They import torch.
    from tidegate.models.pretrained_folder import check_pretrained
    from tidegate.models.transformers_tokenizer import TransformersTokenizer

    folder = Path(question.folder)
    architecture = check_pretrained(folder, context_length=question.context_length)
    chat = question.chat
    TransformersTokenizer(folder, system_prompt=chat.system_prompt, template_args=chat.template_args)
    return architecture


if __name__ == "__main__":
    answer_question(_Question, _architecture)
