"""The page of a run in a cluster: a process that copies the run's records and serves them."""

from collections.abc import Callable, Coroutine
from functools import partial
from pathlib import Path
from typing import Any

from tidegate.cli.ui.run_copy import RunCopy
from tidegate.launch.cluster import RUN_FILE
from tidegate.launch.operator_credential import pod_credentials
from tidegate.launch.run_folder import read_record
from tidegate.launch.run_parsing import parse_shared
from tidegate.runtime.call_credentials import find_token
from tidegate.runtime.races import run_until
from tidegate.runtime.rpc import open_channel
from tidegate.runtime.service import Channels


async def with_copy(cluster: Path, folder: Path, serve: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Copy the run that the files in ``cluster`` describe to ``folder`` while ``serve`` serves it.

    Raises:
        ConfigError, NotFoundError: the files do not describe a run, or the pod has no credential.
        FolderInUseError: another process copies to this folder.
        OSError: the disk refused; a pod that ends is started again.
    """
    record = read_record(cluster)
    target = parse_shared(record.run_file, source=str(cluster / RUN_FILE)).until
    token = find_token(pod_credentials(), "ui")
    channels = Channels(record.addresses, open_channel=partial(open_channel, token=token))
    copy = RunCopy(record, folder, target=target, channel_to=channels.get)
    copy.begin()
    try:
        await run_until(copy.follow(), serve())
    finally:
        await channels.close()
