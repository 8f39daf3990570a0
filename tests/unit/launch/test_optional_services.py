"""A service that only some runs need: it is planned, addressed and served where the run file asks for it."""

from pathlib import Path

import msgspec
import pytest

from tests.unit.cli.run_folder import CARTPOLE
from tidegate.core.errors import ConfigError
from tidegate.launch.processes import service_process
from tidegate.launch.run_file import read_run_file
from tidegate.launch.run_folder import new_record, resumed_record, write_record
from tidegate.launch.run_parsing import parse_plan
from tidegate.launch.serve import serve
from tidegate.launch.services import REQUIRED, SERVICES, instances

NEEDED = ["actor.engine=inference_env"]


def test_run_has_the_service_exactly_where_the_actors_engine_names_it() -> None:
    without, with_it = read_run_file(CARTPOLE, []), read_run_file(CARTPOLE, NEEDED)
    assert without.replicas["inference"] == 0
    assert with_it.replicas["inference"] == 1
    assert instances("inference", replicas=without.replicas["inference"]) == []
    assert instances("inference", replicas=with_it.replicas["inference"]) == ["inference"]
    assert {*SERVICES} - {*REQUIRED} == {"inference"}
    assert all(without.replicas[service] for service in REQUIRED)


def test_only_a_run_with_the_service_has_its_address() -> None:
    without, with_it = new_record(read_run_file(CARTPOLE, [])), new_record(read_run_file(CARTPOLE, NEEDED))
    assert without.addresses["inference"] == []
    assert len(with_it.addresses["inference"]) == 1


@pytest.mark.parametrize("overrides", [[], NEEDED], ids=["without", "with"])
def test_its_settings_are_checked_and_read_back_either_way(overrides: list[str]) -> None:
    plan = read_run_file(CARTPOLE, [*overrides, "inference.batch_wait_ms=3"])
    assert plan.services["inference"].batch_wait_ms == 3
    assert parse_plan(plan.document(), source="run.json") == plan
    with pytest.raises(ConfigError, match=r"inference\.batch_wait_ms"):
        read_run_file(CARTPOLE, [*overrides, "inference.batch_wait_ms=-1"])


def test_serving_it_in_a_run_without_it_is_refused(tmp_path: Path) -> None:
    write_record(tmp_path, new_record(read_run_file(CARTPOLE, [])))
    with pytest.raises(ConfigError, match="has 0 inference and no number 0"):
        serve("inference", run_dir=tmp_path, index=0)


def test_folder_may_be_resumed_with_the_service_and_without_it(tmp_path: Path) -> None:
    write_record(tmp_path, new_record(read_run_file(CARTPOLE, [])))
    assert resumed_record(tmp_path, read_run_file(CARTPOLE, NEEDED)).addresses["inference"]


def test_record_of_a_run_that_began_before_there_was_such_a_service_can_be_served(tmp_path: Path) -> None:
    record = new_record(read_run_file(CARTPOLE, []))
    old = msgspec.structs.replace(
        record,
        addresses={name: each for name, each in record.addresses.items() if name != "inference"},
        run_file={key: value for key, value in record.run_file.items() if key != "inference"},
    )
    write_record(tmp_path, old)
    with pytest.raises(ConfigError, match="has 0 inference"):
        serve("inference", run_dir=tmp_path, index=0)


def test_it_is_forked_where_no_torch_is_loaded(tmp_path: Path) -> None:
    plan = read_run_file(CARTPOLE, NEEDED)
    process = service_process(plan, tmp_path, "inference", index=0, instance="inference", password="p")
    assert "torch" not in process.fork_server
    assert process.modules == ["tidegate.inference.main"]


def test_engine_of_segments_alone_needs_it() -> None:
    with pytest.raises(ConfigError, match="inference_env engine cannot run char_lm on text"):
        read_run_file(Path(__file__).parents[3] / "runs" / "arithmetic.yaml", ["actor.engine=inference_env"])
