"""A policy in a repository of a hub, by its own client (huggingface_hub).

Address and token are the client's: ``HF_ENDPOINT``, ``HF_TOKEN`` or what ``hf auth login`` kept. The repository is made
before the policy is written, so that a missing token costs nothing; all files arrive in one commit.
"""

import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, cast

from tidegate.cli.policy.exporting import write_policy
from tidegate.cli.policy.model_card import model_card, read_facts
from tidegate.cli.policy.transformers_folder import README, write_folder
from tidegate.core.errors import (
    ConfigError,
    NotFoundError,
    PermissionDeniedError,
    TidegateError,
    UnavailableError,
)
from tidegate.launch.stored_policy import StoredPolicy

if TYPE_CHECKING:
    from huggingface_hub import HfApi

# One read or write of the client, which has no deadline of its own.
SOCKET_DEADLINE_S = 120.0
# Files of an earlier push that this one does not replace: a model must not be made of two versions.
REPLACED = (".safetensors", ".onnx", ".json")
UNAUTHORISED = (401, 403)


class HubRepository:
    """A repository for models, which exists and may be written to."""

    def __init__(self, name: str, *, private: bool) -> None:
        """Make the repository where there is none; ``private``: a new one is private.

        Raises:
            NotFoundError: the client is not installed.
            ConfigError: the name cannot be one.
            PermissionDeniedError: the hub does not know the token, or it may not write there.
            UnavailableError: the hub does not answer.
        """
        self._api = _client()
        with _hub_errors(name):
            self.name = self._api.create_repo(name, private=private or None, exist_ok=True).repo_id

    def push(self, folder: Path, *, message: str) -> str:
        """Commit the files of a folder, in place of those of an earlier push; returns the commit's address.

        Raises:
            TidegateError: as when it was opened.
        """
        from huggingface_hub import CommitOperationAdd, CommitOperationDelete

        paths = sorted(path for path in folder.rglob("*") if path.is_file())
        added = {path.relative_to(folder).as_posix(): path for path in paths}
        with _hub_errors(self.name):
            old = [name for name in self._api.list_repo_files(self.name) if name.endswith(REPLACED)]
            # Not its `upload_folder`, which may make several commits: a reader between them gets a part.
            commit = self._api.create_commit(
                self.name,
                [
                    *(CommitOperationDelete(name) for name in old if name not in added),
                    *(CommitOperationAdd(name, path) for name, path in added.items()),
                ],
                commit_message=message,
            )
        return commit.commit_url


def push_policy(repository: HubRepository, stored: StoredPolicy, *, file_name: str, adapters: bool) -> str:
    """Push a version with its card: the folder of a language model, or of segments one file.

    Returns the address of the commit.

    Raises:
        TidegateError: as ``write_folder`` or ``write_policy``, or the hub refused or did not answer.
    """
    with tempfile.TemporaryDirectory(prefix="tidegate-") as parent:
        folder = Path(parent) / "policy"
        if stored.file.workload.kind == "segments":
            if adapters:
                raise ConfigError("A policy of segments has no adapters", fix="leave out --adapters")
            folder.mkdir()
            write_policy(stored, folder / file_name)
            form = (
                f"The policy as one file, `{file_name}`, with its preprocessing and spaces in the metadata."
            )
            card = model_card(stored, read_facts(stored), base="", form=form)
            (folder / README).write_text(card, encoding="utf-8")
        else:
            write_folder(stored, folder, adapters=adapters)
        return repository.push(folder, message=f"Version {stored.version} of {stored.run}")


def _client() -> "HfApi":
    try:
        from huggingface_hub import HfApi, get_session  # an extra, which only this needs
    except ImportError as error:
        raise NotFoundError(
            "--push-to-hub needs huggingface_hub",
            why=str(error),
            fix="install it: pip install 'tidegate[llm]'",
        ) from error
    get_session().timeout = SOCKET_DEADLINE_S
    return HfApi(library_name="tidegate")


@contextmanager
def _hub_errors(name: str) -> Generator[None]:
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, OfflineModeIsEnabled

    http_error = cast("type[Exception]", HfHubHTTPError.__bases__[0])  # of the HTTP client that it uses

    try:
        yield
    except HFValidationError as error:
        raise ConfigError(
            f"{name} cannot be the name of a repository",
            why=str(error),
            fix="name it as OWNER/NAME with --push-to-hub",
        ) from error
    except HfHubHTTPError as error:
        raise _refusal(name, error.response.status_code, str(error)) from error
    except OfflineModeIsEnabled as error:
        raise ConfigError(
            "The hub's client is offline",
            why=str(error),
            fix="unset HF_HUB_OFFLINE, or write a folder with --to",
        ) from error
    except http_error as error:
        raise UnavailableError(
            f"The hub does not answer while {name} is written",
            why=f"{type(error).__name__}: {error}",
            fix="check the network and HF_ENDPOINT, or write a folder with --to and push it later",
        ) from error


def _refusal(name: str, status: int, said: str) -> TidegateError:
    if status in UNAUTHORISED:
        return PermissionDeniedError(
            f"The hub does not let this token write {name}",
            why=said,
            fix="set HF_TOKEN to a token with write access, or log in: hf auth login",
        )
    return UnavailableError(
        f"The hub refused {name}", why=said, fix="see its answer; a folder is written by --to"
    )
