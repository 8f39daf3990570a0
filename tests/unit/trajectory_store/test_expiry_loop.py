"""The loop that holds the bounds of time, beside a disk that refuses."""

from pathlib import Path
from types import SimpleNamespace
from typing import cast

from tests.unit.trajectory_store.building import LIMITS, started_store
from tidegate.runtime.clock import SystemClock
from tidegate.runtime.policy_watch import PolicyWatch
from tidegate.runtime.service import ServiceContext
from tidegate.trajectory_store.config import TrajectoryStoreConfig
from tidegate.trajectory_store.loops import ExpiryLoop
from tidegate.wire.digest import digest_of
from tidegate.wire.reference import PayloadReference


class _Drain:
    """Requested after some periods."""

    def __init__(self, *, periods: int) -> None:
        self._left = periods

    async def sleep(self, _for_s: float) -> bool:
        self._left -= 1
        return self._left < 0


async def test_file_that_cannot_be_removed_does_not_end_the_store(tmp_path: Path) -> None:
    config, frame, warned = TrajectoryStoreConfig(upload_ttl_s=0.0), b"a large frame", list[str]()
    store = started_store(tmp_path, config=config)
    reference = PayloadReference("t-1", len(frame), digest_of(frame))
    upload = store.uploads.begin(reference)
    assert upload is not None
    upload.write(frame)
    upload.finish()
    path = tmp_path / "uploads" / reference.digest.hex()
    path.unlink()
    path.mkdir()  # unlink refuses a folder, as it does on a disk that is read-only

    def warn(event: str, **_fields: object) -> None:
        warned.append(event)

    context = SimpleNamespace(
        drain=_Drain(periods=2),
        clock=SystemClock(),
        live=SimpleNamespace(limits=lambda: LIMITS),
        log=SimpleNamespace(warning=warn),
    )
    policy = SimpleNamespace(head=None)
    loop = ExpiryLoop(
        cast("ServiceContext", context), config, store, cast("PolicyWatch", policy), is_away=lambda: False
    )
    await loop.run()
    assert warned == ["disk_not_writable"]
    store.close()
