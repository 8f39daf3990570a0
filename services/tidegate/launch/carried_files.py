"""Files that a run file names, on their way into the pods of a cluster: own code and prompts, each with its digest.

`tidegate chart` writes them into the values of the chart, which makes a ConfigMap of them with a list of their digests.
A pod compares what is mounted with the list before it uses it.
"""

import base64
import gzip
import hashlib
import os
from collections.abc import Iterable, Mapping
from pathlib import Path

import msgspec

from tidegate.core.errors import ConfigError, CorruptionError
from tidegate.core.json_text import NOT_JSON
from tidegate.launch.own_code import own_code_of
from tidegate.launch.run_plan import RunPlan
from tidegate.runtime.object_storage.urls import is_url
from tidegate.runtime.own_code.digests import digests_of
from tidegate.runtime.own_code.references import find_path, search_folders

# The list in the mounted folder: SHA-256 by path.
DIGESTS_FILE = "tidegate-files.json"
NUM_MAX = 256
# A ConfigMap holds 1 MiB, names and the list included.
STORED_BYTES_MAX = 1_000_000
# Helm keeps a release compressed in one Secret of 1 MiB. The chart with its dashboards takes 330 kB of it, and each
# file is in it three times (values, ConfigMap, the check's ConfigMap) in base64.
COMPRESSED_BYTES_MAX = 160_000
LARGER = "put them on a volume: podDefaults.extraVolumes, and their folder in there as run.files_dir"


class CarriedFile(msgspec.Struct, frozen=True, omit_defaults=True):
    """One entry of the chart's ``files.contents``: a text, or in base64 what is none."""

    path: str
    sha256: str
    text: str = ""
    base64: str = ""


def files_of(plan: RunPlan) -> dict[str, Path]:
    """The files that a run reads besides its run file, by their path in the pods.

    Those of a dataset with an absolute path are left out: it names a volume of the pods. So is one in object storage.

    Raises:
        ConfigError: there is no such code or dataset, or a file is neither beside the run file nor below the folder in
            which the command runs.
    """
    folders = search_folders(plan.file.files_dir)
    found: dict[str, Path] = {}
    for setting, path in _sources(plan):
        name = _name_in(folders, path)
        if name is None:
            raise ConfigError(
                f"{setting}: {path} is outside of {' and of '.join(folders)}",
                why="a pod has the files of the run file's folder, by their paths from there",
                fix="move it beside the run file",
            )
        if found.setdefault(name, path) != path and found[name].read_bytes() != path.read_bytes():
            raise ConfigError(
                f"{setting}: {name} is there twice, as {found[name]} and as {path}",
                why="a pod has one folder of files",
                fix="rename one of them",
            )
    return found


def carried(files: Mapping[str, Path]) -> list[CarriedFile]:
    """The files as entries of the chart's values.

    Raises:
        ConfigError: they are too many or too large for a ConfigMap or for Helm, or one cannot be read.
    """
    if len(files) > NUM_MAX:
        raise ConfigError(f"The run names {len(files):,} files, of which a pod takes {NUM_MAX}", fix=LARGER)
    contents: dict[str, bytes] = {}
    for name, path in sorted(files.items()):
        try:
            contents[name] = path.read_bytes()
        except OSError as error:
            raise ConfigError(f"{path} cannot be read", why=error.strerror or str(error)) from error
        # Before the next one is read: a data set may be larger than the memory.
        stored = sum(map(len, contents.values()))
        if stored > STORED_BYTES_MAX:
            raise ConfigError(
                f"The files of the run have more than {STORED_BYTES_MAX:,} bytes, with {name}",
                why="a ConfigMap holds 1 MiB",
                fix=LARGER,
            )
    made = [_entry(name, content) for name, content in contents.items()]
    stored = sum(len(each.text.encode()) + len(each.base64) for each in made)
    compressed = len(gzip.compress(b"".join(contents.values())))
    if stored > STORED_BYTES_MAX or compressed > COMPRESSED_BYTES_MAX:
        raise ConfigError(
            f"The files of the run have {stored:,} bytes, and {compressed:,} compressed",
            why=f"a ConfigMap holds {STORED_BYTES_MAX:,}, and Helm keeps them compressed in a Secret with the chart, "
            f"which leaves {COMPRESSED_BYTES_MAX:,}",
            fix=LARGER,
        )
    return made


def check_mounted(folder: str) -> None:
    """Compare the files of a pod with the list beside them; nothing where there is no list.

    Raises:
        CorruptionError: a file is missing or another one.
        ConfigError: the list cannot be read.
    """
    listed = Path(folder) / DIGESTS_FILE
    if not folder or not listed.is_file():
        return
    try:
        digests = msgspec.json.decode(listed.read_bytes(), type=dict[str, str])
    except NOT_JSON as error:
        raise ConfigError(f"{listed} cannot be read", why=str(error), fix="upgrade the release") from error
    for name, digest in digests.items():
        path = Path(folder) / name
        if not path.is_file() or hashlib.sha256(path.read_bytes()).hexdigest() != digest:
            raise CorruptionError(
                f"{path} {'is another file' if path.is_file() else 'is not there'}",
                why=f"the release was made with one whose SHA-256 is {digest[:12]}",
                fix="write the values again with `tidegate chart` and upgrade the release",
            )


def _sources(plan: RunPlan) -> Iterable[tuple[str, Path]]:
    folder = plan.file.files_dir
    for setting, reference in own_code_of(plan).items():
        for path in digests_of(reference):
            yield setting, Path(path)
    workload = plan.file.workload
    datasets = [part.dataset for part in workload.by_name().values()]
    named = [(key, getattr(dataset, key)) for dataset in datasets for key in ("path", "held_out_path")]
    for setting, written in dict.fromkeys(named):
        if not written or os.path.isabs(written) or is_url(written):
            continue
        place = Path(os.path.abspath(find_path(written, folder=folder)))
        if not place.exists():
            raise ConfigError(
                f"workload.dataset.{setting}: there is no {place}",
                fix="correct it, or name its place on a volume of the pods by an absolute path",
            )
        for path in sorted(place.rglob("*")) if place.is_dir() else [place]:
            if path.is_file():
                yield f"workload.dataset.{setting}", path

    file = plan.services["learner"].warmup.file
    if file and not os.path.isabs(file):
        path = Path(os.path.abspath(find_path(file, folder=folder)))
        if not path.is_file():
            raise ConfigError(
                f"learner.warmup.demonstrations: there is no file {path}",
                fix="correct it, or name its place on a volume of the pods by an absolute path",
            )
        yield "learner.warmup.demonstrations", path


def _name_in(folders: list[str], path: Path) -> str | None:
    for folder in folders:
        name = os.path.relpath(path, folder)
        if not name.startswith(os.pardir):
            return Path(name).as_posix()
    return None


def _entry(name: str, content: bytes) -> CarriedFile:
    digest = hashlib.sha256(content).hexdigest()
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError:
        text = None
    # Other characters do not survive every reader of YAML.
    if text and all(each.isprintable() or each in "\n\t" for each in text):
        return CarriedFile(name, digest, text=text)
    return CarriedFile(name, digest, base64=base64.b64encode(content).decode())
