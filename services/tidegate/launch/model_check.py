"""Whether a run's pretrained model can be loaded: its files, its architecture, its context and its tokenizer.

Files are looked at here. The rest is told by transformers, in a process of its own (``python -m`` of this module, which
reads the question on standard input): the library takes seconds to import, stays loaded, and may raise anything.
"""

import subprocess
import sys
from pathlib import Path
from typing import TypeAlias

import msgspec

from tidegate.core.errors import ConfigError, TidegateError
from tidegate.models.model_folder import CACHE_DIR, check_files, pretrained_folder
from tidegate.models.smollm2 import SMOLLM2, smollm2_folder
from tidegate.runtime.config import PolicyConfig
from tidegate.runtime.parent_death import dies_with_this_process

# The libraries take 8 s of a CPU to import, which a busy machine may not give for minutes.
DEADLINE_S = 300.0


class ModelFound(msgspec.Struct, frozen=True):
    """A model that can be loaded. ``size_bytes``: of its weights on disk."""

    folder: str
    architecture: str
    size_bytes: int


class _Loadable(msgspec.Struct, frozen=True, tag="loadable"):
    architecture: str


class _Refused(msgspec.Struct, frozen=True, tag="refused"):
    what: str
    why: str
    fix: str


_Answer: TypeAlias = _Loadable | _Refused


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
    return ModelFound(str(folder), _ask(folder, policy.context_length), size_bytes)


def _ask(folder: Path, context_length: int) -> str:
    try:
        done = subprocess.run(
            [sys.executable, "-m", __name__],
            input=msgspec.json.encode((str(folder), context_length)),
            capture_output=True,
            check=False,
            timeout=DEADLINE_S,
            preexec_fn=dies_with_this_process(),
        )
    except subprocess.TimeoutExpired as error:
        raise ConfigError(
            f"policy.path {folder} was not read within {DEADLINE_S:g} s",
            why="its file system answers slowly, or this machine is overloaded",
            fix="copy the model to a faster disk, or try again",
        ) from error
    try:
        answer: _Answer = msgspec.json.decode(done.stdout, type=_Answer)
    except msgspec.MsgspecError as error:
        lines = done.stderr.decode(errors="replace").strip().splitlines()
        raise ConfigError(
            f"policy.path {folder} cannot be loaded: the process that tried it ended with {done.returncode}",
            why=lines[-1][:400] if lines else "it was killed, for example for want of memory",
            fix="correct the model's folder, or the installation of transformers",
        ) from error
    if isinstance(answer, _Refused):
        raise ConfigError(answer.what, why=answer.why, fix=answer.fix)
    return answer.architecture


def main() -> None:
    """Answer the one question on standard input."""
    folder, context_length = msgspec.json.decode(sys.stdin.buffer.read(), type=tuple[str, int])
    reply, sys.stdout = sys.stdout.buffer, sys.stderr  # what the library prints is no answer
    # They import torch.
    from tidegate.models.pretrained_folder import check_pretrained
    from tidegate.models.transformers_tokenizer import TransformersTokenizer

    try:
        answer: _Answer = _Loadable(check_pretrained(Path(folder), context_length=context_length))
        TransformersTokenizer(Path(folder))
    except TidegateError as error:
        answer = _Refused(error.what, error.why, error.fix)
    reply.write(msgspec.json.encode(answer))


if __name__ == "__main__":
    main()
