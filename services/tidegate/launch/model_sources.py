"""Copies a pretrained model into a folder: from another folder, or from a folder that a web server has.

Only the files that a model consists of are taken: config, weights as safetensors, tokenizer. No code.
"""

import shutil
import urllib.error
import urllib.request
from email.message import Message
from http.client import HTTPException, HTTPResponse
from pathlib import Path
from typing import cast

import msgspec

from tidegate.core.errors import ConfigError, UnavailableError
from tidegate.core.json_text import NOT_JSON
from tidegate.models.model_folder import CONFIG_FILE, INDEX_FILE, WEIGHTS_PATTERN

PATTERNS = (WEIGHTS_PATTERN, "*.json", "*.txt", "*.model", "*.jinja")
WEIGHTS_FILE = "model.safetensors"
# Files besides the weights that a server may have; those that it lacks are left out.
OPTIONAL = (
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "tokenizer.model",
    "chat_template.jinja",
)
# Without a byte for this long, a download ends.
STALL_TIMEOUT_S = 60.0
# A model of 5 TB in files of 1 GB; an index that names more is none.
FILES_MAX = 5000
NOT_FOUND = 404
# Of a copy, besides the model: file systems are slow when they are full.
SPARE_BYTES = 1 << 30


class _FilesOfIndex(msgspec.Struct, frozen=True):
    weight_map: dict[str, str] = {}


def is_url(source: str) -> bool:
    """Whether a source is on a web server."""
    return source.startswith(("https://", "http://"))


def copy_folder(source: Path, into: Path) -> None:
    """Copy a model's files, and what links point at; files that ``into`` has whole are kept.

    Raises:
        ConfigError: there is no model, or not enough space.
        OSError: a file cannot be read or written.
    """
    files = sorted({path for pattern in PATTERNS for path in source.glob(pattern) if path.is_file()})
    if not any(path.name == CONFIG_FILE for path in files):
        raise ConfigError(
            f"{source} is no folder of a pretrained model",
            why=f"it has no {CONFIG_FILE}",
            fix="name the folder that holds it, as transformers or a model hub writes it",
        )
    _check_space(into, sum(path.stat().st_size for path in files))
    for path in files:
        target = into / path.name
        if not target.exists():
            shutil.copyfile(path, _unfinished(target))
            _unfinished(target).rename(target)


def download(url: str, into: Path, *, token: str = "") -> None:
    """Load a model's files from a folder of a web server, such as ``https://host/org/model/resolve/revision``.

    Files that ``into`` has whole are kept, so that a download goes on where it ended. ``token``: sent as a bearer
    token to that server, and not to where it redirects.

    Raises:
        ConfigError: the server has no model there, or there is not enough space.
        UnavailableError: it did not answer, or stopped in the middle.
    """
    server = _ModelServer(url.rstrip("/"), token)
    server.load(CONFIG_FILE, into)
    several = server.load(INDEX_FILE, into, required=False)
    weights = _weights_of(into / INDEX_FILE) if several else [WEIGHTS_FILE]
    for name in OPTIONAL:
        server.load(name, into, required=False)
    for name in weights:
        server.load(name, into)


class _ModelServer:
    def __init__(self, url: str, token: str) -> None:
        self._url, self._token = url, token

    def load(self, name: str, into: Path, *, required: bool = True) -> bool:
        """Load one file; False where an optional one is missing."""
        target = into / name
        if target.exists():
            return True
        request = urllib.request.Request(f"{self._url}/{name}")
        if self._token:
            request.add_unredirected_header("Authorization", f"Bearer {self._token}")
        try:
            with cast("HTTPResponse", urllib.request.urlopen(request, timeout=STALL_TIMEOUT_S)) as answer:
                length = _length(answer.headers)
                _check_space(into, length or 0)
                with _unfinished(target).open("wb") as file:
                    shutil.copyfileobj(answer, file, 1 << 20)
        except urllib.error.HTTPError as error:
            if error.code == NOT_FOUND and not required:
                return False
            if error.code < 500:
                raise ConfigError(
                    f"{request.full_url} cannot be loaded: the server answers {error.code} {error.reason}",
                    fix="name the folder that holds config.json, and give a token where the server asks for one",
                ) from error
            raise _lost(request.full_url, error) from error
        except (OSError, HTTPException) as error:
            raise _lost(request.full_url, error) from error
        size = _unfinished(target).stat().st_size
        if length is not None and size != length:
            raise _lost(request.full_url, f"{size} of {length} bytes arrived")
        _unfinished(target).rename(target)
        return True


def _lost(url: str, reason: object) -> UnavailableError:
    return UnavailableError(
        f"{url} was not loaded: {reason}",
        fix="look at the server and the network policy; the next attempt goes on after the last whole file",
    )


def _length(headers: Message) -> int | None:
    given = headers.get("Content-Length", "")
    return int(given) if given.isdigit() else None


def _weights_of(index: Path) -> list[str]:
    try:
        names = sorted(set(msgspec.json.decode(index.read_bytes(), type=_FilesOfIndex).weight_map.values()))
    except NOT_JSON as error:
        raise ConfigError(
            f"{INDEX_FILE} cannot be read: {error}", fix="name the folder of a model"
        ) from error
    wrong = [name for name in names if Path(name).name != name or not name.endswith(".safetensors")]
    if wrong or not names or len(names) > FILES_MAX:
        raise ConfigError(
            f"{INDEX_FILE} names {len(names)} files of weights{f', among them {wrong[0][:80]!r}' if wrong else ''}",
            why=f"a model has 1 to {FILES_MAX} files of safetensors beside its index",
            fix="name the folder of a model that you trust",
        )
    return names


def _unfinished(path: Path) -> Path:
    return path.with_name(f".{path.name}.part")


def _check_space(into: Path, needed_bytes: int) -> None:
    free = shutil.disk_usage(into).free
    if needed_bytes + SPARE_BYTES > free:
        raise ConfigError(
            f"{into.parent} has {free / 1e9:,.1f} GB free, and the model needs {needed_bytes / 1e9:,.1f} GB more",
            fix="use a larger volume, or remove models that no run uses",
        )
