"""Every service has the same modules, so that a reader who knows one can navigate all."""

from pathlib import Path

import pytest

from tidegate.launch.services import SERVICES

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("service", SERVICES)
def test_service_has_its_proto_and_the_modules_that_all_have(service: str) -> None:
    package = ROOT / "services" / "tidegate" / service
    wanted = [package / f"{module}.py" for module in ("__init__", "config", "state", "servicer", "main")]
    wanted.append(ROOT / "protos" / "tidegate" / "v1" / f"{service}_service.proto")
    assert [str(path.relative_to(ROOT)) for path in wanted if not path.is_file()] == []
