"""`tidegate rollback`: what an operator is told, and that the command waits until the learner went back."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.support.broker import free_port
from tests.support.call_credentials import SECRET, accepted
from tidegate.cli import rollback as command
from tidegate.cli.rollback import roll_back
from tidegate.core.errors import DeadlineError, NotFoundError, UnavailableError
from tidegate.core.ids import PolicyVersion, RunId, parse_version
from tidegate.launch.broker import BrokerEndpoint
from tidegate.launch.run_record import FORMAT, RunRecord
from tidegate.runtime.rpc import Registration, RpcServer
from tidegate.v1 import learner_service_pb2 as pb
from tidegate.v1.learner_service_pb2_grpc import add_LearnerServiceServicer_to_server
from tidegate.wire.convert import version_from_proto, version_to_proto

pytestmark = pytest.mark.integration

HEAD, BEFORE, AFTER = (parse_version(text) for text in ("0-aaaa@63", "0-aaaa@40", "1-bbbb@40"))


class FakeLearner:
    """Answers as a learner; ``answers``: what it says of its version next, None while it starts."""

    def __init__(self) -> None:
        self.kept = [BEFORE, BEFORE]
        self.answers: list[PolicyVersion | None] = [HEAD]
        self.asked: list[tuple[PolicyVersion, str, str]] = []

    async def GetProgress(self, request: pb.GetProgressRequest, context: Any) -> pb.GetProgressResponse:
        version = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if version is None:
            raise UnavailableError("The learner is still starting")
        kept = [version_to_proto(each) for each in self.kept]
        return pb.GetProgressResponse(version=version_to_proto(version), kept=kept)

    async def Rollback(self, request: pb.RollbackRequest, context: Any) -> pb.RollbackResponse:
        target = version_from_proto(request.target)
        self.asked.append((target, request.reason, request.by))
        if target not in self.kept:
            raise NotFoundError(f"No kept checkpoint holds version {target}", why=f"they hold {BEFORE}")
        return pb.RollbackResponse(head=version_to_proto(HEAD), target=request.target)

    async def Checkpoint(self, request: pb.CheckpointRequest, context: Any) -> pb.CheckpointResponse:
        raise AssertionError("a rollback asks for no checkpoint")

    async def Complete(self, request: pb.CompleteRequest, context: Any) -> pb.CompleteResponse:
        raise AssertionError("only admission ends a run")

    async def ReadCheckpoint(self, request: pb.ReadCheckpointRequest, context: Any) -> None:
        raise AssertionError("only a learner that stands by reads one")


@pytest.fixture
def learner() -> FakeLearner:
    return FakeLearner()


@pytest.fixture
async def record(learner: FakeLearner) -> AsyncIterator[RunRecord]:
    address = f"127.0.0.1:{free_port()}"
    own = Registration(add_LearnerServiceServicer_to_server, learner, "tidegate.v1.LearnerService")
    server = RpcServer([own], accepted())
    await server.start(address)
    yield RunRecord(
        format=FORMAT,
        run_id=RunId("r"),
        created_at_s=0.0,
        run_file={},
        broker=BrokerEndpoint(port=0),
        addresses={"learner": [address]},
        call_secret=SECRET,
    )
    await server.stop(grace_s=0)


async def test_command_waits_until_the_learner_trains_on_another_branch(
    learner: FakeLearner, record: RunRecord, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "POLL_S", 0.01)
    learner.answers = [HEAD, None, HEAD, AFTER]
    lines = await roll_back(record, BEFORE, reason="collapsed", by="ana")
    assert lines == [
        "rolled back from 0-aaaa@63 to 0-aaaa@40: training goes on from 1-bbbb@40",
        "23 updates no longer count",
    ]
    assert learner.asked == [(BEFORE, "collapsed", "ana")]


async def test_command_that_waits_too_long_says_that_the_rollback_is_finished_without_it(
    record: RunRecord, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "POLL_S", 0.01)
    monkeypatch.setattr(command, "FINISHED_WITHIN_S", 0.05)
    with pytest.raises(DeadlineError, match=r"was accepted and is not finished.*without this command"):
        await roll_back(record, BEFORE, reason="", by="")


async def test_refusal_of_the_learner_is_shown(learner: FakeLearner, record: RunRecord) -> None:
    with pytest.raises(
        NotFoundError, match=r"No kept checkpoint holds version 0-aaaa@63.*they hold 0-aaaa@40"
    ):
        await roll_back(record, HEAD, reason="", by="")


async def test_without_a_target_the_versions_to_go_back_to_are_listed(
    learner: FakeLearner, record: RunRecord
) -> None:
    assert await roll_back(record, None, reason="", by="") == [
        "the newest version is 0-aaaa@63; --to can be one of",
        "0-aaaa@40",
    ]
    learner.kept = []
    assert await roll_back(record, None, reason="", by="") == [
        "the newest version is 0-aaaa@63, and no checkpoint is kept yet"
    ]
    assert learner.asked == []
