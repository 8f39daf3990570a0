"""A run of several environments through the real service: each name is scored and played by its own code."""

from pathlib import Path

import msgspec
import pytest

from tests.integration.environment.groups import group, scored_messages
from tests.integration.environment.openenv_server import serving_countdown
from tests.integration.environment.store import FakeStore
from tests.support.service_harness import channel_of_test, make_context, running
from tidegate.core.errors import ConfigError
from tidegate.core.records import Trajectory
from tidegate.environment import main
from tidegate.environment.config import EnvironmentConfig
from tidegate.runtime.bus import Bus
from tidegate.runtime.config import Settings
from tidegate.runtime.prompt_sources import EnvShare
from tidegate.wire.clients.environment import EnvironmentClient, EpisodeProblem
from tidegate.wire.frame import decode_frame, encode_frame
from tidegate.wire.subjects import HEADER_TRAJECTORY_IDS, Topology

pytestmark = pytest.mark.integration
CONFIG = EnvironmentConfig(verifier_processes=1, score_deadline_s=20.0)


def several(settings: Settings, *envs: EnvShare, turns_max: int = 1) -> Settings:
    workload = msgspec.structs.replace(settings.workload, env="", envs=envs, turns_max=turns_max)
    return msgspec.structs.replace(settings, workload=workload, files_dir=str(Path(__file__).parent))


def of(env_id: str, records: list[Trajectory]) -> list[Trajectory]:
    return [msgspec.structs.replace(each, env_id=env_id) for each in records]


async def test_groups_of_all_environments_are_scored_each_by_its_own_verifier(
    settings: Settings, store: FakeStore, bus: Bus, topology: Topology
) -> None:
    mixed = several(
        settings, EnvShare("arithmetic", 2.0, "plus"), EnvShare("own_tasks.py:Reverse", 1.0, "reverse")
    )
    groups = [of("plus", group("task-1", "085", "580")), of("reverse", group("task-2", "085", "580"))]
    async with running(main.build, CONFIG, make_context("environment", mixed, bus=bus)):
        for records in groups:
            await bus.publish(
                topology.rollouts(mixed.workload.label),
                encode_frame(records),
                message_id=records[0].task_id,
                headers={HEADER_TRAJECTORY_IDS: ",".join(each.trajectory_id for each in records)},
            )
        messages = await scored_messages(bus, topology, count=len(groups))
    scored = [record for each in messages for record in decode_frame(each.data)]
    # Of the problem 47+38=, whose answer 085 the own task compares as well; only `plus` has parts of its score.
    assert {(each.env_id, each.completion, each.reward) for each in scored} == {
        ("plus", "085", 1.0),
        ("plus", "580", 0.0),
        ("reverse", "085", 1.0),
        ("reverse", "580", 0.0),
    }
    assert {each.env_id for each in scored if "exact" in each.reward_components} == {"plus"}


async def test_episodes_of_all_environments_are_played_each_by_its_own_code(
    settings: Settings, store: FakeStore, bus: Bus
) -> None:
    async with serving_countdown() as server:
        mixed = several(
            settings,
            EnvShare("calculator", 2.0, "sums"),
            EnvShare("own_tasks.py:Guess", 1.0, "guess"),
            EnvShare(f"openenv:{server.url}", 1.0, "countdown"),
            turns_max=8,
        )
        async with running(main.build, CONFIG, make_context("environment", mixed, bus=bus)) as context:
            client = EnvironmentClient(channel_of_test(context, "environment"))
            own, opening = await client.reset(
                "guess", seed=1, problem=EpisodeProblem("7", "7?", "7", "guess/low")
            )
            assert opening == "7?"
            problem = EpisodeProblem("12*(3+45)-7", "12*(3+45)-7=", "569", "sums/signs-3")
            shipped, opening = await client.reset("sums", seed=1, problem=problem)
            assert (await client.step(own, action="ask")).observation == "turn 1 of 7, seed 1"
            assert (await client.step(shipped, action="[3+45]")).observation == "48"
            assert (await client.step(own, action="7")).reward == 1.0
            assert (await client.step(shipped, action="569")).reward > 0.0
            other = EpisodeProblem("seed-7", "seed 7", "", "countdown/all")
            remote, opening = await client.reset("countdown", seed=3, problem=other)
            assert opening == "7 left"
            assert (await client.step(remote, action="7")).reward == 7.0


async def test_environment_that_cannot_be_loaded_ends_the_start(
    settings: Settings, store: FakeStore, bus: Bus
) -> None:
    mixed = several(settings, EnvShare("arithmetic"), EnvShare("own_tasks.py:Unloadable"))
    with pytest.raises(ConfigError, match=r"own_tasks\.py:Unloadable cannot be loaded"):
        async with running(main.build, CONFIG, make_context("environment", mixed, bus=bus)):
            pass
