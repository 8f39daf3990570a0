"""``tidegate.Run``: what a run folder holds, live or ended."""

import os
from pathlib import Path
from typing import Any

from tidegate.api.acting import Policy
from tidegate.api.tables import table_of_ended, table_of_ledger, table_of_updates
from tidegate.cli.accounting import ledger_path, read_accounting
from tidegate.cli.explain import diagnosis_of_samples
from tidegate.cli.trajectory_history import read_trajectory_history, sentence
from tidegate.cli.up.history import read_steps
from tidegate.cli.up.summary import read_summary
from tidegate.core.audit import Audit
from tidegate.launch.backup.fetching import FetchedRun
from tidegate.launch.local_files import require_local
from tidegate.launch.named_version import NEWEST
from tidegate.launch.run_folder import find_folder, is_running, read_record
from tidegate.launch.stored_policy import stored_version
from tidegate.runtime.object_storage.urls import is_url
from tidegate.trajectory_store import reading
from tidegate.trajectory_store.exporting import ended


class Run:
    """A run by its folder, or by the address of its backups. Each call reads the files as they are, and writes none.

    Of an address it is the newest backup at that moment, copied into a temporary folder that ends with this object.

    Tables are pyarrow's and need the extra ``data``; ``.to_pandas()`` makes them pandas' where that is installed.
    """

    def __init__(self, folder: str | os.PathLike[str] | None = None) -> None:
        """``folder``: the run's, or an address such as ``s3://bucket/runs``; None is the newest below .tidegate/runs.

        Raises:
            NotFoundError: no run wrote there.
            ConfigError: it is a run in a cluster, whose files are in its pods, or a place without a whole backup.
        """
        self._fetched = FetchedRun(folder) if isinstance(folder, str) and is_url(folder) else None
        named = folder if self._fetched is None else self._fetched.folder
        self.folder: Path = find_folder(None if named is None else Path(named).expanduser())
        record = require_local(
            read_record(self.folder), otherwise="use the commands of tidegate in admission's pod"
        )
        self.id: str = record.run_id

    def __repr__(self) -> str:
        """The id and the folder."""
        return f"Run({self.id!r}, folder={str(self.folder)!r})"

    @property
    def is_running(self) -> bool:
        """Whether the platform of this folder is running now."""
        return is_running(self.folder)

    @property
    def summary(self) -> dict[str, Any] | None:
        """``summary.json``: how the last start ended, rates, lag, memory, the audit; None before the first end."""
        return read_summary(self.folder)

    def updates(self) -> list[dict[str, Any]]:
        """The learner's updates in order, each with what ``learner/steps.jsonl`` says of it."""
        return list(read_steps(self.folder))

    def metrics(self) -> Any:
        """The updates as a table: loss, reward or return, lag, durations; a row an update.

        Raises:
            ConfigError: pyarrow is not installed.
        """
        return table_of_updates(self.updates())

    def trajectories(self, *, since_step: int = 0, tensors: bool = False) -> Any:
        """The trained and dropped trajectories as a table, with the columns of ``tidegate export``.

        ``since_step``: only those trained at this step or later, or dropped since. ``tensors``: with tokens and
        logprobs where the store still has them.

        Raises:
            ConfigError: pyarrow is not installed.
            NotFoundError, StaleFolderError, CorruptionError: the ledger cannot be read.
        """
        pages = ended(ledger_path(self.folder).parent, since_step=since_step, with_tensors=tensors)
        return table_of_ended(pages, with_tensors=tensors)

    def ledger(self) -> Any:
        """Every trajectory that reached the store as a table, in whatever state; folded rows are left out.

        Raises:
            ConfigError: pyarrow is not installed.
            NotFoundError, StaleFolderError, CorruptionError: the ledger cannot be read.
        """
        return table_of_ledger(reading.rows(ledger_path(self.folder)))

    def audit(self) -> Audit:
        """The admission journal reconciled with the ledger: ``balanced``, and ``problems`` in sentences.

        Raises:
            NotFoundError, StaleFolderError, CorruptionError: one of them cannot be read.
        """
        return read_accounting(self.folder).audit

    def explain(self, trajectory_id: str | None = None) -> str:
        """The bottleneck and its fix in two sentences; with an id, what became of that trajectory and why.

        Raises:
            NotFoundError: admission wrote no sample yet, or the run never admitted the trajectory.
        """
        if trajectory_id is not None:
            return sentence(read_trajectory_history(self.folder, trajectory_id))
        diagnosis = diagnosis_of_samples(self.folder)
        return f"{diagnosis.sentence} Fix: {diagnosis.fix or 'nothing to fix'}."

    def policy(self, version: str | None = None) -> Policy:
        """A version of the policy, such as ``0-3fa2@40`` or ``best``; None is the newest on disk.

        Raises:
            NotFoundError: the run keeps no such version; the message names those it keeps.
            ConfigError: it is no version, or the run trains a language model.
        """
        return Policy(stored_version(self.folder, NEWEST if version is None else version))
