"""A target is reached when the processes say so, whatever the broker's statistics claim."""

import pytest

from tests.support.broker import free_port
from tests.support.call_credentials import SECRET, accepted
from tidegate.catalogue import learner as statistics
from tidegate.core.targets import parse_target
from tidegate.launch.broker import BrokerEndpoint
from tidegate.launch.run_record import FORMAT, RunRecord
from tidegate.launch.target_check import TargetCheck
from tidegate.runtime.clock import SystemClock
from tidegate.runtime.drain import Drain
from tidegate.runtime.lifecycle_servicer import LifecycleServicer
from tidegate.runtime.rpc import RpcServer
from tidegate.runtime.stats_board import StatsBoard

pytestmark = pytest.mark.integration

FORGED = {"version_step": 1e9, "mean_return": 1e9}
TARGET = parse_target("version_step>=200 and mean_return>=400")


async def test_forged_statistics_end_no_run() -> None:
    address, silent = f"127.0.0.1:{free_port()}", f"127.0.0.1:{free_port()}"
    record = RunRecord(
        format=FORMAT,
        run_id="test-run",
        created_at_s=0.0,
        run_file={},
        broker=BrokerEndpoint(port=1),
        addresses={"learner": [address], "actor": [silent]},
        call_secret=SECRET,
    )
    board = StatsBoard(service="learner", instance="learner", started_at_s=0.0)
    board.set(statistics.VERSION_STEP, 3.0)
    board.set(statistics.MEAN_RETURN, 20.0)
    server = RpcServer([LifecycleServicer(board, Drain(), SystemClock()).registration()], accepted())
    await server.start(address)
    try:
        for _ in range(30):
            assert not await TargetCheck(record, TARGET).reached(FORGED)
        board.set(statistics.VERSION_STEP, 200.0)
        board.set(statistics.MEAN_RETURN, 475.0)
        # The broker's statistics say when to ask.
        assert not await TargetCheck(record, TARGET).reached({})
        assert (await TargetCheck(record, TARGET).reached(FORGED))["mean_return"] == 475.0
    finally:
        await server.stop(grace_s=0.1)
