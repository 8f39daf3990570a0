"""The init container of a restore against a real broker: only before the first task, and the queue after the store."""

import asyncio
import shutil
from pathlib import Path

import msgspec
import pytest

from tests.support.broker import Broker, free_port
from tests.support.call_credentials import accepted
from tests.unit.cli.run_folder import write_accounting, write_checkpoint
from tests.unit.launch.backup.folders import back_up
from tidegate.cli.backup import volume_command
from tidegate.core.errors import CorruptionError, StaleFolderError, UnavailableError
from tidegate.core.ids import RunId
from tidegate.launch.broker import BrokerEndpoint
from tidegate.launch.cluster import POD_NAME_VARIABLE
from tidegate.launch.run_folder import read_record
from tidegate.launch.run_record import RunRecord
from tidegate.runtime.bus import Bus
from tidegate.runtime.clock import SystemClock
from tidegate.runtime.rpc import RpcServer
from tidegate.wire.subjects import Topology

pytestmark = pytest.mark.integration


@pytest.fixture
def record(tmp_path: Path, nats: Broker) -> RunRecord:
    """Of a release of the run whose one backup is in the bucket."""
    folder = tmp_path / "run"
    write_checkpoint(folder, write_accounting(folder), step=3)
    made = read_record(folder)
    back_up(folder, tmp_path / "bucket" / made.run_id)
    return msgspec.structs.replace(
        made,
        cluster=True,
        broker=BrokerEndpoint(port=0, elsewhere=nats.url),
        addresses={"trajectory_store": [f"127.0.0.1:{free_port()}"]},
    )


async def restore(service: str, record: RunRecord, tmp_path: Path) -> Path:
    volume = tmp_path / "volumes" / service
    volume.mkdir(parents=True, exist_ok=True)
    place = (tmp_path / "bucket").as_uri()
    await volume_command._restore(service, place, 1, record, volume)  # pyright: ignore[reportPrivateUsage]
    return volume


async def test_queue_and_store_are_filled_before_the_first_task_and_the_queue_after_the_store(
    record: RunRecord, tmp_path: Path, nats: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    topology = Topology(RunId(record.run_id))
    bus = await Bus.connect(nats.url, name="other", topology=topology, clock=SystemClock())
    monkeypatch.setattr(volume_command, "LOOK_PERIOD_S", 0.01)
    await bus.bootstrap(topology.streams(max_tasks=64))
    monkeypatch.setattr(volume_command, "STORE_WAIT_S", 0.1)
    with pytest.raises(UnavailableError, match="store does not serve"):
        await restore("task_queue", record, tmp_path)
    monkeypatch.setattr(volume_command, "STORE_WAIT_S", 60.0)
    queue = asyncio.ensure_future(restore("task_queue", record, tmp_path))
    store = await restore("trajectory_store", record, tmp_path)
    assert not queue.done()
    server = RpcServer([], accepted())
    await server.start(record.addresses["trajectory_store"][0])
    assert (await queue / "task_queue" / "journal.sqlite").is_file()
    assert (store / "trajectory_store" / "ledger.sqlite").is_file()
    # The run goes on. A pod that starts again finds its volume filled, and one whose volume was lost is not filled.
    await bus.publish(topology.tasks("default"), b"task", message_id="t-1")
    await restore("trajectory_store", record, tmp_path)
    for service in ("trajectory_store", "task_queue"):
        (tmp_path / "volumes" / service).rename(tmp_path / f"lost-{service}")
        with pytest.raises(StaleFolderError, match="The broker has had 1 tasks of the run"):
            await restore(service, record, tmp_path)
    # Of the others a volume may be older than the rest.
    assert (await restore("learner", record, tmp_path) / "learner" / "steps.jsonl").is_file()
    await server.stop(grace_s=0.0)
    await bus.close()


async def test_lost_volume_of_the_learner_is_filled_from_the_newest_backup_once_the_run_has_begun(
    record: RunRecord, tmp_path: Path, nats: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    topology = Topology(RunId(record.run_id))
    bus = await Bus.connect(nats.url, name="other", topology=topology, clock=SystemClock())
    await bus.bootstrap(topology.streams(max_tasks=64))

    async def start(name: str, *, bucket: str = "bucket") -> list[str]:
        volume = tmp_path / "volumes" / name
        volume.mkdir(parents=True, exist_ok=True)
        place = (tmp_path / bucket).as_uri()
        await volume_command._restore_if_lost(place, record, volume)  # pyright: ignore[reportPrivateUsage]
        return sorted(path.name for path in volume.iterdir() if path.is_dir())

    monkeypatch.setenv(POD_NAME_VARIABLE, "rl-learner-0")
    # Backups of this id are of an earlier run.
    assert await start("new-run") == []
    await bus.publish(topology.tasks("default"), b"task", message_id="t-1")
    assert await start("lost") == ["learner"]
    checkpoints = tmp_path / "volumes" / "lost" / "learner" / "checkpoints"
    assert any(checkpoints.iterdir())
    # What the learner did since stays.
    (checkpoints / "00000009.later").mkdir()
    assert await start("lost") == ["learner"]
    assert (checkpoints / "00000009.later").is_dir()
    # So does a volume that was never filled.
    (tmp_path / "volumes" / "own" / "learner").mkdir(parents=True)
    assert await start("own") == ["learner"]
    assert list((tmp_path / "volumes" / "own" / "learner").iterdir()) == []
    # Nothing of a backup of which a part is missing.
    (tmp_path / "damaged").mkdir()
    shutil.copytree(tmp_path / "bucket" / record.run_id, tmp_path / "damaged" / record.run_id)
    shutil.rmtree(tmp_path / "damaged" / record.run_id / "objects")
    with pytest.raises(CorruptionError, match=r"No backup in .* is whole"):
        await start("from-damaged", bucket="damaged")
    # Of several ranks one has checkpoints.
    monkeypatch.setenv(POD_NAME_VARIABLE, "rl-learner-1")
    assert await start("second-rank") == []
    monkeypatch.setenv(POD_NAME_VARIABLE, "rl-learner-0")
    (tmp_path / "no-backups" / record.run_id).mkdir(parents=True)
    assert await start("no-backup-yet", bucket="no-backups") == []
    await bus.close()
